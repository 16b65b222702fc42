# SPDX-License-Identifier: Apache-2.0
"""Whatever is said on the three ports of the control plane: nothing crashes, nothing hangs, and who comes afterwards is
served. Everything here goes over real sockets."""

from __future__ import annotations

import asyncio
import logging
import select
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from afd.config import Auth
from afd.control.abort import Abort
from afd.control.channel import parse_address, socket_path
from afd.control.group import Control
from afd.control.hub import LocalHub, open_hub
from afd.control.messages import Attach, Bye, Challenge, Step, encode
from afd.control.session import RankSession
from afd.control.step_sender import StepSender
from afd.control.steps import StepListener
from afd.errors import AFDError, PeerAbsentError
from afd.topology import Rank
from tests.unit.control.agents import Agents, ended, until
from tests.unit.control.noise import ANSWERS, FRAMES, MESSAGES, NOISE, frame, noise, say

T = TypeVar("T")
A0, A1, F0 = Rank.parse("A0"), Rank.parse("A1"), Rank.parse("F0")
EPOCH = "e" * 12
TOKEN = "correct horse battery staple"
LIMIT_S = 30.0

# Without the phase that makes a failing example smaller: an example may have to wait for a deadline.
few = settings(max_examples=40, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
fewer = settings(few, max_examples=12)


class Loop:
    """An event loop in a thread of its own, so that hypothesis can talk to what runs there."""

    def __init__(self, **defaults: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="agents")
        self._thread.start()
        self.crashes: list[dict[str, Any]] = []
        self._loop.set_exception_handler(lambda _, context: self.crashes.append(context))
        self.agents = Agents(**defaults)

    def start(self, work: Awaitable[T]) -> Future[T]:
        async def run() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(run(), self._loop)

    def run(self, work: Awaitable[T]) -> T:
        return self.start(work).result(LIMIT_S)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.agents.port), timeout=8)

    def close(self) -> None:
        try:
            self.run(self.agents.__aexit__(None, None, None))
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
            self._loop.close()


@contextmanager
def agents(**defaults: Any) -> Iterator[Loop]:
    loop = Loop(**defaults)
    try:
        yield loop
    finally:
        loop.close()
    assert loop.crashes == []


@pytest.fixture(autouse=True)
def _no_error_in_the_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """asyncio writes what a connection's task raised into its log."""
    yield
    crashed = [record for record in caplog.records if record.levelno >= logging.ERROR and record.exc_info]
    assert not crashed, crashed[0].exc_info


