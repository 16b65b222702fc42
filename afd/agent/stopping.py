# SPDX-License-Identifier: Apache-2.0
"""A stop on purpose: Attention finishes what is in flight and leaves, then FFN ends."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from afd.agent.plan import RolePlan
from afd.agent.processes import Processes
from afd.agent.stall import STOPPED, StallWatch, first_failure, while_none_is_stopped
from afd.control.abort import Cause
from afd.control.group import Control
from afd.control.handshake import names
from afd.control.hub import LocalHub
from afd.errors import RoleFailedError
from afd.topology import Rank, Role

log = logging.getLogger(__name__)

SETTLE_S = 1.0
"""How long requests in flight may take to get their error before their server is killed."""
FAREWELL_S = 0.5
"""How long FFN ranks may take to end by themselves when Attention has left."""
LEAVE_S = 2.0
"""How much longer than its grace period Attention may take to leave, in the eyes of FFN."""
POLL_S = 0.05


class Stop:
    """Whether the agent was asked to stop, and to hurry. It is final: a role that stops does not start again."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.hurried = asyncio.Event()
        self.kill: Callable[[], None] = lambda: None
        """Ends the processes of the role at once."""
        self._signalled = False

    def ask(self, who: str) -> None:
        """Ask for a stop, as the first signal does. Asked again, it changes nothing."""
        if not self.asked.is_set():
            log.info("%s: stopping", who)
            self.asked.set()

    def signal(self, name: str) -> None:
        """The first one asks for a stop; the second one ends what the first one waits for."""
        if self._signalled:
            log.info("%s again: ending at once", name)
            self.kill()
            self.hurried.set()
            return
        self._signalled = True
        log.info("%s: stopping; a second signal ends the role at once", name)
        self.asked.set()


