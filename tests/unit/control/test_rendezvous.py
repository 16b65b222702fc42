# SPDX-License-Identifier: Apache-2.0
"""Meeting: any order, visible waiting, named absence, both-sided refusal, deaf to strangers."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from afd.config import Auth
from afd.control.abort import Cause
from afd.control.handshake import names
from afd.control.messages import MAGIC, Challenge, Heartbeat, Join, Waiting, encode
from afd.control.ports import listen
from afd.control.rendezvous import open_control
from afd.errors import AFDError, ConfigError, MismatchError, PeerAbsentError, PeerLostError
from afd.launch.free_ports import free_port
from tests.unit.control.agents import Agents, config_of, ended, until

T = TypeVar("T")
TOKEN, WRONG = "correct horse battery staple", "an entirely different secret"


def run(work: Callable[[Agents], Awaitable[T]], **defaults: Any) -> T:
    async def main() -> T:
        async with Agents(**defaults) as agents:
            return await work(agents)

    return asyncio.run(main())


async def outcomes(*joins: Awaitable[Any]) -> list[Any]:
    """Results or AFD's errors of several agents, and no other exception."""
    found = await asyncio.gather(*joins, return_exceptions=True)
    for one in found:
        if isinstance(one, BaseException) and not isinstance(one, AFDError):
            raise one
    return list(found)


def told(agents: Agents, agent: str, missing: str) -> bool:
    """Whether the last thing that ``agent`` said about its wait names exactly ``missing``."""
    seen = agents.seen.get(agent)
    return seen is not None and bool(seen.waits) and names(seen.waits[-1].missing) == missing


def token_file(path: Path, text: str) -> dict[str, Any]:
    path.write_text(text)
    path.chmod(0o600)
    return {"auth": Auth(token_file=str(path))}


@pytest.mark.parametrize(("ffn", "attention"), [(0.0, 0.4), (0.4, 0.0)])
def test_roles_may_start_in_either_order(ffn: float, attention: float) -> None:
    async def work(agents: Agents) -> None:
        f, a = await asyncio.gather(agents.join("ffn", delay=ffn), agents.join("attention", delay=attention))
        assert f.epoch == a.epoch != ""
        assert [str(p.ranks[0]) for p in f.peers()] == ["A0"]
        assert [str(p.ranks[0]) for p in a.peers()] == ["F0"]
        assert [h.role for h in f.hellos] == [h.role for h in a.hellos] == ["ffn", "attention"]

    run(work)


def test_a_role_may_have_several_agents_and_an_agent_several_ranks() -> None:
    async def work(agents: Agents) -> None:
        controls = await asyncio.gather(
            agents.join("attention", 0, 1),
            agents.join("attention", 3),
            agents.join("ffn", 1),
            agents.join("attention", 2),
            agents.join("ffn", 0),
        )
        assert len({control.epoch for control in controls}) == 1
        for control in controls:
            assert len(control.peers()) == 4

    run(work, attention=4, ffn=2)


def test_attention_is_the_root_when_it_comes_first_in_the_world() -> None:
    async def work(agents: Agents) -> None:
        f, a = await asyncio.gather(
            agents.join("ffn", config={"connector": "CAMAsyncAFDConnector"}),
            agents.join("attention", config={"connector": "CAMAsyncAFDConnector"}),
        )
        assert [h.role for h in f.hellos] == ["attention", "ffn"]
        assert a.epoch == f.epoch

    run(work)


def test_every_epoch_has_its_own_id() -> None:
    async def work(agents: Agents) -> str:
        f, _ = await agents.pair()
        return f.epoch

    assert run(work) != run(work)


