# SPDX-License-Identifier: Apache-2.0
"""Requests that wait while nothing is computed are a failure; a client that is slow to read is none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from afd.agent import stall
from afd.agent.stall import StallWatch
from afd.errors import RoleFailedError

STEP_S = 0.2


@dataclass
class Role:
    """What the agent sees of its processes; ``answer`` is what becomes of a request of its own."""

    inflight: int = 0
    steps: int = 0
    answer: Callable[[Role], None] = lambda role: None
    asked: int = 0
    stalls: list[float | None] = field(default_factory=list)

    async def ask(self) -> None:
        self.asked += 1
        self.answer(self)

    async def watched(self, seconds: float, every: Callable[[Role], None] = lambda role: None) -> None:
        """Watch it for that long. Raises what the watch raises."""
        watch = StallWatch(lambda: self.inflight, lambda: self.steps, self.ask, STEP_S)
        running = asyncio.create_task(watch.run())
        for _ in range(round(seconds / 0.02)):
            await asyncio.sleep(0.02)
            every(self)
            self.stalls.append(watch.stalled_s)
            if running.done():
                running.result()
        running.cancel()


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stall, "POLL_S", 0.02)


def unanswered(role: Role) -> None:
    raise RoleFailedError("the warm-up request failed: TimeoutError()")


def unanswered_but_stepping(role: Role) -> None:
    role.steps += 1
    raise RoleFailedError("the warm-up request was answered 503: busy")


def one_more_step(role: Role) -> None:
    role.steps += 1


def test_requests_without_a_step_and_without_an_answer_to_ours_are_a_failure() -> None:
    role = Role(inflight=3, answer=unanswered)
    with pytest.raises(RoleFailedError, match=r"^3 requests in flight, and no step for 0 s; .* is stuck$"):
        asyncio.run(role.watched(2.0))
    assert role.asked == 1
    assert max(stalled or 0.0 for stalled in role.stalls) > STEP_S


@pytest.mark.parametrize("answer", [one_more_step, unanswered_but_stepping])
def test_a_client_that_is_slow_to_read_costs_a_token_now_and_then(answer: Callable[[Role], None]) -> None:
    role = Role(inflight=1, answer=answer)
    asyncio.run(role.watched(1.0))
    assert 2 <= role.asked <= 5


def test_a_role_that_steps_or_has_nothing_to_do_is_not_asked() -> None:
    idle, busy = Role(answer=unanswered), Role(inflight=1, answer=unanswered)
    asyncio.run(idle.watched(0.6))
    asyncio.run(busy.watched(0.6, every=one_more_step))
    assert idle.asked == busy.asked == 0
    assert set(idle.stalls) == {None}
