# SPDX-License-Identifier: Apache-2.0
"""An API server that is slow is well; one that says nothing is not."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from afd.agent import readiness
from afd.agent.plan import RolePlan
from afd.errors import RoleFailedError
from afd.testing.free_ports import free_port
from tests.unit.agent.plans import planned

STEP_S = 1.0


@pytest.fixture
def plan(checkpoint: Path) -> RolePlan:
    return bounded(planned(checkpoint), STEP_S)


def bounded(made: RolePlan, step_s: float) -> RolePlan:
    timeouts = replace(made.config.timeouts, step_s=step_s)
    return replace(made, api_port=free_port(), config=replace(made.config, timeouts=timeouts))


async def watched(plan: RolePlan, answer_after_s: float, seconds: float) -> None:
    """Watch a server that answers that late. Raises what the watch raises."""

    async def health(request: web.Request) -> web.Response:
        await asyncio.sleep(answer_after_s)
        return web.Response()

    app = web.Application()
    app.router.add_get("/health", health)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", plan.api_port).start()
    try:
        await asyncio.wait_for(readiness.while_healthy(plan), seconds)
    finally:
        await runner.cleanup()


def test_a_server_that_is_slow_to_answer_goes_on(plan: RolePlan) -> None:
    with pytest.raises(asyncio.TimeoutError):  # nothing happened in all that time
        asyncio.run(watched(bounded(plan, 3.0), 1.0, 6.0))


def test_a_server_that_does_not_answer_for_step_s_is_stuck(plan: RolePlan) -> None:
    started = time.monotonic()
    with pytest.raises(RoleFailedError, match="the API server has not answered for 1 s: it is stuck"):
        asyncio.run(watched(plan, 60.0, 20.0))
    assert STEP_S * 0.9 < time.monotonic() - started < STEP_S + 8


def test_a_server_that_is_gone_is_stuck_too(plan: RolePlan) -> None:
    with pytest.raises(RoleFailedError, match="has not answered"):
        asyncio.run(asyncio.wait_for(readiness.while_healthy(plan), 20.0))
