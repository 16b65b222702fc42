# SPDX-License-Identifier: Apache-2.0
"""What Attention's agent asks of its API server: a free port before the start, its health, and a first answer."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable
from typing import NoReturn

import aiohttp

from afd.agent.plan import RolePlan
from afd.control import ports
from afd.control.channel import Deadline
from afd.errors import ConfigError, RoleFailedError
from afd.topology import Rank, Role

PORT_S = 2.0
"""How long the API server's port may still be in use."""
POLL_S = 0.05
REPLICA_HEADER = "X-data-parallel-rank"
"""vLLM's header that says which data-parallel replica serves a request."""
FIRST_WORD_S = 1.0
"""How much longer than a step a request may take: a rank that waits in vain for another one has the first word."""
HEALTH_S = 5.0
"""How often the API server is asked for its health while it serves."""


async def api_port(plan: RolePlan) -> None:
    """Refuse a port in use before anything else happens. What is left of a role that was killed a moment ago may
    hold it for a little longer."""
    if plan.role is not Role.ATTENTION or plan.headless:
        return
    host, advice = plan.api_host or "0.0.0.0", "choose another --port"
    deadline = time.monotonic() + PORT_S
    while True:
        try:
            ports.listen(host, plan.api_port, "the API server", advice).close()
            return
        except ConfigError as error:
            in_use = isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EADDRINUSE
            if not in_use or time.monotonic() > deadline:
                raise
        await asyncio.sleep(POLL_S)


async def until_healthy(plan: RolePlan, deadline: Deadline, waits: Callable[[], bool]) -> None:
    """Wait until the API server answers. Ends by the abort when its process does, and by ``deadline``; as long as its
    ranks only wait for those of the other role (``waits``), not before as much time again as a load may take."""
    longest = Deadline(2 * plan.config.timeouts.load_s)
    async with aiohttp.ClientSession() as session:
        while not deadline.passed or (waits() and not longest.passed):
            if await _healthy(session, plan):
                return
            await asyncio.sleep(POLL_S)  # it does not listen yet
    raise RoleFailedError(
        f"the API server did not become healthy within {plan.config.timeouts.load_s:.0f} s (load_s)"
    )


async def while_healthy(plan: RolePlan) -> NoReturn:
    """Ask for its health again and again. Raises RoleFailedError when it has not answered well for ``step_s``."""
    step_s = plan.config.timeouts.step_s
    period_s = min(HEALTH_S, step_s / 4)
    silent_s, since = 0.0, None
    async with aiohttp.ClientSession() as session:
        while silent_s < step_s:
            await asyncio.sleep(period_s)
            asked = time.monotonic()
            if await _healthy(session, plan, max(step_s - silent_s, period_s)):
                silent_s, since = 0.0, None
            else:  # from the first question that was not answered
                since = asked if since is None else since
                silent_s = time.monotonic() - since
    raise RoleFailedError(f"the API server has not answered for {silent_s:.0f} s: it is stuck")


async def _healthy(session: aiohttp.ClientSession, plan: RolePlan, timeout_s: float = 2.0) -> bool:
    timeout = aiohttp.ClientTimeout(total=max(timeout_s, POLL_S))
    try:
        async with session.get(f"{plan.api_url}/health", timeout=timeout) as response:
            await response.read()  # the connection can be used again
            return response.status == 200
    except (aiohttp.ClientError, asyncio.TimeoutError):
        return False


async def warm_up(plan: RolePlan) -> None:
    """One real request to each replica, all the way through FFN. Readiness speaks of generation, not of an open port.

    Raises RoleFailedError, which names the first rank of a replica that gave no token.
    """
    timeout = aiohttp.ClientTimeout(total=_answer_s(plan))
    headers = {"Authorization": f"Bearer {plan.api_key}"} if plan.api_key else {}
    async with aiohttp.ClientSession(timeout=timeout, headers=headers) as session:
        asking = [_ask(session, plan, number, rank) for number, rank in enumerate(plan.replicas)]
        answers = await asyncio.gather(*asking, return_exceptions=True)
    for error in answers:
        if error is not None:
            raise error


async def _ask(session: aiohttp.ClientSession, plan: RolePlan, number: int, rank: Rank) -> None:
    """Have replica ``number`` generate one token. Unless it is told, vLLM chooses the replica."""
    body = {"model": plan.served_model, "prompt": [1], "max_tokens": 1, "temperature": 0.0}
    several = len(plan.replicas) > 1
    headers = {REPLICA_HEADER: str(number)} if several else {}
    what = f"the warm-up request to {rank}" if several else "the warm-up request"
    try:
        async with session.post(f"{plan.api_url}/v1/completions", json=body, headers=headers) as response:
            if response.status != 200:
                text = (await response.text())[:300]
                raise RoleFailedError(f"{what} was answered {response.status}: {text}", str(rank))
            await response.read()
    except asyncio.TimeoutError:
        text = f"{what} was not answered within {_answer_s(plan):g} s"
        raise RoleFailedError(text, str(rank)) from None
    except aiohttp.ClientError as error:
        raise RoleFailedError(f"{what} failed: {error!r}", str(rank)) from error


def _answer_s(plan: RolePlan) -> float:
    return plan.config.timeouts.step_s + FIRST_WORD_S