def test_waiting_is_visible_on_both_sides_with_names_and_seconds(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    async def work(agents: Agents) -> None:
        await asyncio.gather(
            agents.join("ffn"), agents.join("attention", 0, delay=0.2), agents.join("attention", 1, delay=1.6)
        )
        root, joiner = agents.seen["F0"].waits, agents.seen["A0"].waits
        assert str(root[0]) == "waiting for A0, A1 … 0 s of 10 s"
        assert any([str(r) for r in w.missing] == ["A1"] and w.elapsed_s > 1 for w in root)
        assert any([str(r) for r in w.missing] == ["A1"] and "connected to" in w.detail for w in joiner)

    run(work, attention=2)
    assert "waiting for A0, A1 … 0 s of 10 s" in caplog.text


def test_a_missing_rank_is_named_on_both_sides_at_the_deadline() -> None:
    async def work(agents: Agents) -> None:
        start = time.monotonic()
        found = await outcomes(agents.join("ffn"), agents.join("attention", 0))
        assert 0.9 < time.monotonic() - start < 4
        assert [type(e) for e in found] == [PeerAbsentError] * 2
        for error in found:
            assert str(error).startswith("A1 did not arrive at 127.0.0.1:")
            assert "within 1 s" in str(error)

    run(work, attention=2, rendezvous_s=1.0)


def test_a_root_that_never_comes_is_named_with_the_last_attempt() -> None:
    async def work(agents: Agents) -> None:
        with pytest.raises(
            PeerAbsentError, match=r"F0 did not arrive at .* within 0.5 s \(last attempt: cannot connect"
        ):
            await agents.join("attention")

    run(work, rendezvous_s=0.5)


def test_a_joiner_that_comes_late_outlives_a_root_that_restarts() -> None:
    async def work(agents: Agents) -> None:
        first = asyncio.ensure_future(agents.join("ffn"))
        joiner = asyncio.ensure_future(agents.join("attention", 0))
        await until(lambda: told(agents, "A0", "A1"))
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        second, a0, _ = await asyncio.gather(agents.join("ffn"), joiner, agents.join("attention", 1))
        assert a0.epoch == second.epoch

    run(work, attention=2)


def test_a_joiner_that_leaves_before_the_group_is_complete_may_come_back() -> None:
    async def work(agents: Agents) -> None:
        root = asyncio.ensure_future(agents.join("ffn"))
        for _ in range(2):
            joiner = asyncio.ensure_future(agents.join("attention", 0))
            await until(
                lambda: (
                    any(str(w.missing[0]) == "A1" for w in agents.seen["F0"].waits[-1:])
                    if "F0" in agents.seen
                    else False
                )
            )
            joiner.cancel()
            await asyncio.gather(joiner, return_exceptions=True)
            await until(lambda: told(agents, "F0", "A0, A1"))
        await asyncio.gather(root, agents.join("attention", 0), agents.join("attention", 1))

    run(work, attention=2)


@pytest.mark.parametrize("late", ["ffn", "attention"])
def test_a_mismatch_ends_both_sides_at_once_with_field_values_and_ranks(late: str) -> None:
    async def work(agents: Agents) -> None:
        early = "ffn" if late == "attention" else "attention"
        start = time.monotonic()
        found = await outcomes(agents.join(early), agents.join(late, delay=0.3, gate="attention"))
        assert time.monotonic() - start < 3
        values = {"F0": "ffn", "A0": "ffn", ("F0" if late == "ffn" else "A0"): "attention"}
        for error in found:
            assert isinstance(error, MismatchError)
            assert [(d.field, dict(d.values)) for d in error.differences] == [("gate placement", values)]

    run(work)


def test_a_mismatch_reaches_agents_that_are_connected_and_those_that_come_a_little_later() -> None:
    async def work(agents: Agents) -> None:
        found = await outcomes(
            agents.join("ffn"),
            agents.join("attention", 0, delay=0.1),
            agents.join("attention", 1, delay=0.5, ids=True),
            agents.join("attention", 2, delay=1.5),
        )
        assert [type(e) for e in found] == [MismatchError] * 4
        assert all("ids mode" in str(e) for e in found)

    run(work, attention=3, ffn=1)


def test_a_mismatched_count_is_told_even_to_a_rank_that_only_one_side_knows() -> None:
    async def work(agents: Agents) -> None:
        joiner = agents.join("attention", 1, attention=2, config={"attention": 2})
        found = await outcomes(agents.join("ffn"), joiner)
        assert all("num_attention_ranks: 1 on F0 but 2 on A1" in str(e) for e in found)

    run(work)


def test_a_rank_that_has_no_place_is_refused() -> None:
    async def work(agents: Agents) -> None:
        found = await outcomes(agents.join("ffn"), agents.join("attention", 5))
        assert [type(e) for e in found] == [MismatchError] * 2
        assert "A5" in str(found[1])

    run(work)


def test_another_protocol_version_ends_both_sides_with_both_versions() -> None:
    async def work(agents: Agents) -> None:
        async def newer() -> bytes:
            await asyncio.sleep(0.2)
            reader, writer = await asyncio.open_connection("127.0.0.1", agents.port)
            writer.write(MAGIC + b"\x02\x00\x00\x00\x01x")
            answer = await reader.read()
            writer.close()
            return answer

        error, answer = await outcomes(agents.join("ffn"), newer())
        assert isinstance(error, MismatchError)
        assert "speaks protocol 2, this side speaks 1" in str(error)
        assert b"MismatchError" in answer

    run(work)


def test_a_joiner_names_both_protocol_versions_too() -> None:
    async def work(agents: Agents) -> None:
        async def newer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(MAGIC + b"\x02\x00\x00\x00\x01x")
            await reader.read()
            writer.close()

        async with await asyncio.start_server(newer, "127.0.0.1", agents.port):
            with pytest.raises(MismatchError, match=r"127.0.0.1:.* speaks protocol 2, this side speaks 1"):
                await agents.join("attention")

    run(work)


def test_the_right_token_lets_in(tmp_path: Path) -> None:
    async def work(agents: Agents) -> None:
        await agents.pair()

    run(work, **token_file(tmp_path / "token", TOKEN))


def test_a_wrong_token_is_refused_on_both_sides_and_in_no_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    right, wrong = token_file(tmp_path / "right", TOKEN), token_file(tmp_path / "wrong", WRONG)

    async def work(agents: Agents) -> None:
        root = asyncio.ensure_future(agents.join("ffn", config=right))
        with pytest.raises(MismatchError, match="the token of A0 is not that of F0") as info:
            await agents.join("attention", config=wrong)
        # Anybody could send a wrong token: it must not end the group, and the deadline says what happened.
        with pytest.raises(
            PeerAbsentError, match=r"A0 did not arrive .* the token of A0 is not that of F0"
        ) as absent:
            await root
        for secret in (TOKEN, WRONG):
            assert secret not in f"{info.value} {absent.value} {caplog.text}"

    run(work, rendezvous_s=0.6)


def test_after_a_wrong_token_the_right_one_still_gets_in(tmp_path: Path) -> None:
    right, wrong = token_file(tmp_path / "right", TOKEN), token_file(tmp_path / "wrong", WRONG)

    async def work(agents: Agents) -> None:
        root = asyncio.ensure_future(agents.join("ffn", config=right))
        with pytest.raises(MismatchError):
            await agents.join("attention", config=wrong)
        await asyncio.gather(root, agents.join("attention", config=right))

    run(work)


def test_a_root_that_does_not_know_the_token_is_refused_by_the_joiner(tmp_path: Path) -> None:
    right = token_file(tmp_path / "right", TOKEN)

    async def work(agents: Agents) -> None:
        async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(encode(Challenge(nonce=b"n" * 16, token=True)))
            await reader.read(1 << 16)
            writer.write(encode(Waiting(missing=("A1",), elapsed_s=0.0, proof=b"guess")))
            await reader.read()
            writer.close()

        async with await asyncio.start_server(impostor, "127.0.0.1", agents.port):
            with pytest.raises(MismatchError, match=r"the token of 127.0.0.1:.* is not that of A0"):
                await agents.join("attention", config=right)

    run(work)


@pytest.mark.parametrize("who", ["ffn", "attention"])
def test_a_token_on_one_side_only_is_a_mismatch(tmp_path: Path, who: str) -> None:
    token = token_file(tmp_path / "token", TOKEN)

    async def work(agents: Agents) -> None:
        other = "ffn" if who == "attention" else "attention"
        found = await outcomes(agents.join(who, config=token), agents.join(other))
        joiner = found[0 if who == "attention" else 1]
        assert isinstance(joiner, MismatchError)
        assert "has a token (auth.token_file)" in str(joiner)
        root = found[1 if who == "attention" else 0]
        # Without a token the root can be told; with one it believes nobody who does not prove it.
        assert isinstance(root, MismatchError if who == "attention" else PeerAbsentError)

    run(work, rendezvous_s=0.6)


def test_a_second_hello_ends_the_epoch_with_rank_restarted_and_the_newcomer_gets_the_next_one() -> None:
    async def work(agents: Agents) -> None:
        ffn, attention = await agents.pair()
        again = asyncio.ensure_future(agents.join("attention"))
        cause = await ended(ffn)
        assert (cause.kind, cause.rank) == ("PeerLostError", "A0")
        assert "rank restarted" in cause.message
        assert (await ended(attention)).message == cause.message
        await ffn.close("ended")
        await attention.close("ended")
        new_ffn, new_attention = await asyncio.gather(agents.join("ffn"), again)
        assert new_ffn.epoch == new_attention.epoch != ffn.epoch

    run(work)


def test_a_second_hello_before_the_group_is_complete_takes_the_place() -> None:
    async def work(agents: Agents) -> None:
        root = asyncio.ensure_future(agents.join("ffn"))
        old = asyncio.ensure_future(agents.join("attention", 0, delay=0.1))
        await asyncio.sleep(0.3)
        new = asyncio.ensure_future(agents.join("attention", 0))
        with pytest.raises(PeerLostError, match="rank restarted: A0 said hello again"):
            await old
        await asyncio.gather(root, new, agents.join("attention", 1))

    run(work, attention=2)


def test_with_rejoin_a_second_hello_waits_until_the_first_one_is_gone_and_ends_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work(agents: Agents) -> None:
        ffn, attention = await agents.pair()
        rival = asyncio.ensure_future(agents.join("attention"))
        await until(lambda: "put off the agent" in caplog.text)
        await asyncio.sleep(0.5)
        assert ffn.abort.cause is None is attention.abort.cause
        assert caplog.text.count("put off the agent") == 1
        detail = agents.seen["A0"].waits[-1].detail
        assert "A0 is taken by the agent with pid 4242 on host-attention, which gave a sign of life" in detail
        # The first one goes: that ends the epoch, and the rival has its place in the next one.
        await attention.fail(Cause("RoleFailedError", "it broke", rank="A0"))
        await asyncio.gather(attention.close("broken"), ffn.close("ended"))
        new, placed = await asyncio.gather(agents.join("ffn"), rival)
        assert new.epoch == placed.epoch != ffn.epoch

    run(work, on_loss="rejoin")


def test_with_rejoin_a_second_hello_before_the_group_is_complete_does_not_take_the_place() -> None:
    async def work(agents: Agents) -> None:
        root = asyncio.ensure_future(agents.join("ffn"))
        old = asyncio.ensure_future(agents.join("attention", 0))
        await until(lambda: told(agents, "F0", "A1"))
        new = asyncio.ensure_future(agents.join("attention", 0))
        await until(lambda: "A0 is taken" in "".join(wait.detail for wait in agents.seen["A0"].waits))
        await asyncio.gather(root, old, agents.join("attention", 1))
        assert not new.done()
        new.cancel()
        await asyncio.gather(new, return_exceptions=True)

    run(work, attention=2, on_loss="rejoin")


def test_a_stranger_with_another_configuration_does_not_end_a_running_group() -> None:
    async def work(agents: Agents) -> None:
        ffn, attention = await agents.pair()
        with pytest.raises(MismatchError, match="gate placement"):
            await agents.join("attention", gate="attention")
        assert ffn.abort.cause is None is attention.abort.cause

    run(work)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(range(7, 207)),
        b"AFD\x01\xff\xff\xff\xff",
        encode(Heartbeat(epoch="e")),
    ],
    ids=["silence", "http", "noise", "length", "heartbeat"],
)
def test_strangers_do_not_disturb_a_rendezvous_or_a_group(said: bytes) -> None:
    async def work(agents: Agents) -> None:
        root = asyncio.ensure_future(agents.join("ffn"))
        await asyncio.sleep(0.1)
        sockets = []
        for _ in range(3):
            sockets.append(socket.create_connection(("127.0.0.1", agents.port)))
            sockets[-1].sendall(said)
        ffn, attention = await asyncio.gather(root, agents.join("attention"))
        for sock in sockets:
            sock.close()
        with socket.create_connection(("127.0.0.1", agents.port)) as sock:
            sock.sendall(said)
            await asyncio.sleep(0.3)
        assert ffn.abort.cause is None is attention.abort.cause

    run(work)


