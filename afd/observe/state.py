# SPDX-License-Identifier: Apache-2.0
"""The states of a role and the steps between them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from enum import Enum

from afd.errors import MisuseError


class State(str, Enum):
    """Where a role is in its life. ``ready-to-warm`` counts as alive for peers, so that warmup is not circular."""

    STARTING = "starting"
    RENDEZVOUS = "rendezvous"
    LOADING = "loading"
    CAPTURING = "capturing"
    READY_TO_WARM = "ready-to-warm"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"

    def __str__(self) -> str:
        return self.value

    @property
    def final(self) -> bool:
        return self in (State.STOPPED, State.FAILED)


_FORWARD: Mapping[State, tuple[State, ...]] = {
    State.STARTING: (State.RENDEZVOUS,),
    State.RENDEZVOUS: (State.LOADING, State.STARTING),
    State.LOADING: (State.CAPTURING, State.READY_TO_WARM, State.STARTING),
    State.CAPTURING: (State.READY_TO_WARM, State.STARTING),
    State.READY_TO_WARM: (State.WARMING, State.DRAINING, State.STARTING),
    State.WARMING: (State.READY, State.DRAINING, State.STARTING),
    State.READY: (State.DRAINING, State.STARTING),
    State.DRAINING: (),
    State.STOPPED: (),
    State.FAILED: (),
}

TRANSITIONS: Mapping[State, frozenset[State]] = {
    state: frozenset(forward) if state.final else frozenset((*forward, State.STOPPED, State.FAILED))
    for state, forward in _FORWARD.items()
}
"""Everything that is allowed. A role may stop or fail at any time, and a role that rejoins starts again, unless it
drains; what has ended stays ended."""


class StateMachine:
    """The state of one role. Safe to use from any thread; ``on_change`` runs in the thread that changes it."""

    def __init__(
        self, *, clock: Callable[[], float] = time.time, on_change: Callable[[State], None] | None = None
    ) -> None:
        self._lock = threading.Lock()
        self._clock, self._on_change = clock, on_change
        self._entered: dict[State, float] = {State.STARTING: clock()}
        self._state = State.STARTING
        self._reason = ""

    @property
    def state(self) -> State:
        return self._state

    @property
    def reason(self) -> str:
        """Why it is in this state; the error of a failed role."""
        return self._reason

    @property
    def since(self) -> float:
        """When it entered this state, in seconds since 1970."""
        with self._lock:
            return self._entered[self._state]

    @property
    def entered(self) -> Mapping[State, float]:
        """When each state was entered, in seconds since 1970; states that were skipped are missing."""
        with self._lock:
            return dict(self._entered)

    def to(self, state: State, reason: str = "") -> None:
        """Go to ``state``; harmless when already there. Raises :class:`MisuseError` when there is no such step."""
        with self._lock:
            if state is self._state:
                return
            if state not in TRANSITIONS[self._state]:
                raise MisuseError(f"a role cannot go from {self._state} to {state}")
            self._enter(state, reason)
        if self._on_change is not None:
            self._on_change(state)

    def fail(self, reason: str) -> bool:
        """Go to ``failed``. False, and nothing changes, when the role has ended already: the first reason stays."""
        with self._lock:
            if self._state.final:
                return False
            self._enter(State.FAILED, reason)
        if self._on_change is not None:
            self._on_change(State.FAILED)
        return True

    def _enter(self, state: State, reason: str) -> None:
        self._state, self._reason = state, reason
        self._entered[state] = self._clock()
