# SPDX-License-Identifier: Apache-2.0
"""Requests that wait while nothing is computed are a failure; a client that is slow to read is none."""

from __future__ import annotations

import asyncio
import time
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
    progress: float = 0
    each_look: float = 0
    """How much progress is made until the agent looks again."""
    answer: Callable[[Role], None] = lambda role: None
    impatient: bool = False
    """Requests come and go, without an answer."""
    asked: int = 0
    stalls: list[float | None] = field(default_factory=list)

    async def ask(self) -> None:
        self.asked += 1
        self.answer(self)

    def look(self) -> float:
        if self.impatient:
            self.inflight = 1 - self.inflight
        self.progress += self.each_look
        return self.progress

    async def watched(self, seconds: float) -> float:
        """Watch it for at least that long, and return for how long it was. Raises what the watch raises."""
        watch = StallWatch(lambda: self.inflight, self.look, self.ask, STEP_S)
        running, started = asyncio.create_task(watch.run()), time.monotonic()
        while (elapsed := time.monotonic() - started) < seconds:
            await asyncio.sleep(0.02)
            self.stalls.append(watch.stalled_s)
            if running.done():
                running.result()
        running.cancel()
        return elapsed


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stall, "POLL_S", 0.02)


def unanswered(role: Role) -> None:
    raise RoleFailedError("the warm-up request failed: TimeoutError()")


def unanswered_but_computing(role: Role) -> None:
    role.progress += 1
    raise RoleFailedError("the warm-up request was answered 503: busy")


def answered(role: Role) -> None:
    role.progress += 1


def test_requests_for_which_nothing_is_computed_and_no_answer_to_ours_are_a_failure() -> None:
    role = Role(inflight=3, answer=unanswered)
    with pytest.raises(RoleFailedError, match=r"^requests came, and nothing was computed for 0 s; .* stuck$"):
        asyncio.run(role.watched(5.0))
    assert role.asked == 1


def test_clients_that_give_up_before_the_agent_looks_into_it_do_not_hide_a_failure() -> None:
    role = Role(answer=unanswered, impatient=True)
    with pytest.raises(RoleFailedError, match="nothing was computed"):
        asyncio.run(role.watched(5.0))


@pytest.mark.parametrize("answer", [answered, unanswered_but_computing])
def test_a_client_that_is_slow_to_read_costs_a_token_now_and_then(answer: Callable[[Role], None]) -> None:
    role = Role(inflight=1, answer=answer)
    elapsed = asyncio.run(role.watched(1.0))
    assert 1 <= role.asked <= elapsed / STEP_S


def test_for_how_long_nothing_was_computed_is_visible_until_it_is_proved_to_be_well() -> None:
    role = Role(inflight=1, answer=answered)
    asyncio.run(role.watched(1.0))
    assert None in role.stalls and any(role.stalls)


def test_a_role_that_has_nothing_to_do_or_computes_is_not_asked() -> None:
    idle, busy = Role(answer=unanswered), Role(inflight=1, each_look=0.001, answer=unanswered)
    asyncio.run(idle.watched(0.6))
    asyncio.run(busy.watched(0.6))
    assert idle.asked == busy.asked == 0
    assert set(idle.stalls) == set(busy.stalls) == {None}


STOPPED = RoleFailedError("VLLM::Worker (process 12) is stopped", "A1")


def test_a_process_that_is_stopped_while_requests_wait_is_named_after_a_while() -> None:
    began = time.monotonic()
    with pytest.raises(RoleFailedError, match="process 12") as info:
        asyncio.run(
            asyncio.wait_for(stall.while_none_is_stopped(lambda: 0.5, lambda effect: STOPPED, 0.3), 5)
        )
    assert info.value.rank == "A1"
    assert time.monotonic() - began > 0.3


@pytest.mark.parametrize(
    ("stalled_s", "pauses"), [(None, False), (0.5, True)], ids=["nobody waits", "goes on"]
)
def test_a_process_that_is_stopped_for_a_moment_or_while_nobody_waits_is_no_failure(
    stalled_s: float | None, pauses: bool
) -> None:
    looks = 0

    def stopped(effect: str) -> RoleFailedError | None:
        nonlocal looks
        looks += 1
        return None if pauses and looks % 2 else STOPPED

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(asyncio.wait_for(stall.while_none_is_stopped(lambda: stalled_s, stopped, 0.4), 2))