def test_a_hello_with_another_roles_name_is_ignored() -> None:
    async def work(agents: Agents) -> None:
        root = asyncio.ensure_future(agents.join("ffn"))
        await asyncio.sleep(0.1)
        reader, writer = await asyncio.open_connection("127.0.0.1", agents.port)
        writer.write(encode(Join(hello=agents.hello("router"), nonce=b"n")))
        await asyncio.wait_for(reader.read(), 5)
        writer.close()
        await asyncio.gather(root, agents.join("attention"))

    run(work)


def test_something_else_at_the_address_is_said_at_the_deadline() -> None:
    async def work(agents: Agents) -> None:
        async def http(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        async with await asyncio.start_server(http, "127.0.0.1", agents.port):
            with pytest.raises(PeerAbsentError, match=r"F0 did not arrive .*does not speak AFD"):
                await agents.join("attention")

    run(work, rendezvous_s=0.6)


def test_a_port_in_use_is_a_configuration_error_that_names_pid_and_command_before_anything_else() -> None:
    code = (
        "import socket, sys, time\n"
        "s = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n"
        "print('up', flush=True)\n"
        "time.sleep(60)\n"
    )
    port = free_port()
    with subprocess.Popen([sys.executable, "-c", code, str(port)], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()

            async def main() -> None:
                async with open_control(config_of(port), Agents().hello("ffn")):
                    pass

            with pytest.raises(ConfigError) as info:
                asyncio.run(main())
            expected = f"the rendezvous needs 127.0.0.1:{port}, which is in use by pid {process.pid} ("
            assert str(info.value).startswith(expected)
            assert "create_server" in str(info.value)
            assert "--afd-port" in str(info.value)
        finally:
            process.kill()


def test_a_host_that_is_not_of_this_machine_means_all_addresses_for_the_root() -> None:
    for host in ("192.0.2.1", "no-such-host.invalid"):
        with listen(host, 0, "the rendezvous", "advice", elsewhere=True) as sock:
            assert sock.getsockname()[0] == "0.0.0.0"
        with pytest.raises(ConfigError, match="the agent port cannot listen on"):
            listen(host, 0, "the agent port", "advice")


@pytest.mark.parametrize(
    ("host", "token", "warned"), [("0.0.0.0", "", True), ("0.0.0.0", TOKEN, False), ("127.0.0.1", "", False)]
)
def test_a_rendezvous_that_is_open_to_everybody_is_a_warning_unless_a_token_guards_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, host: str, token: str, warned: bool
) -> None:
    guard = token_file(tmp_path / "token", token) if token else {}

    async def work(agents: Agents) -> None:
        root = {"host": host, **guard}
        await asyncio.gather(agents.join("ffn", config=root), agents.join("attention", config=guard))

    run(work)
    assert ("may join; set --afd-auth-token-file" in caplog.text) is warned


def test_starting_again_on_the_same_port_works_at_once() -> None:
    async def work(agents: Agents) -> None:
        for _ in range(3):
            ffn, attention = await agents.pair()
            await ffn.fail(Cause("RoleFailedError", "x", rank="F0"))
            await asyncio.gather(ffn.close("ended"), attention.close("ended"))

    run(work)
