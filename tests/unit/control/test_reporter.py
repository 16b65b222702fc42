# SPDX-License-Identifier: Apache-2.0
"""Counters reach the agent now and then, and once more at the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping

from afd.control.hub import open_hub
from afd.control.reporter import Reporter
from afd.control.session import RankSession
from afd.topology import Rank
from tests.unit.control.agents import Agents, until

A0 = Rank.parse("A0")
Reports = list[dict[str, float]]


def run(work: Callable[[RankSession, Reports], Awaitable[None]]) -> None:
    reports: Reports = []

    async def main() -> None:
        async with Agents() as agents:
            _, control = await agents.pair()

            def heard(process: object, counters: Mapping[str, float], state: str | None) -> None:
                reports.append(dict(counters))

            async with open_hub(control, on_report=heard) as hub:
                session = await asyncio.to_thread(RankSession.attach, hub.address, A0)
                try:
                    await work(session, reports)
                finally:
                    await asyncio.to_thread(session.close, "done")

    asyncio.run(asyncio.wait_for(main(), 30))


def test_what_changed_is_reported_and_what_did_not_is_not() -> None:
    values = {"afd_steps_total{phase=eager}": 1.0}

    async def work(session: RankSession, reports: Reports) -> None:
        reporter = Reporter(session, lambda: dict(values))
        await until(lambda: reports == [{"afd_steps_total{phase=eager}": 1.0}])
        await asyncio.sleep(0.6)
        assert len(reports) == 1
        values["afd_steps_total{phase=eager}"] = 2.0
        await until(lambda: len(reports) == 2)
        await asyncio.to_thread(reporter.close)

    run(work)


def test_the_last_values_are_reported_when_it_closes_and_its_thread_ends() -> None:
    values = {"afd_steps_total{phase=eager}": 1.0}

    async def work(session: RankSession, reports: Reports) -> None:
        others = set(threading.enumerate())
        reporter = Reporter(session, lambda: dict(values))
        values["afd_steps_total{phase=eager}"] = 9.0
        await asyncio.to_thread(reporter.close)
        await until(lambda: bool(reports) and reports[-1] == {"afd_steps_total{phase=eager}": 9.0})
        assert "afd-reporter" not in {thread.name for thread in set(threading.enumerate()) - others}
        await asyncio.to_thread(reporter.close)  # twice is fine

    run(work)
