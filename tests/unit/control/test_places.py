# SPDX-License-Identifier: Apache-2.0
"""Who may take which place in a group of several agents: the cause is told on every side, within seconds of the later
hello, and whoever may come back does. F0 is the root, and A0 and A1 have agents of their own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from afd.control.abort import Cause
from afd.control.group import Control
from afd.control.joiner import Joiner
from afd.control.messages import (
    AbortNotice,
    Bye,
    Challenge,
    Gathered,
    Heartbeat,
    Join,
    Offer,
    PeerRow,
    Waiting,
    Welcome,
    encode,
)
from afd.control.root import Root
from afd.errors import MismatchError, PeerAbsentError, PeerLostError
from tests.unit.control.agents import Agents, ended, hello_of, until
from tests.unit.control.test_handshake import OTHER, SAME
from tests.unit.control.test_rendezvous import TOKEN, WRONG, outcomes, token_file, told

T = TypeVar("T")
LIMIT_S = 5.0
STRANGER = PeerRow(role="router", ranks=(3,), host="h", state="ready", last_seen_s=0.0)


def run(work: Callable[[Agents], Awaitable[T]], **defaults: Any) -> T:
    async def main() -> T:
        async with Agents(**{"attention": 2, **defaults}) as agents:
            return await work(agents)

    return asyncio.run(main())


@asynccontextmanager
async def in_time() -> Any:
    """What is inside happens within the bound that everybody is promised after the later hello."""
    start = time.monotonic()
    yield
    assert time.monotonic() - start < LIMIT_S


async def trio(agents: Agents) -> tuple[Control, Control, Control]:
    f0, a0, a1 = await asyncio.gather(
        agents.join("ffn"), agents.join("attention", 0), agents.join("attention", 1)
    )
    return f0, a0, a1


async def waiting_for(
    agents: Agents, missing: str, *joins: Awaitable[Control]
) -> list[asyncio.Future[Control]]:
    """Start these agents and wait until the root says that only ``missing`` is missing."""
    started = [asyncio.ensure_future(join) for join in joins]
    await until(lambda: told(agents, "F0", missing))
    return started


# ---- what differs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", OTHER)
def test_one_agent_of_a_role_that_differs_ends_all_agents_of_both_roles_with_the_field(field: str) -> None:
    """Every field that must agree, versions among them. All but the last to come are connected already."""

    async def work(agents: Agents) -> None:
        same = {"transport": "shm"}  # "auto" would fit every transport
        # FFN does not say how Attention's ranks form groups.
        a0 = {**same, **(other(field, agents, 1) if field.startswith("tensor-parallel") else {})}
        joins = [agents.join("ffn", **same), agents.join("attention", 0, **a0)]
        early = await waiting_for(agents, "A1", *joins)
        async with in_time():
            found = await outcomes(*early, agents.join("attention", 1, **{**same, **other(field, agents, 2)}))
        assert [type(one) for one in found] == [MismatchError] * 3
        assert len({str(one) for one in found}) == 1
        (difference,) = found[0].differences
        assert difference.field == field
        assert {"A0", "A1"} <= difference.values.keys()
        assert difference.values["A0"] != difference.values["A1"]

    run(work)


def other(field: str, agents: Agents, tp: int) -> dict[str, Any]:
    """The change of the table, for a hello of these agents."""
    layout = agents.hello("attention").layout
    if field.startswith("tensor-parallel"):
        return {"layout": type(layout)(num_attention=2, num_ffn=1, order=layout.order, attention_tp=tp)}
    if "layout" in OTHER[field]:
        changed = OTHER[field]["layout"]
        counts = {"num_attention": 4 if changed.num_attention != SAME.layout.num_attention else 2}
        return {"layout": type(layout)(**counts, num_ffn=changed.num_ffn, order=changed.order)}
    return OTHER[field]


def test_a_wrong_token_of_one_agent_is_refused_on_both_sides_and_the_others_wait_for_the_right_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    right, wrong = token_file(tmp_path / "right", TOKEN), token_file(tmp_path / "wrong", WRONG)
    text = "the token of A1 is not that of F0"

    async def work(agents: Agents) -> None:
        early = await waiting_for(
            agents, "A1", agents.join("ffn", config=right), agents.join("attention", 0, config=right)
        )
        async with in_time():
            with pytest.raises(MismatchError, match=text):
                await agents.join("attention", 1, config=wrong)
            await until(lambda: text in agents.seen["F0"].waits[-1].detail)
        assert not any(one.done() for one in early)
        group = await asyncio.gather(*early, agents.join("attention", 1, config=right))
        assert len({one.epoch for one in group}) == 1

    run(work)
    assert text in caplog.text


# ---- two for one place -------------------------------------------------------------------------------------


def test_two_agents_that_claim_one_place_do_not_push_each_other_out_for_ever() -> None:
    """The later one takes the place, the earlier one ends with the reason and does not come back by itself."""

    async def work(agents: Agents) -> None:
        root, earlier = await waiting_for(agents, "A1", agents.join("ffn"), agents.join("attention", 0))
        async with in_time():
            later = asyncio.ensure_future(agents.join("attention", 0))
            with pytest.raises(
                PeerLostError, match="rank restarted: A0 said hello again from host-attention"
            ):
                await earlier
        await asyncio.sleep(0.3)
        assert told(agents, "F0", "A1") and not later.done()
        group = await asyncio.gather(root, later, agents.join("attention", 1))
        assert len({one.epoch for one in group}) == 1

    run(work)


def test_an_agent_of_several_ranks_of_which_another_claims_one_leaves_with_all_of_them() -> None:
    async def work(agents: Agents) -> None:
        root, both = await waiting_for(agents, "A2", agents.join("ffn"), agents.join("attention", 0, 1))
        async with in_time():
            one = asyncio.ensure_future(agents.join("attention", 1))
            with pytest.raises(PeerLostError, match="rank restarted: A1 said hello again"):
                await both
        await until(lambda: told(agents, "F0", "A0, A2"))
        group = await asyncio.gather(root, one, agents.join("attention", 0), agents.join("attention", 2))
        assert len({control.epoch for control in group}) == 1

    run(work, attention=3)


def test_two_agents_for_one_place_of_a_running_group_end_its_epoch_for_all_and_the_next_group_has_one() -> (
    None
):
    async def work(agents: Agents) -> None:
        old = await trio(agents)
        async with in_time():
            newcomer = asyncio.ensure_future(agents.join("attention", 1))
            causes = [await ended(control) for control in old]
        assert len({cause.message for cause in causes}) == 1
        assert "rank restarted: A1 said hello again" in causes[0].message
        assert {cause.rank for cause in causes} == {"A1"}
        assert not newcomer.done(), "a group has no place for it until the old one has ended"
        for control in old:
            await control.close("ended")
        new = await asyncio.gather(agents.join("ffn"), agents.join("attention", 0), newcomer)
        assert len({control.epoch for control in new}) == 1
        assert new[0].epoch != old[0].epoch

    run(work)


# ---- restarts and old epochs -------------------------------------------------------------------------------


def test_an_agent_whose_host_died_during_the_rendezvous_may_come_again_from_another_one() -> None:
    """Its old connection is open, for all that the root can see."""

    async def work(agents: Agents) -> None:
        (root,) = await waiting_for(agents, "A0, A1", agents.join("ffn"))
        reader, writer = await asyncio.open_connection("127.0.0.1", agents.port)
        await reader.read(1 << 16)
        hello = agents.hello("attention", 0, heartbeat_s=0.6)
        writer.write(encode(Join(hello=hello, nonce=b"n" * 16)))
        await until(lambda: told(agents, "F0", "A1"))
        async with in_time():  # silent from now on: missed after three heartbeats, or pushed out before
            a0 = asyncio.ensure_future(agents.join("attention", 0))
            group = await asyncio.gather(root, a0, agents.join("attention", 1))
        assert len({control.epoch for control in group}) == 1
        writer.close()

    run(work)


def test_a_root_that_restarts_during_the_rendezvous_finds_all_agents_again() -> None:
    async def work(agents: Agents) -> None:
        root, a0 = await waiting_for(agents, "A1", agents.join("ffn"), agents.join("attention", 0))
        root.cancel()
        await asyncio.gather(root, return_exceptions=True)
        async with in_time():
            group = await asyncio.gather(agents.join("ffn"), a0, agents.join("attention", 1))
        assert len({control.epoch for control in group}) == 1

    run(work)


@pytest.mark.parametrize(
    "frame", [Offer(epoch="older", key="k", values={"A1": 1}, deadline_s=5.0), Heartbeat(epoch="older")]
)
def test_a_frame_of_an_old_epoch_from_one_agent_ends_the_epoch_for_all_with_its_rank(
    frame: Offer | Heartbeat,
) -> None:
    async def work(agents: Agents) -> None:
        group = await trio(agents)
        a1 = group[2]
        assert isinstance(a1, Joiner) and a1._link is not None
        async with in_time():
            a1._link.send(frame)
            causes = [await ended(control) for control in group]
        text = f"rank restarted: A1 speaks epoch older, the group is in epoch {group[0].epoch}"
        assert {(cause.message, cause.rank) for cause in causes} == {(text, "A1")}

    run(work)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (Heartbeat(epoch="older"), "rank restarted: F0 speaks epoch older"),
        (AbortNotice(epoch="older", cause=Cause("PeerLostError", "x")), "F0 speaks epoch older"),
        (Gathered(epoch="", key="k", values={"A0": 1}), "F0 broke the protocol: Gathered about A1, F0"),
        (Bye(epoch="", ranks=("F0", "F7"), reason="x"), "F0 broke the protocol: Bye about F7"),
        (Heartbeat(epoch="", peers=(STRANGER,)), "F0 broke the protocol: Heartbeat about router 3"),
    ],
    ids=["heartbeat", "verdict", "too-few-values", "goodbye-of-nobody", "a-peer-that-is-none"],
)
def test_a_root_that_speaks_of_another_epoch_or_group_is_lost_to_its_agents_with_that_reason(
    answer: Heartbeat | AbortNotice | Gathered | Bye, says: str
) -> None:
    async def work(agents: Agents) -> None:
        f0, a0, _ = await trio(agents)
        assert isinstance(f0, Root)
        link = next(agent.link for agent in f0._agents if agent.ranks == a0.ranks)
        async with in_time():
            link.send(msgspec.structs.replace(answer, epoch=answer.epoch or f0.epoch))
            cause = await ended(a0)
        assert says in cause.message and cause.rank == "F0"

    run(work)


# ---- who answers at the root's address ---------------------------------------------------------------------


F0_HELLO, A0_HELLO = hello_of("ffn", attention=2), hello_of("attention", 0, attention=2)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (Welcome(epoch="e", hellos=()), "welcomes to another group"),
        (Welcome(epoch="e", hellos=(A0_HELLO,)), "welcomes to another group: A0 instead of F0, A0, A1"),
        (Welcome(epoch="e", hellos=(hello_of("router"), A0_HELLO)), "welcomes to a group with unknown ranks"),
        (Welcome(epoch="e", hellos=(F0_HELLO, hello_of("attention", 0, 1))), "welcomes to another group"),
        (Welcome(epoch="", hellos=(F0_HELLO, A0_HELLO)), "welcomes to another group"),
        (Waiting(missing=("B7",), elapsed_s=0.0), "waits for something else"),
    ],
    ids=["empty", "without-root", "unknown-role", "without-this-agent", "without-epoch", "unknown-rank"],
)
def test_a_welcome_to_another_group_is_not_believed_and_is_what_is_said_at_the_deadline(
    answer: Welcome | Waiting, says: str
) -> None:
    async def work(agents: Agents) -> None:
        async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(encode(Challenge(nonce=b"n" * 16, token=False)))
            await reader.read(1 << 16)
            writer.write(encode(answer))
            await reader.read()
            writer.close()

        async with await asyncio.start_server(impostor, "127.0.0.1", agents.port):
            with pytest.raises(PeerAbsentError, match=rf"F0 did not arrive .*{says}"):
                await agents.join("attention", 0)

    run(work, rendezvous_s=0.6)
