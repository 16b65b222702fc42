# SPDX-License-Identifier: Apache-2.0
"""What one agent has the whole group do: all hear of it, in one order, and rank processes say what came of it."""

from __future__ import annotations

import asyncio

from afd.control.messages import Command
from afd.control.session import RankSession
from afd.topology import Rank
from tests.unit.control.agents import Agents, until
from tests.unit.control.test_group import run, trio
from tests.unit.control.test_session import F0, Pair
from tests.unit.control.test_session import run as run_pair


def test_every_agent_hears_of_every_command_in_the_same_order_whoever_gave_it() -> None:
    async def work(agents: Agents) -> None:
        controls = await trio(agents)
        heard: list[list[tuple[str, str]]] = [[], [], []]
        for control, commands in zip(controls, heard, strict=True):
            control.on_command = lambda command, commands=commands: commands.append(
                (command.id, command.name)
            )
        given = [(control.command(f"do {number}"), f"do {number}") for number, control in enumerate(controls)]
        given += [(control.command("again"), "again") for control in reversed(controls)]
        await until(lambda: all(len(commands) == len(given) for commands in heard))
        assert heard[0] == heard[1] == heard[2]
        assert sorted(heard[0]) == sorted(given)

    run(work, attention=2)


async def obeying(session: RankSession, done: bool, text: str) -> Command:
    """What a process does between its steps: wait for a command and answer it."""
    while (command := session.next_command()) is None:
        await asyncio.sleep(0.01)
    session.answer(command, done, text)
    return command


def test_rank_processes_say_what_came_of_a_command_and_others_are_not_asked() -> None:
    async def work(pair: Pair) -> None:
        rank, engine = await pair.attach(F0), await pair.attach(Rank.parse("A0"))
        spectator = await asyncio.to_thread(RankSession.attach, pair.f_hub.address, None, "engine")
        command = Command(epoch=pair.ffn.epoch, id="1", name="profile start")
        asked = asyncio.ensure_future(pair.f_hub.command(command, 5.0))
        assert await obeying(rank, True, "started") == command
        outcomes = await asked
        assert {who: (outcome.done, outcome.text) for who, outcome in outcomes.items()} == {
            F0: (True, "started")
        }
        assert spectator.next_command() is None is engine.next_command()
        for session in (rank, engine, spectator):
            await asyncio.to_thread(session.close, "done")

    run_pair(work)


def test_a_process_that_does_not_answer_in_time_has_not_done_it_and_its_late_answer_is_no_failure() -> None:
    async def work(pair: Pair) -> None:
        session = await pair.attach(F0)
        outcomes = await pair.f_hub.command(Command(epoch=pair.ffn.epoch, id="1", name="x"), 0.2)
        assert (outcomes[F0].done, outcomes[F0].text) == (False, "not done after 0.2 s")
        await obeying(session, True, "late")
        later = asyncio.ensure_future(
            pair.f_hub.command(Command(epoch=pair.ffn.epoch, id="2", name="x"), 5.0)
        )
        await obeying(session, False, "cannot")
        assert ((await later)[F0].done, (await later)[F0].text) == (False, "cannot")
        assert pair.ffn.abort.cause is None
        await asyncio.to_thread(session.close, "done")

    run_pair(work)