@dataclass
class Stopping:
    """The stop of one role in one epoch."""

    plan: RolePlan
    stop: Stop
    control: Control
    hub: LocalHub
    processes: Processes
    gone: Collection[Rank]
    """Ranks that have left on purpose so far."""
    left: asyncio.Future[str]
    aborting: asyncio.Task[bool]
    progress: Callable[[], float]
    """Another number when something was computed."""
    failure: str = field(default="", init=False)

    async def run(self, served: bool) -> None:
        """Attention lets vLLM finish what is in flight, within its budget; FFN serves until Attention has left.

        ``served``: the role has got as far as having something to finish. Raises RoleFailedError unless everything in
        flight was answered, and the cause of an abort meanwhile.
        """
        control = self.control
        control.set_state("draining")
        if self.plan.role is Role.FFN:
            self.failure = await self._until_attention_left()
            # Attention must hear that this is no failure before it loses its peer.
            await control.close("stopped by a signal")
            await self.hub.close()
            await self.processes.terminate(FAREWELL_S)
        elif self.plan.headless:
            self.failure = await self._until_head_left()
            await self.processes.terminate(self.plan.drain_s if served else 0.0)
        elif served:  # while it loads vLLM does not listen to signals, and there is nothing to finish
            self.failure = await self._drain()
        if self.stop.hurried.is_set():
            self.failure = "a second signal ended the role before it was drained"
        if control.abort.cause is not None and not self.left.done():
            control.abort.check()
        if self.failure:
            raise RoleFailedError(self.failure)

    async def _until_attention_left(self) -> str:
        """FFN's part of a stop. Returns what went wrong."""
        stop, left, aborting = self.stop, self.left, self.aborting
        drain_s = drain_budget_s(self.control)
        if sum(hello.role is Role.ATTENTION for hello in self.control.hellos) > 1:
            drain_s *= 2  # replicas without the API server stop when that one has left
        hurried = asyncio.create_task(stop.hurried.wait())
        failing = asyncio.create_task(self.processes.first_failure())
        ends: list[asyncio.Future[Any]] = [left, aborting, hurried, failing]
        await asyncio.wait(ends, timeout=drain_s + LEAVE_S, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel(), failing.cancel()
        if failing.done() and not (left.done() or aborting.done() or stop.hurried.is_set()):
            await self.control.fail(self.processes.exit_cause(failing.result()))
            return ""
        if left.done():  # ranks to which all of Attention said good-bye end now; others wait for a step
            await self.processes.wait(FAREWELL_S)
        elif not aborting.done() and not stop.hurried.is_set():
            late = [
                rank for rank in self.control.topology.role_ranks(Role.ATTENTION) if rank not in self.gone
            ]
            return (
                f"{names(late)} did not leave within {drain_s + LEAVE_S:.0f} s of the stop; give Attention more with "
                "--shutdown-timeout"
            )
        return ""

    async def _until_head_left(self) -> str:
        """What replicas do whose API server is elsewhere: serve until that one's agent has left. Returns what went
        wrong."""
        head = Rank(Role.ATTENTION, 0)
        limit_s = self.plan.drain_s + LEAVE_S
        deadline = time.monotonic() + limit_s
        while head not in self.gone:
            if self.aborting.done() or self.stop.hurried.is_set():
                return ""
            if time.monotonic() > deadline:
                return f"{head} did not leave within {limit_s:.0f} s of the stop; see --shutdown-timeout"
            await asyncio.sleep(POLL_S)
        return ""

    async def _drain(self) -> str:
        """Attention's part of a stop: vLLM finishes what is in flight and ends. Returns what went wrong; raises the
        cause of an abort meanwhile."""
        hub, processes = self.hub, self.processes
        processes.close_door()
        drain_s, began, broken = self.plan.drain_s, time.monotonic(), processes.broken
        ending = asyncio.create_task(processes.terminate(drain_s))
        cut = asyncio.create_task(hub.lost.wait())  # vLLM kills its engine when its own time is up
        killing = asyncio.create_task(self._killed_before(began + self.plan.answer_s))
        stuck = asyncio.create_task(self._stuck())
        ends: list[asyncio.Future[Any]] = [ending, cut, killing, stuck, self.aborting, self.left]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        early = time.monotonic() < began + self.plan.answer_s and not self.stop.hurried.is_set()
        if killing.done():
            await self.control.fail(killing.result())
        elif stuck.done():
            await self.control.fail(stuck.result())
        elif (
            early and processes.inflight and (cause := await processes.failure(hub.lost_process)) is not None
        ):
            await self.control.fail(cause)  # it was not vLLM, whose time is not up
        killing.cancel(), stuck.cancel()
        if not ending.done():
            await processes.settle_requests(SETTLE_S)
        ending.cancel(), cut.cancel()
        self.control.abort.check()
        if processes.broken > broken or processes.inflight:
            return "requests in flight were cut off: a stop may not take that long; --shutdown-timeout gives them more"
        if self.left.done():
            return f"FFN left before requests in flight were answered: {self.left.result()}"
        return ""

    async def _killed_before(self, end: float) -> Cause:
        """Wait until a process is killed while requests need it, and vLLM's own time, until ``end``, is not up."""
        cause = await self.processes.first_killed()
        if not self.processes.inflight or time.monotonic() > end or self.stop.hurried.is_set():
            await asyncio.Event().wait()
        return cause

    async def _stuck(self) -> Cause:
        """Wait until a process has been stopped for a while, though requests need it, if ever."""
        plan, processes = self.plan, self.processes
        watch = StallWatch(lambda: processes.inflight, self.progress)
        patience_s = STOPPED * plan.config.timeouts.step_s
        error = await first_failure(
            watch.run(), while_none_is_stopped(lambda: watch.stalled_s, processes.stopped, patience_s)
        )
        return Cause.of(error, str(plan.ranks[0]), plan.hello.host.name)


def drain_budget_s(control: Control) -> float:
    """How long a stop of the group may take: what Attention's agents have said, in seconds."""
    return max(float(hello.notes.get("drain_s", 0)) for hello in control.hellos)


async def until_a_peer_stops(control: Control, stop: Stop) -> None:
    """When a peer stops, this role stops: one that says so, or an agent of the same role that has left."""
    role = control.ranks[0].role
    while not any(
        peer.state == "draining" or (peer.state == "left" and peer.role is role) for peer in control.peers()
    ):
        await asyncio.sleep(POLL_S)
    stop.ask("a peer is stopping")
