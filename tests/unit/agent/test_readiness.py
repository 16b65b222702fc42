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
from afd.control.abort import Cause
from afd.errors import RoleFailedError
from afd.launch.free_ports import free_port
from tests.unit.agent.plans import FLOAT32, planned

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


async def warmed(plan: RolePlan, broken: str = "") -> list[str | None]:
    """Warm up against a server that does not answer requests to replica ``broken``. The replicas that were asked."""
    asked: list[str | None] = []

    async def complete(request: web.Request) -> web.Response:
        asked.append(request.headers.get("X-data-parallel-rank"))
        if asked[-1] == broken:
            return web.Response(status=500, text="EngineDeadError")
        return web.json_response(await request.json())

    app = web.Application()
    app.router.add_post("/v1/completions", complete)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", plan.api_port).start()
    try:
        await readiness.warm_up(plan)
    finally:
        await runner.cleanup()
    return asked


def replicated(checkpoint: Path, data: int, tensor: int) -> RolePlan:
    argv = (*FLOAT32, "--data-parallel-size", str(data), "--tensor-parallel-size", str(tensor))
    return bounded(planned(checkpoint, argv=argv, num_attention_ranks=data * tensor), STEP_S)


def test_a_warm_up_asks_each_replica_once_and_one_replica_without_a_name(checkpoint: Path) -> None:
    assert sorted(asyncio.run(warmed(replicated(checkpoint, 2, 1)))) == ["0", "1"]  # type: ignore[type-var]
    assert asyncio.run(warmed(replicated(checkpoint, 1, 2))) == [None]


def test_a_replica_that_does_not_answer_is_named_by_its_first_rank(checkpoint: Path) -> None:
    with pytest.raises(
        RoleFailedError, match="the warm-up request to A1 was answered 500: EngineDead"
    ) as info:
        asyncio.run(warmed(replicated(checkpoint, 2, 1), broken="1"))
    assert info.value.rank == "A1"
    assert str(Cause.of(info.value, "A0")).startswith("A1: the warm-up request to A1")


@pytest.mark.parametrize(("late_s", "answered"), [(STEP_S * 1.2, True), (60.0, False)])
def test_a_first_request_is_given_up_only_after_a_rank_that_waits_in_vain_had_its_say(
    plan: RolePlan, late_s: float, answered: bool
) -> None:
    async def complete(request: web.Request) -> web.Response:
        await asyncio.sleep(late_s)
        return web.json_response({})

    async def warm_up() -> None:
        app = web.Application()
        app.router.add_post("/v1/completions", complete)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", plan.api_port).start()
        try:
            await asyncio.wait_for(readiness.warm_up(plan), 20.0)
        finally:
            await runner.cleanup()

    if answered:
        asyncio.run(warm_up())
        return
    with pytest.raises(RoleFailedError, match="the warm-up request was not answered within 2 s"):
        asyncio.run(warm_up())
