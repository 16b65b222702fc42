# SPDX-License-Identifier: Apache-2.0
"""Requests in flight, and no step: whether Attention's processes are stuck.

The rank that waits for a peer knows when that one makes no progress, but nobody waits for a rank that announces no
step. And no step is no proof: the client of a finished answer may be slow to read it. So the agent asks for a token of
its own, which costs nothing while all is well.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from afd.errors import RoleFailedError

POLL_S = 0.25


class StallWatch:
    """Looks at how many requests are in flight and how many steps were done; :attr:`stalled_s` is for readiness."""

    def __init__(
        self,
        inflight: Callable[[], int],
        steps: Callable[[], int],
        ask: Callable[[], Awaitable[None]],
        step_s: float,
    ) -> None:
        """``ask`` has one token generated, or raises RoleFailedError within ``step_s`` or so."""
        self._inflight, self._steps, self._ask, self._step_s = inflight, steps, ask, step_s
        self._since: float | None = None

    @property
    def stalled_s(self) -> float | None:
        """For how long requests have been in flight without a step; None when all is well."""
        return None if self._since is None else time.monotonic() - self._since

    async def run(self) -> None:
        """Watch until cancelled. Raises RoleFailedError when requests wait and no token can be had."""
        done = self._steps()
        while True:
            await asyncio.sleep(POLL_S)
            before, done = done, self._steps()
            if done != before or not self._inflight():
                self._since = None
            elif self._since is None:
                self._since = time.monotonic()
            elif time.monotonic() - self._since > self._step_s:
                await self._prove(done)
                self._since = None

    async def _prove(self, done: int) -> None:
        waiting, since = self._inflight(), self._since
        assert since is not None
        try:
            await self._ask()
        except RoleFailedError:
            if self._steps() != done:
                return
            raise RoleFailedError(
                f"{waiting} requests in flight, and no step for {time.monotonic() - since:.0f} s; a request of the "
                "agent's own was not answered either: the API server, the engine or its worker is stuck"
            ) from None
