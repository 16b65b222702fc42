# SPDX-License-Identifier: Apache-2.0
"""One epoch of a role, from the moment at which the group is complete to its end.

One of four things ends it: a stop that was asked for, an abort (one root cause, the same on every agent), a process of
the role that ends, or a peer that leaves on purpose.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from afd.agent import readiness
from afd.agent.commands import Commands
from afd.agent.fetch import fetch
from afd.agent.launcher import Child
from afd.agent.plan import RolePlan
from afd.agent.processes import KILL_S, Processes
from afd.agent.progress import Progress
from afd.agent.stall import STOPPED, StallWatch, first_failure, while_none_is_stopped
from afd.agent.status import AgentStatus
from afd.agent.stopping import SETTLE_S, Stop, Stopping, until_a_peer_stops
from afd.control.abort import Cause
from afd.control.channel import Deadline
from afd.control.events import happens
from afd.control.group import Control
from afd.control.handshake import names
from afd.control.hub import LocalHub, Process, open_hub
from afd.errors import AFDError, RoleFailedError
from afd.observe.state import State
from afd.topology import Rank, Role

log = logging.getLogger(__name__)

ACCOUNT_S = KILL_S + 0.1
"""How long the account of a process that has ended may take. Its agent looks for a kill behind it, first."""
READY_S = 10.0
"""How long the other role may take to say that it is ready when this one has used up its time to load."""


class Epoch:
    """What an agent does between a complete group and its end. Belongs to the agent's event loop.

    ``ready`` is called when the group is ready, ``lost`` with the error that ends the epoch and with whether that is
    final; it says whether the role starts again.
    """

    def __init__(
        self,
        plan: RolePlan,
        status: AgentStatus,
        stop: Stop,
        progress: Progress,
        hub_address: str,
        ready: Callable[[], None],
        lost: Callable[[AFDError, bool], bool],
    ) -> None:
        self._plan, self._status, self._stop, self._progress = plan, status, stop, progress
        self._hub_address, self._ready, self._lost = hub_address, ready, lost
        self._left: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._gone: set[Rank] = set()
        self._loaded: set[Rank] = set()
        self._warmed: set[Rank] = set()
        self._connected = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self.commands: Commands | None = None
        """What operators may have the group do; None before and after the epoch."""

    def on_bye(self, ranks: Sequence[Rank], reason: str) -> None:
        """Some ranks left on purpose. The other role has left when all of its ranks have."""
        self._gone |= set(ranks)
        others = {rank for rank in self._plan.config.topology.ranks if rank.role is not self._plan.role}
        if self._gone >= others and not self._left.done():
            self._left.set_result(reason)

    async def run(self, control: Control, processes: Processes, agreed: Mapping[str, str]) -> None:
        """Start the role and serve. Returns after a stop; raises the AFDError that ended the epoch.

        ``processes`` have ended then, unless they rest until the next epoch. ``agreed`` are the variables of a
        rank's process that say what the roles have agreed on.
        """
        aborted = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wake() -> None:
            loop.call_soon_threadsafe(aborted.set)

        control.abort.subscribe(wake)
        self._enter(control, "loading")
        async with open_hub(
            control,
            on_report=self._on_report,
            on_death=processes.explain,
            on_failure=processes.behind,
            stopping=self._leaving,
            on_attach=processes.attached,
            address=self._hub_address,
        ) as hub:
            if processes.children:  # kept from the last epoch, and about to attach
                hub.resting.update(self._plan.ranks)
            self.commands = Commands(self._plan, control, hub)
            starting = asyncio.create_task(self._start(control, processes, hub.address, agreed))
            telling = asyncio.create_task(self._progress.keep_telling())
            stopping = asyncio.create_task(self._stop.asked.wait())
            aborting = asyncio.create_task(aborted.wait())
            following = asyncio.create_task(self._guarded(control, until_a_peer_stops(control, self._stop)))
            try:
                ends: list[asyncio.Future[Any]] = [starting, stopping, aborting, self._left]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                if starting.done() and not starting.cancelled() and starting.exception() is not None:
                    await self._blame(control, processes, starting.exception())
                if not aborted.is_set() and not self._stop.asked.is_set():
                    await self._serve(control, processes, stopping, aborting)
                if aborted.is_set():
                    await self._aborted(control, processes)
                if self._stop.asked.is_set():
                    await self._stopped(control, hub, processes, aborting)
            except BaseException as error:
                starting.cancel()  # what it forks from here on would be forgotten
                await asyncio.gather(starting, return_exceptions=True)
                # Before the hub closes: it would wait for the good-bye of processes that compute.
                if not await self._keeps(error, control, hub, processes):
                    await processes.end(control.epoch)
                raise
            finally:
                commands, self.commands = self.commands, None
                await commands.close()
                tasks: list[asyncio.Task[Any]] = [starting, telling, stopping, aborting, following]
                if self._watching is not None:
                    tasks.append(self._watching)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _start(
        self, control: Control, processes: Processes, hub: str, agreed: Mapping[str, str]
    ) -> None:
        """Bring the role to ``ready``: from nothing, or with processes that have loaded in an earlier epoch."""
        plan, load_s = self._plan, self._plan.config.timeouts.load_s
        deadline = Deadline(load_s)
        self._progress.joined(control)
        if plan.download is not None:
            await fetch(plan.download, plan.model, plan.environment, load_s)
            self._progress.downloaded()
        if processes.children:
            self._progress.kept()
        else:
            await processes.launch(hub, agreed)
            self._progress.imported()
            await processes.start()
        self._watching = asyncio.create_task(self._guarded(control, self._watch(control, processes)))
        if plan.role is Role.ATTENTION and not plan.headless:
            await readiness.until_healthy(plan, deadline, self._waits_for_others)
            self._progress.loaded()
            self._enter(control, "warming")
            await readiness.warm_up(plan)
            self._progress.warm()
        else:
            await self._until_connected(deadline)
            self._progress.loaded()
            self._enter(control, "ready-to-warm")
        await processes.settled()
        left_s = max(READY_S, deadline.remaining() or 0.0)
        await control.exchange("ready", {rank: True for rank in plan.ranks}, left_s)
        self._enter(control, "ready")
        if self._status.state is State.READY:
            self._progress.ready(self._status.port)
            self._ready()

    async def _until_connected(self, deadline: Deadline) -> None:
        """The ranks have their weights, and a link to the other role."""
        load_s = self._plan.config.timeouts.load_s
        connected = await happens(self._connected, deadline.remaining())
        if not connected and self._waits_for_others():
            connected = await happens(self._connected, load_s)
        if not connected:
            late = names([rank for rank in self._plan.ranks if rank not in self._warmed])
            raise RoleFailedError(
                f"{late} was not connected within {load_s:g} s of the rendezvous; give it more with "
                "--afd-timeouts-load-s"
            )

    def _waits_for_others(self) -> bool:
        """Whether the ranks have loaded in time and others have not: the group knows which ones, and will say it."""
        return self._loaded >= set(self._plan.ranks) and not self._connected.is_set()

    async def _serve(
        self,
        control: Control,
        processes: Processes,
        stopping: asyncio.Task[bool],
        aborting: asyncio.Task[bool],
    ) -> None:
        """Ready: wait for what ends the role."""
        ends: list[asyncio.Future[Any]] = [stopping, aborting, self._left]
        watching = asyncio.create_task(self._guarded(control, self._watch_steps(control, processes)))
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        watching.cancel()
        if self._left.done() and not self._stop.asked.is_set() and control.abort.cause is None:
            if self._plan.role is Role.ATTENTION:
                root = str(control.topology.root)
                await control.fail(Cause("PeerLostError", f"it left ({self._left.result()})", rank=root))
                await aborting
                return
            log.info("Attention left: %s", self._left.result())
            if self._served():
                self._status.enter("draining")
            await processes.wait(self._plan.config.timeouts.grace_s)
            self._status.enter("stopped")

    async def _watch(self, control: Control, processes: Processes) -> None:
        """A process of the role that ends is the end of the epoch, unless the role is stopping."""
        exiting = asyncio.ensure_future(processes.first_exit())
        killing = asyncio.ensure_future(processes.first_killed())
        try:
            await asyncio.wait({exiting, killing}, return_when=asyncio.FIRST_COMPLETED)
            child = exiting.result() if exiting.done() else None
            if self._leaving() if child is None else self._expected_exit(child):
                return
            # Give the process's own account (sent over the hub) the first word.
            await asyncio.sleep(ACCOUNT_S)
            if control.abort.cause is None:
                await control.fail(killing.result() if child is None else processes.exit_cause(child))
        finally:
            exiting.cancel(), killing.cancel()

    async def _watch_steps(self, control: Control, processes: Processes) -> None:
        """Requests in flight for which nothing is computed end the epoch, and so does a server that is stuck."""
        plan = self._plan
        if plan.role is not Role.ATTENTION or plan.headless:
            return
        watch = StallWatch(
            lambda: 0 if self.commands is not None and self.commands.busy else processes.inflight,
            lambda: self._status.progress,
            lambda: readiness.warm_up(plan),
            plan.config.timeouts.step_s,
        )
        self._status.stalled_s = lambda: watch.stalled_s
        patience_s = STOPPED * plan.config.timeouts.step_s
        error = await first_failure(
            watch.run(),
            readiness.while_healthy(plan),
            while_none_is_stopped(lambda: watch.stalled_s, processes.stopped, patience_s),
        )
        await control.fail(Cause.of(error, str(plan.ranks[0]), plan.hello.host.name))

    async def _guarded(self, control: Control, work: Coroutine[Any, Any, None]) -> None:
        """Run what nobody waits for: should it break, the epoch ends instead of going on without it."""
        try:
            await work
        except Exception as error:
            log.exception("a task of the agent broke")
            await control.fail(Cause.of(error, str(self._plan.ranks[0]), self._plan.hello.host.name))

    # ---- the end ------------------------------------------------------------------------------------------

    async def _aborted(self, control: Control, processes: Processes) -> None:
        """Requests in flight get their error, then the epoch ends with the root cause."""
        assert control.abort.cause is not None
        self._lost(control.abort.cause.error(), self._over())
        await processes.settle_requests(SETTLE_S)
        control.abort.check()

    async def _stopped(
        self, control: Control, hub: LocalHub, processes: Processes, aborting: asyncio.Task[bool]
    ) -> None:
        """A stop, here or at a peer. Raises RoleFailedError unless everything in flight was answered."""
        served = self._served()
        if served:
            self._status.enter("draining")
        stopping = Stopping(
            self._plan,
            self._stop,
            control,
            hub,
            processes,
            self._gone,
            self._left,
            aborting,
            lambda: self._status.progress,
        )
        await stopping.run(served)
        self._status.enter("stopped")

    async def _keeps(
        self, error: BaseException, control: Control, hub: LocalHub, processes: Processes
    ) -> bool:
        """Whether the processes rest until the next epoch: FFN's do when nothing was wrong with them, so that their
        weights need not be read again. One that was to blame, or does not come to rest, starts again; and then all do,
        because they form one group."""
        cause = control.abort.cause
        if self._plan.role is not Role.FFN or cause is None or not isinstance(error, AFDError):
            return False
        if not self._lost(error, self._over()) or cause.rank in {str(rank) for rank in self._plan.ranks}:
            return False
        rest = await hub.until_resting(self._plan.ranks, self._plan.config.timeouts.grace_s)
        return rest and processes.rest(control.epoch)

    async def _blame(self, control: Control, processes: Processes, error: BaseException | None) -> None:
        """The start failed: everybody hears why. That of a process that was killed is no error of the request by which
        that was noticed, and what a role waits for in vain may be one that is stopped."""
        if error is None or control.abort.cause is not None:
            return
        if isinstance(error, RoleFailedError):
            error = processes.stopped(str(error)) or error
        cause = Cause.of(error, str(self._plan.ranks[0]), self._plan.hello.host.name)
        await control.fail(await processes.behind(cause))
        if not isinstance(error, AFDError):
            raise error

    # ---- what we hear -------------------------------------------------------------------------------------

    def _served(self) -> bool:
        return self._status.state in (State.READY_TO_WARM, State.WARMING, State.READY)

    def _leaving(self) -> bool:
        """Whether this role is stopping, or what it served has left: processes may end now."""
        return self._stop.asked.is_set() or self._left.done()

    def _over(self) -> bool:
        """Whether there is nothing to start again for: the role stops, or Attention did so."""
        return self._stop.asked.is_set() or (self._plan.role is Role.FFN and self._left.done())

    def _expected_exit(self, child: Child) -> bool:
        """An FFN rank ends with code 0 when all of Attention said good-bye; the hub judges whether it should have."""
        return self._leaving() or (self._plan.role is Role.FFN and child.exited.result() == 0)

    def _enter(self, control: Control, state: str) -> None:
        """A step on the way to ready. A role that stops goes no further: its peers must see that it drains."""
        if not self._stop.asked.is_set():
            self._status.enter(state)
            control.set_state(state)

    def _on_report(self, process: Process, counters: Mapping[str, float], state: str | None) -> None:
        if process.rank is not None:
            self._status.report(process.rank, counters)
            if state in ("loaded", "ready-to-warm"):
                self._loaded.add(process.rank)
            if state == "ready-to-warm":
                self._warmed.add(process.rank)
                if self._warmed >= set(self._plan.ranks):
                    self._connected.set()