def guard(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    return {"auth": Auth(token_file=str(tmp_path / "token"))}


# ---- the rendezvous ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", ["attention", "ffn"])
def test_a_rendezvous_with_a_token_survives_everything_that_strangers_say(tmp_path: Path, late: str) -> None:
    """Both before the group is complete and when it is: nothing that lacks the proof reaches the group."""
    with agents(attention=2, rendezvous_s=60.0, **guard(tmp_path)) as loop:
        root = loop.start(loop.agents.join("ffn"))
        loop.run(until(lambda: "F0" in loop.agents.seen and loop.agents.seen["F0"].waits != []))
        joining = [loop.start(loop.agents.join("attention", 0))]
        group: list[Control] = []
        if late == "ffn":
            joining.append(loop.start(loop.agents.join("attention", 1)))
            group = [root.result(LIMIT_S), *(one.result(LIMIT_S) for one in joining)]

        @few
        @given(NOISE)
        def strangers(pieces: list[bytes]) -> None:
            say(loop.connect, pieces, hear=True)
            assert all(control.abort.cause is None for control in group)

        strangers()
        if late == "attention":
            joining.append(loop.start(loop.agents.join("attention", 1)))
            group = [root.result(LIMIT_S), *(one.result(LIMIT_S) for one in joining)]
        assert len({control.epoch for control in group}) == 1
        for control in group:
            assert control.abort.cause is None


def test_a_running_group_without_a_token_survives_everything_that_strangers_say() -> None:
    with agents() as loop:
        ffn, attention = loop.run(loop.agents.pair())

        @few
        @given(NOISE)
        def strangers(pieces: list[bytes]) -> None:
            say(loop.connect, pieces, hear=True)
            assert ffn.abort.cause is None is attention.abort.cause

        strangers()
        values = loop.run(both(ffn, attention))
        assert values == [{A0: "a", F0: "f"}] * 2


async def both(ffn: Control, attention: Control) -> list[Any]:
    return list(
        await asyncio.gather(ffn.exchange("k", {F0: "f"}, 5.0), attention.exchange("k", {A0: "a"}, 5.0))
    )


def of_epoch(message: Any, epoch: str) -> bytes:
    """The frame of a message, made to be of this epoch when it speaks of one at all."""
    named = "epoch" in message.__struct_fields__
    return frame(msgspec.structs.replace(message, epoch=epoch) if named else message)


@fewer
@given(st.one_of(*MESSAGES.values()).filter(lambda message: not isinstance(message, Bye)))
def test_an_agent_that_was_let_in_and_talks_nonsense_ends_the_epoch_with_a_cause(message: Any) -> None:
    with agents() as loop:
        ffn, attention = loop.run(loop.agents.pair())
        loop.run(write(attention, of_epoch(message, ffn.epoch)))
        loop.run(write(attention, b"and no frame"))
        assert str(loop.run(ended(ffn)))
        assert str(loop.run(ended(attention)))


@fewer
@given(st.one_of(*MESSAGES.values()).filter(lambda message: not isinstance(message, Bye)))
def test_a_root_that_talks_nonsense_ends_the_epoch_with_a_cause(message: Any) -> None:
    with agents() as loop:
        ffn, attention = loop.run(loop.agents.pair())
        waiting = loop.start(attention.exchange("k", {A0: "a"}, 5.0))
        loop.run(tell(ffn, of_epoch(message, ffn.epoch)))
        loop.run(asyncio.sleep(0.02))
        assert [str(peer.ranks[0]) for peer in attention.peers()] in (["F0"], [])
        loop.run(tell(ffn, b"and no frame"))
        assert str(loop.run(ended(attention)))
        with pytest.raises(AFDError):
            waiting.result(LIMIT_S)


async def tell(root: Any, data: bytes) -> None:
    root._agents[0].link._writer.write(data)


async def write(control: Any, data: bytes) -> None:
    control._link._writer.write(data)


async def gather(*work: Awaitable[Any]) -> None:
    await asyncio.gather(*work)


CHALLENGE = encode(Challenge(nonce=b"n" * 16, token=False))
ROOTS = st.builds(lambda frames: [CHALLENGE, *frames], st.lists(ANSWERS, min_size=1, max_size=2))
"""What sounds like a root for as long as it can."""


@fewer
@given(st.lists(NOISE | ROOTS, min_size=1, max_size=2))
def test_a_joiner_survives_whatever_answers_at_the_address_and_joins_the_root_that_comes_later(
    connections: list[list[bytes]],
) -> None:
    with agents(rendezvous_s=20.0) as loop:
        with socket.create_server(("127.0.0.1", loop.agents.port)) as server:
            joining = loop.start(loop.agents.join("attention"))
            for pieces in connections:
                while not joining.done():  # it may have been refused for good
                    if select.select([server], [], [], 0.02)[0]:
                        say(lambda: server.accept()[0], pieces, hear=True)
                        break
        root = loop.start(loop.agents.join("ffn"))
        try:
            joined = joining.result(LIMIT_S)
        except AFDError:  # it was refused in words that a root could have said
            joined = loop.run(loop.agents.join("attention"))
        assert joined.epoch == root.result(LIMIT_S).epoch


# ---- the local hub -----------------------------------------------------------------------------------------------


async def hubs(loop: Loop, scope: list[Any]) -> tuple[Control, LocalHub]:
    ffn, _ = await loop.agents.pair()
    opening = open_hub(ffn)
    scope.append(opening)
    return ffn, await opening.__aenter__()


def unix(hub: LocalHub) -> Callable[[], socket.socket]:
    def connect() -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(socket_path(hub.address))
        return sock

    return connect


def test_the_local_socket_survives_everything_that_does_not_attach() -> None:
    """Who attaches and leaves without a goodbye is a process that was killed, which ends the epoch."""
    scope: list[Any] = []
    with agents() as loop:
        control, hub = loop.run(hubs(loop, scope))

        @few
        @given(noise("Attach"))
        def strangers(pieces: list[bytes]) -> None:
            say(unix(hub), pieces, hear=True)
            assert control.abort.cause is None

        strangers()
        session = RankSession.attach(hub.address, F0)
        assert session.epoch == control.epoch
        session.close("done")
        loop.run(until(lambda: hub.attached == ()))
        assert control.abort.cause is None
        loop.run(scope[0].__aexit__(None, None, None))


@fewer
@given(st.one_of(*MESSAGES.values()).filter(lambda message: not isinstance(message, Bye)))
def test_a_process_that_attaches_and_talks_nonsense_ends_the_epoch_with_a_cause(message: Any) -> None:
    with agents() as loop:
        scope: list[Any] = []
        control, hub = loop.run(hubs(loop, scope))
        with unix(hub)() as sock:
            sock.settimeout(8)
            sock.sendall(encode(Attach(rank="F0", pid=4711, kind="rank")))
            assert sock.recv(1 << 16)
            say(lambda: sock, [of_epoch(message, control.epoch), b"and no frame"], hear=True)
        assert str(loop.run(ended(control)))
        loop.run(scope[0].__aexit__(None, None, None))


# ---- the step channel --------------------------------------------------------------------------------------------


@contextmanager
def listening(*expected: Rank, token: bytes | None = None) -> Iterator[StepListener]:
    listener = StepListener(F0, EPOCH, expected, abort=Abort(), step_s=5.0, token=token)
    try:
        yield listener
    finally:
        listener.close("the test has ended")


def connected(listener: StepListener, rank: Rank, token: bytes | None = None) -> StepSender:
    sender = StepSender(rank, EPOCH, abort=Abort(), step_s=5.0, token=token)
    thread = threading.Thread(target=listener.connect_all, args=(5.0,))
    thread.start()
    sender.connect({F0: listener.address}, 5.0)
    thread.join(5)
    return sender


def step(number: int) -> Step:
    return Step(epoch=EPOCH, step=number, rank="A0", phase="eager", real=(1,), padded=(1,))


@pytest.mark.parametrize("token", [None, TOKEN.encode()], ids=["without-token", "with-token"])
def test_a_step_channel_survives_everything_that_strangers_say(token: bytes | None) -> None:
    """Without a token, who says hello as an expected rank is that rank, started again: that is another test."""
    said = noise("StepHello") if token is None else NOISE
    with listening(A0, token=token) as listener:
        a0 = connected(listener, A0, token)
        number = 0

        @few
        @given(said)
        def strangers(pieces: list[bytes]) -> None:
            nonlocal number
            say(lambda: socket.create_connection(parse_address(listener.address), timeout=5), pieces)
            for _ in range(2):  # what the stranger said is read before, between or after what the rank says
                number += 1
                a0.send(step(number))
                assert listener.next(timeout_s=5.0) == {A0: step(number)}
                assert listener.next(timeout_s=0.002) == {}

        strangers()
        a0.close("done")


def test_a_rank_that_announces_nonsense_ends_the_channel_with_its_name_and_the_next_one_serves() -> None:
    @few
    @given(FRAMES, st.booleans())
    def nonsense(data: bytes, between: bool) -> None:
        with listening(A0) as listener:
            a0 = connected(listener, A0)
            if between:
                a0.send(step(1))
                assert listener.next(timeout_s=5.0) == {A0: step(1)}
            (connection,) = a0._targets.values()
            connection._sock.sendall(data + b"and no frame")
            with pytest.raises(AFDError) as info:
                while listener.next(timeout_s=5.0):
                    pass
            assert str(info.value)
            assert not isinstance(info.value, PeerAbsentError)
            a0.close("done")

    nonsense()
    with listening(A0) as listener:
        a0 = connected(listener, A0)
        a0.send(step(1))
        assert listener.next(timeout_s=5.0) == {A0: step(1)}
        a0.close("done")
