# SPDX-License-Identifier: Apache-2.0
"""The step channel: fast, patient when idle, strict once a step is announced, deaf to strangers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from afd.control import steps as module
from afd.control.abort import Abort, Cause
from afd.control.channel import parse_address, prove
from afd.control.messages import (
    AnyMessage,
    Challenge,
    FrameReader,
    Heartbeat,
    Refusal,
    Step,
    StepHello,
    StepReady,
    encode,
)
from afd.control.step_sender import StepSender
from afd.control.steps import StepListener
from afd.errors import (
    ClosedError,
    MismatchError,
    MisuseError,
    PeerAbsentError,
    PeerLostError,
    RoleFailedError,
)
from afd.topology import Rank, Role

F0 = Rank(Role.FFN, 0)
A0, A1 = Rank(Role.ATTENTION, 0), Rank(Role.ATTENTION, 1)
EPOCH = "e" * 12


def step(number: int, rank: Rank = A0, epoch: str = EPOCH) -> Step:
    return Step(epoch=epoch, step=number, rank=str(rank), phase="eager", real=(1,), padded=(1,))


@contextmanager
def listening(
    *expected: Rank, step_s: float = 5.0, abort: Abort | None = None, token: bytes | None = None
) -> Iterator[StepListener]:
    listener = StepListener(F0, EPOCH, expected or (A0,), abort=abort or Abort(), step_s=step_s, token=token)
    try:
        yield listener
    finally:
        listener.close("test over")


def in_thread(function: Callable[[], object]) -> Future[object]:
    pool = ThreadPoolExecutor(1)
    future = pool.submit(function)
    pool.shutdown(wait=False)
    return future


def connected(listener: StepListener, *ranks: Rank, token: bytes | None = None) -> list[StepSender]:
    senders = [StepSender(rank, EPOCH, abort=Abort(), step_s=5.0, token=token) for rank in ranks]
    waits = [in_thread(lambda s=s: s.connect({F0: listener.address}, 5.0)) for s in senders]  # type: ignore[misc]
    listener.connect_all(5.0)
    for wait in waits:
        wait.result(5)
    return senders


def raw(listener: StepListener) -> socket.socket:
    return socket.create_connection(parse_address(listener.address), timeout=5)


def heard(sock: socket.socket) -> tuple[list[AnyMessage], bool]:
    """What a raw connection is told until it is closed or nothing comes for 0.2 s, and whether it is closed."""
    reader, found = FrameReader(), []
    sock.settimeout(0.2)
    try:
        while data := sock.recv(4096):
            found += reader.feed(data)
    except TimeoutError:
        return found, False
    return found, True


def test_each_round_has_one_step_of_every_expected_rank() -> None:
    with listening(A0, A1) as listener:
        a0, a1 = connected(listener, A0, A1)
        for number in (4, 5, 9):
            a1.send(step(number, A1))
            a0.send(step(number, A0))
        for number in (4, 5, 9):
            assert listener.next() == {A0: step(number, A0), A1: step(number, A1)}
        a0.close("done")
        a1.close("done")


def test_an_idle_channel_is_no_error_and_returns_empty_after_its_timeout() -> None:
    with listening(step_s=0.01) as listener:
        (a0,) = connected(listener, A0)
        start = time.monotonic()
        assert listener.next(timeout_s=0.1) == {}
        assert 0.1 <= time.monotonic() - start < 1
        a0.send(step(1))
        assert listener.next() == {A0: step(1)}
        a0.close("done")


def test_a_rank_that_does_not_announce_what_another_announced_is_named() -> None:
    with listening(A0, A1, step_s=0.2) as listener:
        a0, a1 = connected(listener, A0, A1)
        a0.send(step(7))
        start = time.monotonic()
        with pytest.raises(
            PeerLostError, match=r"A1 did not announce step 7 to F0 within 0.2 s; A0 did"
        ) as info:
            listener.next()
        assert 0.2 <= time.monotonic() - start < 1.5
        assert info.value.rank == "A1"
        a0.close("done")
        a1.close("done")


def test_the_deadline_of_a_partial_step_goes_on_over_calls_with_a_timeout() -> None:
    with listening(A0, A1, step_s=0.3) as listener:
        a0, a1 = connected(listener, A0, A1)
        a0.send(step(7))
        with pytest.raises(PeerLostError, match="A1 did not announce"):
            for _ in range(50):
                listener.next(timeout_s=0.05)
        a0.close("done")
        a1.close("done")


def test_a_rank_that_never_connected_is_named_at_the_deadline() -> None:
    with (
        listening(A0, A1) as listener,
        pytest.raises(PeerAbsentError, match=r"A0, A1 did not open a step connection to F0 within 0.1 s"),
    ):
        listener.connect_all(0.1)


def test_goodbye_of_every_rank_ends_the_channel_after_the_last_step() -> None:
    with listening(A0, A1) as listener:
        a0, a1 = connected(listener, A0, A1)
        for sender, rank in ((a0, A0), (a1, A1)):
            sender.send(step(1, rank))
            sender.close("drained")
        assert listener.next() == {A0: step(1), A1: step(1, A1)}
        assert listener.next() is None
        assert listener.next() is None


def test_a_rank_that_says_goodbye_while_another_goes_on_is_named() -> None:
    with listening(A0, A1) as listener:
        a0, a1 = connected(listener, A0, A1)
        a1.close("drained")
        a0.send(step(3))
        with pytest.raises(PeerLostError, match=r"A1 said goodbye \(drained\) but A0 announces step 3"):
            listener.next()
        a0.close("done")


def test_a_killed_attention_process_is_noticed_at_once() -> None:
    code = (
        "import sys, time\n"
        "from afd.control.abort import Abort\n"
        "from afd.control.step_sender import StepSender\n"
        "from afd.topology import Rank\n"
        f"s = StepSender(Rank.parse('A0'), {EPOCH!r}, abort=Abort(), step_s=5.0)\n"
        "s.connect({Rank.parse('F0'): sys.argv[1]}, 5.0)\n"
        "time.sleep(60)\n"
    )
    with listening() as listener:
        process = subprocess.Popen([sys.executable, "-c", code, listener.address])
        listener.connect_all(20.0)
        killed = []

        def kill() -> None:
            time.sleep(0.1)
            killed.append(time.monotonic())
            os.kill(process.pid, signal.SIGKILL)

        thread = in_thread(kill)
        with pytest.raises(
            PeerLostError, match="A0 closed its step connection to F0 without a goodbye"
        ) as info:
            listener.next()
        assert time.monotonic() - killed[0] < 0.5
        assert info.value.rank == "A0"
        thread.result(5)
        process.wait(5)


@pytest.mark.parametrize("waiting", ["idle", "partial", "connecting"])
def test_an_abort_wakes_the_ffn_side_at_once(waiting: str) -> None:
    abort = Abort()
    with listening(A0, A1, abort=abort, step_s=30.0) as listener:
        if waiting != "connecting":
            a0, a1 = connected(listener, A0, A1)
            if waiting == "partial":
                a0.send(step(1))
        wait: Callable[[], object] = (
            (lambda: listener.connect_all(30)) if waiting == "connecting" else listener.next
        )
        thread = in_thread(wait)
        time.sleep(0.05)
        start = time.monotonic()
        abort.trigger(Cause("RoleFailedError", "weights do not fit", rank="F0"))
        with pytest.raises(RoleFailedError, match="F0: weights do not fit"):
            thread.result(5)
        assert time.monotonic() - start < 0.5
        if waiting != "connecting":
            a0.close("done")
            a1.close("done")


def test_an_abort_wakes_a_sender_that_waits_for_an_answer() -> None:
    abort = Abort()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        sender = StepSender(A0, EPOCH, abort=abort, step_s=5.0)
        thread = in_thread(lambda: sender.connect({F0: f"127.0.0.1:{silent.getsockname()[1]}"}, 30.0))
        time.sleep(0.05)
        abort.trigger(Cause("PeerLostError", "gone", rank="F0"))
        with pytest.raises(PeerLostError, match="F0: gone"):
            thread.result(5)
        sender.close("done")


def test_a_sender_that_nobody_reads_gives_up_after_step_s() -> None:
    with listening() as listener:
        (a0,) = connected(listener, A0)
        a0._step_s = 0.2
        big = Step(epoch=EPOCH, step=1, rank="A0", phase="eager", real=(1,) * 50000, padded=(1,) * 50000)
        with pytest.raises(PeerLostError, match="F0 took no message from this side before the deadline"):
            for _ in range(1000):
                a0.send(big)
        a0.close("done")


def test_a_sender_notices_that_the_ffn_rank_is_gone_or_said_goodbye() -> None:
    listener = StepListener(F0, EPOCH, (A0,), abort=Abort(), step_s=5.0)
    (a0,) = connected(listener, A0)
    a0.check()
    listener.close("drained")
    with pytest.raises(PeerLostError, match=r"F0 said goodbye \(drained\)") as info:
        a0.send(step(1))
    assert info.value.rank == "F0"
    a0.close("done")
    a0.close("twice is harmless")
    with pytest.raises(ClosedError):
        a0.send(step(1))
    with pytest.raises(ClosedError):
        listener.next()


def test_ranks_that_announce_different_steps_are_a_bug_named_with_both() -> None:
    with listening(A0, A1) as listener:
        a0, a1 = connected(listener, A0, A1)
        a0.send(step(3, A0))
        a1.send(step(4, A1))
        with pytest.raises(MisuseError, match="step 3 by A0, step 4 by A1"):
            listener.next()
        a0.close("done")
        a1.close("done")


@pytest.mark.parametrize(
    ("sent", "match"),
    [
        ([step(1, epoch="other")], "epoch e+ announced a step as A0 of epoch other"),
        ([step(1, rank=A1)], "A0 of epoch e+ announced a step as A1"),
        ([step(5), step(5)], "announced step 5 after step 5"),
        ([step(i) for i in range(module.AHEAD + 1)], "steps ahead of F0"),
    ],
)
def test_a_rank_that_breaks_the_protocol_is_refused(sent: list[Step], match: str) -> None:
    with listening(A0, A1) as listener:
        a0, a1 = connected(listener, A0, A1)
        for message in sent:
            a0.send(message)
        with pytest.raises(MisuseError, match=match):
            while listener.next(timeout_s=2.0):
                pass
        a0.close("done")
        a1.close("done")


def test_another_epoch_or_a_second_connection_means_that_the_rank_restarted() -> None:
    for epoch, first in (("older", False), (EPOCH, True)):
        with listening() as listener:
            live = connected(listener, A0) if first else []
            again = StepSender(A0, epoch, abort=Abort(), step_s=5.0)
            thread = in_thread(lambda a=again, li=listener: a.connect({F0: li.address}, 5.0))  # type: ignore[misc]
            with pytest.raises(PeerLostError, match="rank restarted") as info:
                listener.next(timeout_s=5.0)
            assert info.value.rank == "A0"
            with pytest.raises(PeerLostError, match="rank restarted"):
                thread.result(5)
            for sender in (*live, again):
                sender.close("done")


def test_a_wrong_token_is_refused_and_the_channel_goes_on() -> None:
    good, bad = b"correct horse battery", b"wrong wrong wrong wrong"
    with listening(token=good) as listener:
        for token in (bad, None):
            wrong = StepSender(A0, EPOCH, abort=Abort(), step_s=5.0, token=token)
            thread = in_thread(lambda w=wrong: w.connect({F0: listener.address}, 5.0))  # type: ignore[misc]
            assert listener.next(timeout_s=0.2) == {}
            with pytest.raises(MismatchError, match="the token of A0 is not that of F0") as info:
                thread.result(5)
            assert "correct" not in str(info.value)
            wrong.close("done")
        (a0,) = connected(listener, A0, token=good)
        a0.send(step(1))
        assert listener.next() == {A0: step(1)}
        a0.close("done")


def challenged(sock: socket.socket) -> Challenge:
    (challenge,), _ = heard(sock)
    assert isinstance(challenge, Challenge)
    return challenge


def test_a_hello_that_was_overheard_is_of_no_use_on_another_connection() -> None:
    token = b"correct horse battery"
    with listening(token=token) as listener:
        with raw(listener) as first, raw(listener) as second:
            assert listener.next(timeout_s=0.2) == {}
            challenges = [challenged(sock) for sock in (first, second)]
            assert all(challenge.token for challenge in challenges)
            proof = prove(token, "step", challenges[0].nonce, b"mine", EPOCH, "A0", "F0")
            hello = encode(StepHello(epoch=EPOCH, rank="A0", nonce=b"mine", proof=proof))
            second.sendall(hello)  # the listener has another nonce there
            assert listener.next(timeout_s=0.2) == {}
            (refusal,), closed = heard(second)
            assert isinstance(refusal, Refusal) and closed
            first.sendall(hello)
            assert listener.next(timeout_s=0.2) == {}
            (ready,), _ = heard(first)
            assert isinstance(ready, StepReady)
            assert ready.proof == prove(token, "steps", challenges[0].nonce, b"mine", EPOCH, "A0", "F0")


def test_a_listener_that_does_not_know_the_token_is_refused() -> None:
    for other in (None, b"wrong wrong wrong wrong"):
        with socket.create_server(("127.0.0.1", 0)) as server:
            sender = StepSender(A0, EPOCH, abort=Abort(), step_s=5.0, token=b"correct horse battery")
            address = f"127.0.0.1:{server.getsockname()[1]}"
            thread = in_thread(lambda s=sender, a=address: s.connect({F0: a}, 5.0))  # type: ignore[misc]
            impostor, _ = server.accept()
            with impostor:
                impostor.sendall(encode(Challenge(nonce=b"n", token=True)))
                (hello,), _ = heard(impostor)
                assert isinstance(hello, StepHello)
                proof = prove(other, "steps", b"n", hello.nonce, EPOCH, "A0", "F0")
                impostor.sendall(encode(StepReady(epoch=EPOCH, rank="F0", proof=proof)))
                with pytest.raises(MismatchError, match="the token of F0 is not that of A0"):
                    thread.result(5)
            sender.close("done")


def test_a_rank_that_is_not_expected_is_refused_and_the_channel_goes_on() -> None:
    with listening() as listener:
        other = StepSender(A1, EPOCH, abort=Abort(), step_s=5.0)
        thread = in_thread(lambda: other.connect({F0: listener.address}, 5.0))
        assert listener.next(timeout_s=0.2) == {}
        with pytest.raises(MisuseError, match="F0 expects steps from A0, not from A1"):
            thread.result(5)
        other.close("done")
        connected(listener, A0)[0].close("done")


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(range(7, 71)),
        b"AFD\x02\x00\x00\x00\x01x",
        b"AFD\x01\x00\x0f\x00\x00",
        encode(Heartbeat(epoch=EPOCH)),
        encode(StepHello(epoch=EPOCH, rank="A0", nonce=b""))[:-3],
    ],
    ids=["silence", "http", "noise", "protocol", "length", "heartbeat", "half"],
)
def test_strangers_do_not_disturb_a_running_channel(said: bytes) -> None:
    with listening() as listener:
        (a0,) = connected(listener, A0)
        for linger in (False, True):
            with raw(listener) as stranger:
                stranger.sendall(said)
                if not linger:
                    stranger.close()
                a0.send(step(1 + linger))
                assert listener.next(timeout_s=2.0) == {A0: step(1 + linger)}
                assert listener.next(timeout_s=0.02) == {}
        a0.close("done")


def test_open_connections_that_say_nothing_are_limited() -> None:
    with listening() as listener:
        silent = [raw(listener) for _ in range(module.STRANGERS + 5)]
        assert listener.next(timeout_s=0.2) == {}
        assert len(listener._strangers) == module.STRANGERS
        assert heard(silent[0])[1]  # the oldest was closed
        (a0,) = connected(listener, A0)
        a0.send(step(1))
        assert listener.next() == {A0: step(1)}
        a0.close("done")
        for sock in silent:
            sock.close()


def test_the_channel_leaves_no_file_descriptor_behind() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with listening() as listener:
            (a0,) = connected(listener, A0)
            with raw(listener):
                listener.next(timeout_s=0.01)
            a0.close("done")
    assert len(os.listdir("/proc/self/fd")) == before
    assert threading.active_count() < 20


def test_an_announcement_takes_well_under_a_millisecond() -> None:
    code = (
        "import sys\n"
        "from afd.control.abort import Abort\n"
        "from afd.control.messages import Step\n"
        "from afd.control.steps import StepListener\n"
        "from afd.topology import Rank\n"
        f"s = StepListener(Rank.parse('F0'), {EPOCH!r}, [Rank.parse('A0')], abort=Abort(), step_s=5.0)\n"
        "print(s.address, flush=True)\n"
        "while s.next() is not None: sys.stdout.buffer.write(b'.'); sys.stdout.buffer.flush()\n"
        "s.close('done')\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        address = b""
        while not address.endswith(b"\n"):
            address += process.stdout.read(1)
        a0 = StepSender(A0, EPOCH, abort=Abort(), step_s=5.0)
        a0.connect({F0: address.decode().strip()}, 5.0)
        times = []
        for number in range(1000):
            start = time.perf_counter()
            a0.send(step(number))
            process.stdout.read(1)
            times.append(time.perf_counter() - start)
        a0.close("done")
        assert process.wait(5) == 0
    times.sort()
    print(f"announce and answer over a pipe: median {times[500] * 1e6:.0f} us, p99 {times[990] * 1e6:.0f} us")
    assert times[500] < 1e-3
