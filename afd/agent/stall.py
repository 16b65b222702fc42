# SPDX-License-Identifier: Apache-2.0
"""Requests in flight, and nothing is computed: whether Attention's processes are stuck.

The rank that waits for a peer knows when that one makes no progress, but nobody waits for a rank that announces no
step. And no progress is no proof: the client of a finished answer may be slow to read it. So the agent asks for a token
of its own, which costs nothing while all is well.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NoReturn

from afd.errors import RoleFailedError

POLL_S = 0.25
STOPPED = 0.7
"""The part of ``step_s`` after which a stopped process is named: before an FFN rank (0.8) gives up its rank, or that of
another one that waits for it."""


class StallWatch:
    """Looks at how many requests are in flight and at what was computed; :attr:`stalled_s` is for readiness."""

    def __init__(
        self,
        inflight: Callable[[], int],
        progress: Callable[[], float],
        ask: Callable[[], Awaitable[None]] | None = None,
        step_s: float = math.inf,
    ) -> None:
        """``progress`` is another number when a layer of a step was computed. ``ask`` has one token generated, or
        raises RoleFailedError within ``step_s`` or so; without it the watch only looks."""
        self._inflight, self._progress, self._ask, self._step_s = inflight, progress, ask, step_s
        self._since: float | None = None

    @property
    def stalled_s(self) -> float | None:
        """For how long nothing has been computed since a request came; None when all is well. That the request is gone
        proves nothing: its client may have given up."""
        return None if self._since is None else time.monotonic() - self._since

    async def run(self) -> NoReturn:
        """Watch until cancelled. Raises RoleFailedError when requests wait and no token can be had."""
        done = self._progress()
        while True:
            await asyncio.sleep(POLL_S)
            before, done = done, self._progress()
            if done != before:
                self._since = None
            elif self._since is None:
                self._since = time.monotonic() if self._inflight() else None
            elif self._ask is not None and time.monotonic() - self._since > self._step_s:
                await self._prove(done, self._ask)
                self._since = None

    async def _prove(self, done: float, ask: Callable[[], Awaitable[None]]) -> None:
        since = self._since
        assert since is not None
        try:
            await ask()
        except RoleFailedError as error:
            if self._progress() != done:
                return
            raise RoleFailedError(
                f"requests came, and nothing was computed for {time.monotonic() - since:.0f} s; a request of the "
                "agent's own was not answered either: the API server, the engine or its worker is stuck",
                error.rank,
            ) from None


async def while_none_is_stopped(
    stalled_s: Callable[[], float | None], stopped: Callable[[str], RoleFailedError | None], limit_s: float
) -> NoReturn:
    """Watch until cancelled. Raises the error of a process that is stopped (SIGSTOP) while requests wait and nothing is
    computed, when that lasts for ``limit_s``.

    Shorter than others wait, who could only name the rank that waits for the stopped one. One that is stopped while
    nobody waits harms nobody.
    """
    since: float | None = None
    while True:
        await asyncio.sleep(POLL_S)
        error = stopped("nothing was computed for requests") if stalled_s() is not None else None
        if error is None:
            since = None
        elif since is None:
            since = time.monotonic()
        elif time.monotonic() - since > limit_s:
            raise error


async def first_failure(*watches: Coroutine[Any, Any, NoReturn]) -> RoleFailedError:
    """What the first of the watches raises; the others are cancelled."""
    tasks = [asyncio.create_task(watch) for watch in watches]
    try:
        await asyncio.gather(*tasks)
    except RoleFailedError as error:
        return error
    finally:
        for task in tasks:
            task.cancel()
    raise AssertionError("a watch ends by raising only")
