# SPDX-License-Identifier: Apache-2.0
"""What an agent says about itself on its port: state, peers, counters."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from afd.control.group import Control
from afd.errors import AFDError, MismatchError
from afd.observe.metrics import Metrics
from afd.observe.operator import Action
from afd.observe.server import open_server
from afd.observe.state import State, StateMachine
from afd.observe.status import Peer, Status, not_ready, timestamp
from afd.topology import Rank

if TYPE_CHECKING:
    from afd.agent.plan import RolePlan

log = logging.getLogger(__name__)

STEPS, BYTES = "afd_steps_total", "afd_hop_bytes_total"


class AgentStatus:
    """The agent's :class:`~afd.observe.status.StatusSource`. Belongs to the agent's event loop."""

    def __init__(self, plan: RolePlan) -> None:
        self._plan = plan
        self._machine = StateMachine(on_change=lambda state: log.info("state: %s", state))
        self._metrics = Metrics(self.status)
        self._control: Control | None = None
        self._last_error: str | None = None
        self._restarts = 0
        self._last_restart_s: float | None = None
        self._starting_again = ""
        self._last_step: float | None = None
        self.stalled_s: Callable[[], float | None] = lambda: None
        """For how long requests have been in flight without a step. Belongs to one epoch."""
        self.port = plan.agent_port
        self.waiting_for: tuple[str, ...] = ()
        self.transport = plan.config.transport

    @asynccontextmanager
    async def serve(self, actions: Mapping[str, Action] | None = None) -> AsyncIterator[None]:
        """Answer on the agent port inside the block; ``actions`` are what operators may have done."""
        plan = self._plan
        async with open_server(
            self,
            self._metrics,
            host=plan.agent_host,
            port=plan.agent_port,
            actions=actions,
            token=plan.config.token,
        ) as server:
            self.port = server.port
            yield

    @property
    def state(self) -> State:
        """The state the role is in."""
        return self._machine.state

    def enter(self, state: str) -> None:
        """Go to a state; the way to ``ready`` passes all states between, however short they are.

        A role that drains or has ended does not become ready any more. Use :meth:`failed` for ``failed``.
        """
        target, here = State(state), self._machine.state
        if target in _ORDER:
            if here not in _ORDER:
                return
            for step in _ORDER[_ORDER.index(here) + 1 : _ORDER.index(target)]:
                if step is not State.CAPTURING:
                    self._machine.to(step)
        if not here.final:
            self._machine.to(target)

    def joined(self, control: Control) -> None:
        """The group is complete: a new epoch begins."""
        self._control = control
        self._metrics.next_epoch()
        self.waiting_for = ()

    def again(self, error: AFDError, attempt: str) -> None:
        """The epoch ended with ``error``, and the role starts again; ``attempt`` is "attempt 2 of 5"."""
        self._last_error, self._starting_again = self._plan.secrets.hide(str(error)), attempt
        self._restarts += 1
        self._metrics.restarted(type(error).__name__)
        self._control, self.stalled_s = None, lambda: None
        self._machine.to(State.STARTING, self._last_error)

    def ready_again(self, seconds: float) -> None:
        """The role is ready, ``seconds`` after it lost its last epoch."""
        self._last_restart_s, self._starting_again = seconds, ""

    def failed(self, error: AFDError) -> None:
        """The role ends with ``error``. The first one counts."""
        if self._machine.state.final:
            return
        self._last_error = self._plan.secrets.hide(str(error))
        if isinstance(error, MismatchError):
            for difference in error.differences:
                self._metrics.handshake_failed(difference.field)
        self._machine.fail(self._last_error)

    def report(self, rank: Rank, counters: Mapping[str, float]) -> None:
        """Take over what a rank process counted."""
        before = self._metrics.total(STEPS)
        self._metrics.report(rank, counters)
        if self._metrics.total(STEPS) > before:
            self._last_step = time.monotonic()

    @property
    def steps(self) -> int:
        """Steps that the role's ranks have done."""
        return int(self._metrics.total(STEPS))

    @property
    def progress(self) -> float:
        """A number that grows with every step, and with every layer of a step."""
        return self._metrics.total(STEPS) + self._metrics.total(BYTES)

    # ---- StatusSource -----------------------------------------------------------------------------------

    def status(self) -> Status:
        plan, control = self._plan, self._control
        return Status(
            version=plan.hello.versions["afd"],
            role=str(plan.role),
            rank=str(plan.ranks[0]),
            ranks=tuple(str(rank) for rank in plan.ranks),
            state=str(self._machine.state),
            since=timestamp(self._machine.since),
            topology={
                "num_attention": plan.config.num_attention_ranks,
                "num_ffn": plan.config.num_ffn_ranks,
                "order": str(plan.config.topology.order),
            },
            connector=plan.config.connector,
            transport=self.transport,
            runner=plan.hello.runner,
            model=plan.served_model,
            epoch=control.epoch if control else "",
            waiting_for=self.waiting_for,
            peers=_peers(control),
            config_revision=plan.hello.config_revision,
            steps=self.steps,
            restarts=self._restarts,
            last_restart_s=self._last_restart_s,
            last_step_age_s=None if self._last_step is None else time.monotonic() - self._last_step,
            last_error=self._last_error,
        )

    def not_live(self) -> str | None:
        if self._machine.state is State.FAILED:
            return self._machine.reason or "the role failed"
        return None

    def not_ready(self) -> str | None:
        # A moment later than the agent looks into it: a client that is slow to read makes no role unready.
        bound_s = self._plan.config.timeouts.step_s + 1.0
        reason = not_ready(self.status(), stuck_s=self.stalled_s(), bound_s=bound_s)
        return f"{self._starting_again}: {reason}" if reason and self._starting_again else reason


_ORDER = (
    State.STARTING,
    State.RENDEZVOUS,
    State.LOADING,
    State.CAPTURING,
    State.READY_TO_WARM,
    State.WARMING,
    State.READY,
)


def _peers(control: Control | None) -> tuple[Peer, ...]:
    if control is None:
        return ()
    return tuple(
        Peer(
            role=str(info.role),
            rank=str(rank),
            host=info.host,
            state=info.state,
            last_seen_s=info.last_seen_s,
        )
        for info in control.peers()
        for rank in info.ranks
    )
