# SPDX-License-Identifier: Apache-2.0
"""A group that stands: exchanges, one root cause, loss, goodbye."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from afd.control.abort import Cause
from afd.control.group import Control
from afd.control.joiner import Joiner
from afd.control.messages import Attached, Heartbeat, Offer
from afd.control.rendezvous import open_control
from afd.control.root import Root
from afd.errors import AFDError, ClosedError, MismatchError, MisuseError, PeerLostError, RoleFailedError
from afd.topology import Rank
from tests.unit.control.agents import Agents, ended, until

T = TypeVar("T")
F0, A0, A1 = Rank.parse("F0"), Rank.parse("A0"), Rank.parse("A1")


def run(work: Callable[[Agents], Awaitable[T]], **defaults: Any) -> T:
    async def main() -> T:
        async with Agents(**defaults) as agents:
            return await work(agents)

    return asyncio.run(main())


async def trio(agents: Agents) -> tuple[Control, Control, Control]:
    """F0 (root), A0 and A1, each with an agent of its own."""
    f0, a0, a1 = await asyncio.gather(
        agents.join("ffn"), agents.join("attention", 0), agents.join("attention", 1)
    )
    return f0, a0, a1


def joiner(control: Control) -> Joiner:
    assert isinstance(control, Joiner)
    return control


def cut(control: Control) -> None:
    """Break the connection of a joiner as a crash would."""
    link = joiner(control)._link
    assert link is not None
    link._writer.transport.abort()


def silence(control: Control) -> None:
    """Stop everything that an agent does on its own, as if its process were stopped; its sockets stay open."""
    for task in list(control._tasks):
        task.cancel()


# ---- exchange ---------------------------------------------------------------------------------------------


def test_an_exchange_gives_every_agent_the_values_of_all_ranks_in_world_order() -> None:
    async def work(agents: Agents) -> None:
        f0, a0, a1 = await trio(agents)
        for key in ("one", "two", "one"):  # a key may be used again
            found = await asyncio.gather(
                f0.exchange(key, {F0: ["x", 1]}, 5),
                a0.exchange(key, {A0: {"k": None}}, 5),
                a1.exchange(key, {A1: b"b"}, 5),
            )
            assert found[0] == found[1] == found[2] == {F0: ["x", 1], A0: {"k": None}, A1: b"b"}
            assert list(found[0]) == [F0, A0, A1]

    run(work, attention=2)


def test_an_agent_may_offer_its_ranks_one_by_one() -> None:
    async def work(agents: Agents) -> None:
        f0, a = await asyncio.gather(agents.join("ffn"), agents.join("attention", 0, 1))
        first, second = a.offer("k", {A1: 1}, 5), a.offer("k", {A0: 0}, 5)
        assert await f0.exchange("k", {F0: 2}, 5) == {F0: 2, A0: 0, A1: 1}
        assert await first == await second == {F0: 2, A0: 0, A1: 1}

    run(work, attention=2)


def test_exchanges_of_different_keys_do_not_mix() -> None:
    async def work(agents: Agents) -> None:
        ffn, attention = await agents.pair()
        found = await asyncio.gather(
            *(ffn.exchange(f"k{i}", {F0: i}, 5) for i in range(20)),
            *(attention.exchange(f"k{i}", {A0: -i}, 5) for i in reversed(range(20))),
        )
        assert found[:20] == [{F0: i, A0: -i} for i in range(20)]

    run(work)


def test_a_rank_that_offers_nothing_is_named_at_the_deadline_on_all_sides() -> None:
    async def work(agents: Agents) -> None:
        f0, a0, a1 = await trio(agents)
        start = time.monotonic()
        found = await asyncio.gather(
            f0.exchange("sizes", {F0: 1}, 0.3), a0.exchange("sizes", {A0: 1}, 0.3), return_exceptions=True
        )
        assert 0.25 < time.monotonic() - start < 1.5
        assert {str(error) for error in found} == {"A1 did not offer 'sizes' within 0.3 s; A0, F0 did"}
        assert {type(error) for error in found} == {PeerLostError}
        assert (await ended(a1)).error().exit_code == 71  # its own rank is to blame

    run(work, attention=2)


def test_values_that_must_agree_and_do_not_end_the_epoch_naming_field_values_and_ranks() -> None:
    async def work(agents: Agents) -> None:
        f0, a0, a1 = await trio(agents)
        found = await asyncio.gather(
            f0.exchange("resolved", {F0: {"tokens": 512, "dtype": "float32"}}, 5, must_agree=True),
            a0.exchange("resolved", {A0: {"tokens": 256, "dtype": "float32"}}, 5),
            a1.exchange("resolved", {A1: {"tokens": 512, "dtype": "float32"}}, 5),
            return_exceptions=True,
        )
        for error in found:
            assert isinstance(error, MismatchError)
            assert "resolved.tokens: 512 on F0, A1 but 256 on A0" in str(error)
            assert [d.field for d in error.differences] == ["resolved.tokens"]

    run(work, attention=2)


@pytest.mark.parametrize("values", [(1, 1), ({"a": 1}, {"a": 1}), ([1, 2], [1, 2])])
def test_values_that_must_agree_and_do_pass(values: tuple[Any, Any]) -> None:
    async def work(agents: Agents) -> None:
        ffn, attention = await agents.pair()
        await asyncio.gather(
            ffn.exchange("k", {F0: values[0]}, 5, must_agree=True),
            attention.exchange("k", {A0: values[1]}, 5, must_agree=True),
        )

    run(work)


def test_misuse_of_an_exchange_is_said_where_it_happens() -> None:
    async def work(agents: Agents) -> None:
        ffn, attention = await agents.pair()
        with pytest.raises(MisuseError, match="A0 is not of this agent"):
            await ffn.exchange("k", {A0: 1}, 5)
        with pytest.raises(MisuseError, match="cannot be sent"):
            await attention.exchange("twice", {A0: object()}, 5)
        with pytest.raises(MisuseError, match="cannot be sent"):
            await ffn.exchange("twice", {F0: object()}, 5)
        ffn.offer("twice", {F0: 1}, 5)
        with pytest.raises(MisuseError, match="F0 offers twice"):
            ffn.offer("twice", {F0: 2}, 5)
        assert ffn.abort.cause is None

    run(work)


def test_an_offer_for_foreign_ranks_over_the_wire_ends_the_epoch() -> None:
    async def work(agents: Agents) -> None:
        ffn, attention = await agents.pair()
        link = joiner(attention)._link
        assert link is not None
        link.send(Offer(epoch=ffn.epoch, key="k", values={"F0": 1}, deadline_s=5.0))
        assert "A0 offered 'k' for F0" in (await ended(ffn)).message

    run(work)


# ---- one root cause ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("blamed", ["F0", "A0", "A1"])
def test_a_failure_anywhere_is_the_same_cause_everywhere_and_wakes_all_waits(blamed: str) -> None:
    async def work(agents: Agents) -> None:
        controls = await trio(agents)
        waits = [asyncio.ensure_future(c.exchange("never", {c.ranks[0]: 1}, 60)) for c in controls[:2]]
        guilty = next(c for c in controls if str(c.ranks[0]) == blamed)
        await asyncio.sleep(0.05)
        start = time.monotonic()
        await guilty.fail(Cause("RoleFailedError", "out of memory", rank=blamed))
        causes = [await ended(control) for control in controls]
        assert time.monotonic() - start < 0.5
        assert {str(cause) for cause in causes} == {f"{blamed}: out of memory"}
        for control, cause in zip(controls, causes, strict=True):
            own = str(control.ranks[0]) == blamed
            assert type(cause.error()) is (RoleFailedError if own else PeerLostError)
        for wait in waits:
            with pytest.raises(AFDError, match=f"{blamed}: out of memory"):
                await asyncio.wait_for(wait, 1)
        with pytest.raises(AFDError, match="out of memory"):
            await controls[0].exchange("k", {F0: 1}, 5)

    run(work, attention=2)


def test_of_failures_at_the_same_time_the_first_at_the_root_wins_everywhere() -> None:
    async def work(agents: Agents) -> None:
        controls = await trio(agents)
        await asyncio.gather(
            *(
                c.fail(Cause("RoleFailedError", f"cause {i}", rank=str(c.ranks[0])))
                for i, c in enumerate(controls)
            )
        )
        assert len({str(c.abort.cause) for c in controls}) == 1

    run(work, attention=2)


def test_hearsay_waits_for_the_account_of_the_rank_to_blame() -> None:
    async def work(agents: Agents) -> None:
        ffn, attention = await agents.pair()
        heard = Cause("PeerLostError", "closed its step connection", rank="A0", hearsay=True)
        first = asyncio.ensure_future(ffn.fail(heard))
        await asyncio.sleep(0.05)
        assert ffn.abort.cause is None
        await attention.fail(Cause("RoleFailedError", "process 7 ended", rank="A0"))
        await first
        assert str(ffn.abort.cause) == str(attention.abort.cause) == "A0: process 7 ended"

    run(work)


def test_hearsay_becomes_the_cause_when_nobody_knows_better() -> None:
    async def work(agents: Agents) -> None:
        ffn, attention = await agents.pair()
        start = time.monotonic()
        await attention.fail(Cause("PeerLostError", "closed its step connection", rank="F0", hearsay=True))
        assert 0.2 < time.monotonic() - start < 1.5
        assert str(ffn.abort.cause) == str(attention.abort.cause) == "F0: closed its step connection"
        assert attention.abort.cause is not None and attention.abort.cause.error().exit_code == 70
        assert ffn.abort.cause is not None and ffn.abort.cause.error().exit_code == 71

    run(work)


def test_a_failure_that_was_only_heard_of_is_told_even_when_its_reporter_leaves_at_once() -> None:
    async def work(agents: Agents) -> None:
        ffn, attention = await agents.pair()
        report = asyncio.ensure_future(ffn.fail(Cause("PeerLostError", "closed", rank="A0", hearsay=True)))
        await asyncio.sleep(0)
        await ffn.close("done")
        await asyncio.wait_for(report, 1)
        assert str(await ended(attention)) == "A0: closed"

    run(work)


def test_an_exception_that_leaves_the_block_is_told_to_the_others() -> None:
    async def work(agents: Agents) -> None:
        async def broken() -> None:
            async with open_control(agents.config(), agents.hello("attention")):
                raise ValueError("no such file")

        task = asyncio.ensure_future(broken())
        ffn = await agents.join("ffn")
        cause = await ended(ffn)
        assert str(cause) == "A0: ValueError('no such file')"
        with pytest.raises(ValueError, match="no such file"):
            await task

    run(work)


def test_a_joiner_whose_root_does_not_decide_uses_its_own_cause() -> None:
    async def work(agents: Agents) -> None:
        ffn, attention = await agents.pair()
        assert isinstance(ffn, Root)
        ffn._claim = lambda cause: None  # type: ignore[method-assign]
        await attention.fail(Cause("RoleFailedError", "out of disk", rank="A0"))
        assert str(attention.abort.cause) == "A0: out of disk"

    run(work)


def test_a_failure_after_the_root_has_left_is_decided_at_once() -> None:
    async def work(agents: Agents) -> None:
        ffn, attention = await agents.pair()
        await ffn.close("drained")
        await until(lambda: bool(agents.seen["A0"].byes))
        start = time.monotonic()
        await attention.fail(Cause("RoleFailedError", "the engine died", rank="A0"))
        assert time.monotonic() - start < 0.5
        assert str(attention.abort.cause) == "A0: the engine died"

    run(work)


# ---- loss --------------------------------------------------------------------------------------------------


def test_a_connection_that_ends_without_goodbye_is_a_loss_at_once_named_with_pid_and_host() -> None:
    async def work(agents: Agents) -> None:
        f0, a0, a1 = await trio(agents)
        start = time.monotonic()
        cut(a0)
        causes = [await ended(f0), await ended(a1)]
        assert time.monotonic() - start < 0.5
        text = "A0: its agent (pid 4242 on host-attention) is gone: its connection closed without a goodbye"
        assert [str(cause) for cause in causes] == [text, text]
        assert [cause.error().exit_code for cause in causes] == [70, 70]
        assert "lost" in [p.state for p in f0.peers()]

    run(work, attention=2)


def test_a_root_that_is_gone_is_named_by_every_joiner() -> None:
    async def work(agents: Agents) -> None:
        f0, a0, a1 = await trio(agents)
        assert isinstance(f0, Root)
        for link in list(f0._links):
            link._writer.transport.abort()
        for control in (a0, a1):
            cause = await ended(control)
            assert str(cause).startswith("F0: its agent (pid 4242 on host-ffn) is gone")
            assert cause.error().exit_code == 70

    run(work, attention=2)


@pytest.mark.parametrize("stopped", ["ffn", "attention"])
def test_a_peer_that_falls_silent_is_lost_after_three_heartbeats(stopped: str) -> None:
    async def work(agents: Agents) -> None:
        ffn, attention = await agents.pair()
        quiet, other = (ffn, attention) if stopped == "ffn" else (attention, ffn)
        start = time.monotonic()
        silence(quiet)
        cause = await ended(other)
        assert 0.3 < time.monotonic() - start < 1.5  # heartbeat_s is 0.2 here
        assert cause.rank == str(quiet.ranks[0])
        assert "gave no sign of life for" in cause.message

    run(work)


def test_idle_peers_are_not_lost() -> None:
    async def work(agents: Agents) -> None:
        controls = await trio(agents)
        await asyncio.sleep(1.5)
        assert [c.abort.cause for c in controls] == [None] * 3
        assert all(p.last_seen_s < 0.6 for c in controls for p in c.peers())

    run(work, attention=2)


def test_an_agent_that_was_stopped_itself_does_not_blame_its_peers() -> None:
    async def work(agents: Agents) -> None:
        ffn, attention = await agents.pair()
        time.sleep(1.5)  # stops both: they share this event loop
        await asyncio.sleep(0.5)
        assert ffn.abort.cause is None is attention.abort.cause

    run(work)


@pytest.mark.parametrize(
    "frame", [Offer(epoch="older", key="k", values={"A0": 1}, deadline_s=5.0), Heartbeat(epoch="older")]
)
def test_a_frame_of_another_epoch_means_that_the_rank_restarted(frame: Offer | Heartbeat) -> None:
    async def work(agents: Agents) -> None:
        ffn, attention = await agents.pair()
        link = joiner(attention)._link
        assert link is not None
        link.send(frame)
        cause = await ended(ffn)
        assert cause.message == f"rank restarted: A0 speaks epoch older, the group is in epoch {ffn.epoch}"
        assert cause.rank == "A0"

    run(work)


def test_garbage_on_an_agents_connection_is_a_loss_that_says_so() -> None:
    async def work(agents: Agents) -> None:
        ffn, attention = await agents.pair()
        link = joiner(attention)._link
        assert link is not None
        link._writer.write(b"nonsense")
        assert "broke the protocol" in (await ended(ffn)).message

    run(work)


# ---- state and goodbye -------------------------------------------------------------------------------------


def test_states_are_seen_by_all_other_agents_at_once() -> None:
    async def work(agents: Agents) -> None:
        f0, a0, a1 = await trio(agents)
        a0.set_state("loading")
        f0.set_state("ready-to-warm")

        def seen(control: Control) -> dict[str, str]:
            return {str(p.ranks[0]): p.state for p in control.peers()}

        await until(lambda: seen(f0) == {"A0": "loading", "A1": ""})
        await until(lambda: seen(a1) == {"F0": "ready-to-warm", "A0": "loading"})
        await until(lambda: seen(a0) == {"F0": "ready-to-warm", "A1": ""})

    run(work, attention=2)


def test_a_goodbye_is_no_loss_and_all_hear_of_it() -> None:
    async def work(agents: Agents) -> None:
        f0, a0, a1 = await trio(agents)
        await a0.close("drained")
        await until(lambda: agents.seen["A1"].byes == [("A0", "drained")] == agents.seen["F0"].byes)
        await asyncio.sleep(0.8)
        assert f0.abort.cause is None is a1.abort.cause
        assert {str(p.ranks[0]): p.state for p in f0.peers()} == {"A0": "left", "A1": ""}
        with pytest.raises(ClosedError, match="control channel is closed"):
            await a0.exchange("k", {A0: 1}, 5)
        await a0.close("twice is harmless")

    run(work, attention=2)


def test_a_goodbye_of_the_root_is_no_loss_either() -> None:
    async def work(agents: Agents) -> None:
        ffn, attention = await agents.pair()
        start = time.monotonic()
        await ffn.close("drained")
        assert time.monotonic() - start < 0.5
        await until(lambda: agents.seen["A0"].byes == [("F0", "drained")])
        await asyncio.sleep(0.3)
        assert attention.abort.cause is None
        assert [p.state for p in attention.peers()] == ["left"]
        with pytest.raises(PeerLostError, match=r"F0 said goodbye \(drained\) but is needed for 'k'"):
            await attention.exchange("k", {A0: 1}, 5)

    run(work)


@pytest.mark.parametrize("first", ["goodbye", "exchange"])
def test_an_exchange_that_needs_a_rank_that_left_ends_with_its_name(first: str) -> None:
    async def work(agents: Agents) -> None:
        f0, a0, _ = await trio(agents)
        if first == "exchange":
            wait = asyncio.ensure_future(f0.exchange("k", {F0: 1}, 30))
            await asyncio.sleep(0.05)
        await a0.close("drained")
        if first == "goodbye":
            await until(lambda: bool(agents.seen["F0"].byes))
            wait = asyncio.ensure_future(f0.exchange("k", {F0: 1}, 30))
        with pytest.raises(PeerLostError, match=r"A0 said goodbye \(drained\) but is needed for 'k'"):
            await asyncio.wait_for(wait, 2)

    run(work, attention=2)


def test_a_message_that_does_not_belong_is_ignored() -> None:
    async def work(agents: Agents) -> None:
        ffn, attention = await agents.pair()
        link = joiner(attention)._link
        assert link is not None
        link.send(Attached(epoch=ffn.epoch))
        link.send(Heartbeat(epoch=ffn.epoch, state="x"))
        await until(lambda: ffn.peers()[0].state == "x")
        assert ffn.abort.cause is None

    run(work)
