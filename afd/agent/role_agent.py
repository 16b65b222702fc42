# SPDX-License-Identifier: Apache-2.0
"""The role agent: what `afd serve attention|ffn` runs. It imports neither torch nor vLLM.

Order of events, which is a contract: agent port, rendezvous and handshake, and only then the first process that
imports vLLM. From there on one of four things ends the role: a signal, an abort (one root cause, the same on
every agent), a process of the role that ends, or a peer that leaves on purpose.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, TypeVar

from afd.agent import readiness
from afd.agent.fetch import fetch
from afd.agent.launcher import Child
from afd.agent.plan import RolePlan
from afd.agent.processes import Processes
from afd.agent.progress import Progress
from afd.agent.reach import agree
from afd.agent.run_directory import RunDirectory
from afd.agent.stall import StallWatch, first_failure
from afd.agent.status import AgentStatus
from afd.agent.threads import ENDING
from afd.control.abort import Cause
from afd.control.channel import Deadline
from afd.control.group import Control, Waiting
from afd.control.handshake import attention_tp, names
from afd.control.hub import LocalHub, Process, open_hub
from afd.control.rendezvous import open_control
from afd.errors import AFDError, RoleFailedError
from afd.observe.state import State
from afd.topology import Rank, Role

log = logging.getLogger(__name__)

SETTLE_S = 1.0
"""How long requests in flight may take to get their error before their server is killed."""
FAREWELL_S = 0.5
"""How long FFN ranks may take to end by themselves when Attention has left."""
LEAVE_S = 2.0
"""How much longer than its grace period Attention may take to leave, in the eyes of FFN."""
READY_S = 10.0
"""How long the other role may take to say that it is ready when this one has used up its time to load."""
POLL_S = 0.05
_T = TypeVar("_T")


class RoleAgent:
    """One role of one run, from its agent port to its exit code."""

    def __init__(self, plan: RolePlan, write: Callable[[str], None] | None = None) -> None:
        """``write`` takes the lines that the role's processes say, and does not block; stderr when it is None."""
        self._plan = plan
        self._write = write
        self._signalled = False
        self.status = AgentStatus(plan)
        self._stop = asyncio.Event()
        self._left: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._connected = asyncio.Event()
        self._waiting_for = set(plan.ranks)
        self._hurry: Callable[[], None] = lambda: None
        self._hurried = asyncio.Event()
        self._progress = Progress(plan)

    async def run(self) -> None:
        """Run the role to its end. Returns after a stop that was asked for; raises the AFDError that ended it."""
        loop = asyncio.get_running_loop()
        for number in ENDING:
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # as with nohup
                loop.add_signal_handler(number, self._on_signal, number)
        runtime = RunDirectory.for_sockets()
        try:
            await readiness.api_port(self._plan)
            async with self.status.serve():
                await self._run(runtime.path)
        except AFDError as error:
            self.status.failed(error)
            raise
        finally:
            runtime.close()

    # ---- the epoch ----------------------------------------------------------------------------------------

    async def _run(self, runtime: Path) -> None:
        plan = self._plan
        self.status.enter("rendezvous")
        forming = open_control(plan.config, plan.hello, on_waiting=self._on_waiting, on_bye=self._on_bye)
        control = await self._unless_stopped(forming.__aenter__())
        if control is None:
            return
        processes = Processes(plan, runtime, self._write)
        self._hurry = processes.kill
        error: BaseException | None = None
        try:
            self.status.joined(control)
            await self._epoch(control, processes)
        except BaseException as raised:
            error = raised
            raise
        finally:
            await processes.end(control.epoch)
            processes.tell_more_than(error)
            if error is None:
                await forming.__aexit__(None, None, None)
            else:
                await self._leave(forming, error)

    async def _leave(self, forming: AbstractAsyncContextManager[Control], error: BaseException) -> None:
        """Close the control channel with the error that ended the epoch, whatever the channel makes of it."""
        try:
            await forming.__aexit__(type(error), error, error.__traceback__)
        except AFDError as again:
            log.debug("closing the control channel: %s", again)

    async def _epoch(self, control: Control, processes: Processes) -> None:
        aborted = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wake() -> None:
            loop.call_soon_threadsafe(aborted.set)

        control.abort.subscribe(wake)
        self._enter(control, "loading")
        async with open_hub(
            control, on_report=self._on_report, on_death=processes.explain, stopping=self._leaving
        ) as hub:
            starting = asyncio.create_task(self._start(control, processes, hub.address))
            telling = asyncio.create_task(self._progress.keep_telling())
            stopping = asyncio.create_task(self._stop.wait())
            aborting = asyncio.create_task(aborted.wait())
            following = asyncio.create_task(self._guarded(control, self._follow(control)))
            try:
                ends: list[asyncio.Future[Any]] = [starting, stopping, aborting, self._left]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                if starting.done() and not starting.cancelled() and starting.exception() is not None:
                    await self._blame(control, starting.exception())
                if not aborted.is_set() and not self._stop.is_set():
                    await self._serve(control, processes, stopping, aborting)
                if aborted.is_set():
                    await self._aborted(control, processes)
                if self._stop.is_set():
                    await self._stopped(control, hub, processes, aborting)
            except BaseException:
                # Before the hub closes: it would wait for the good-bye of processes that compute.
                await processes.end(control.epoch)
                raise
            finally:
                tasks = (starting, telling, stopping, aborting, following)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _start(self, control: Control, processes: Processes, hub: str) -> None:
        """Bring the role from nothing to ``ready``."""
        plan, load_s = self._plan, self._plan.config.timeouts.load_s
        deadline = Deadline(load_s)
        reach = await agree(control)
        self.status.transport = reach.transport
        self._progress.joined(control)
        if plan.download is not None:
            await fetch(plan.download, plan.model, plan.environment, load_s)
            self._progress.downloaded()
        agreed = {
            "AFD_RANK_TRANSPORT": reach.transport,
            "AFD_RANK_HOST": reach.host,
            "AFD_RANK_ATTENTION_TP": str(attention_tp(control.hellos)),
        }
        await processes.launch(hub, agreed)
        self._progress.imported()
        await processes.start()
        watch = asyncio.create_task(self._guarded(control, self._watch(control, processes)))
        self.status.on_close(watch.cancel)
        if plan.role is Role.ATTENTION:
            await readiness.until_healthy(plan, deadline)
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
        if self.status.state is State.READY:
            self._progress.ready(self.status.port)

    async def _until_connected(self, deadline: Deadline) -> None:
        """FFN's ranks have their weights, and a link to each Attention rank."""
        try:
            await asyncio.wait_for(self._connected.wait(), deadline.remaining())
        except asyncio.TimeoutError:
            load_s, ranks = self._plan.config.timeouts.load_s, names(sorted(self._waiting_for))
            raise RoleFailedError(
                f"{ranks} was not connected within {load_s:g} s of the rendezvous; give it more with "
                "--afd-timeouts-load-s"
            ) from None

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
        if self._left.done() and not self._stop.is_set() and control.abort.cause is None:
            if self._plan.role is Role.ATTENTION:
                root = str(control.topology.root)
                await control.fail(Cause("PeerLostError", f"it left ({self._left.result()})", rank=root))
                await aborting
                return
            log.info("Attention left: %s", self._left.result())
            if self._served():
                self.status.enter("draining")
            await processes.wait(self._plan.config.timeouts.grace_s)
            self.status.enter("stopped")

    async def _watch(self, control: Control, processes: Processes) -> None:
        """A process of the role that ends is the end of the epoch, unless the role is stopping."""
        child = await processes.first_exit()
        if self._expected_exit(child):
            return
        # Give the process's own account (sent over the hub) the first word.
        await asyncio.sleep(0.1)
        if control.abort.cause is None:
            await control.fail(processes.exit_cause(child))

    async def _watch_steps(self, control: Control, processes: Processes) -> None:
        """Requests in flight for which nothing is computed end the epoch, and so does a server that is stuck."""
        plan = self._plan
        if plan.role is not Role.ATTENTION:
            return
        watch = StallWatch(
            lambda: processes.inflight,
            lambda: self.status.progress,
            lambda: readiness.warm_up(plan),
            plan.config.timeouts.step_s,
        )
        self.status.stalled_s = lambda: watch.stalled_s
        error = await first_failure(watch.run(), readiness.while_healthy(plan))
        await control.fail(Cause.of(error, str(plan.ranks[0]), plan.hello.host.name))

    async def _guarded(self, control: Control, work: Coroutine[Any, Any, None]) -> None:
        """Run what nobody waits for: should it break, the role ends instead of going on without it."""
        try:
            await work
        except Exception as error:
            log.exception("a task of the agent broke")
            await control.fail(Cause.of(error, str(self._plan.ranks[0]), self._plan.hello.host.name))

    def _served(self) -> bool:
        return self.status.state in (State.READY_TO_WARM, State.WARMING, State.READY)

    def _leaving(self) -> bool:
        """Whether this role is stopping, or what it served has left: processes may end now."""
        return self._stop.is_set() or self._left.done()

    def _expected_exit(self, child: Child) -> bool:
        """An FFN rank ends with code 0 when all of Attention said good-bye; the hub judges whether it should have."""
        return self._leaving() or (self._plan.role is Role.FFN and child.exited.result() == 0)

    async def _aborted(self, control: Control, processes: Processes) -> None:
        """Requests in flight get their error, then the role ends with the root cause."""
        assert control.abort.cause is not None
        self.status.failed(control.abort.cause.error())
        await processes.settle_requests(SETTLE_S)
        control.abort.check()

    async def _stopped(
        self, control: Control, hub: LocalHub, processes: Processes, aborting: asyncio.Task[bool]
    ) -> None:
        """A signal, here or at a peer. Attention lets vLLM finish what is in flight, within its budget; FFN serves
        until Attention has left. Raises RoleFailedError unless everything in flight was answered."""
        served = self._served()
        if served:
            self.status.enter("draining")
        control.set_state("draining")
        failure = ""
        if self._plan.role is Role.FFN:
            failure = await self._until_attention_left(control, processes, aborting)
            # Attention must hear that this is no failure before it loses its peer.
            await control.close("stopped by a signal")
            await hub.close()
            await processes.terminate(FAREWELL_S)
        elif served:  # while it loads vLLM does not listen to signals, and there is nothing to finish
            failure = await self._drain(control, hub, processes, aborting)
        if self._hurried.is_set():
            failure = "a second signal ended the role before it was drained"
        if control.abort.cause is not None and not self._left.done():
            control.abort.check()
        if failure:
            raise RoleFailedError(failure)
        self.status.enter("stopped")

    async def _until_attention_left(
        self, control: Control, processes: Processes, aborting: asyncio.Task[bool]
    ) -> str:
        """FFN's part of a stop. Returns what went wrong."""
        drain_s = max(float(hello.notes.get("drain_s", 0)) for hello in control.hellos)
        hurried = asyncio.create_task(self._hurried.wait())
        failing = asyncio.create_task(processes.first_failure())
        ends: list[asyncio.Future[Any]] = [self._left, aborting, hurried, failing]
        await asyncio.wait(ends, timeout=drain_s + LEAVE_S, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel(), failing.cancel()
        if failing.done() and not (self._left.done() or aborting.done() or self._hurried.is_set()):
            await control.fail(processes.exit_cause(failing.result()))
            return ""
        if self._left.done():  # ranks to which all of Attention said good-bye end now; others wait for a step
            await processes.wait(FAREWELL_S)
        elif not aborting.done() and not self._hurried.is_set():
            return f"Attention did not leave within {drain_s + LEAVE_S:.0f} s of the stop"
        return ""

    async def _drain(
        self, control: Control, hub: LocalHub, processes: Processes, aborting: asyncio.Task[bool]
    ) -> str:
        """Attention's part of a stop: vLLM finishes what is in flight and ends. Returns what went wrong; raises the
        cause of an abort meanwhile."""
        drain_s, began = self._plan.drain_s, time.monotonic()
        ending = asyncio.create_task(processes.terminate(drain_s))
        cut = asyncio.create_task(hub.lost.wait())  # vLLM kills its engine when its own time is up
        ends: list[asyncio.Future[Any]] = [ending, cut, aborting, self._left]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        early = time.monotonic() < began + self._plan.answer_s and not self._hurried.is_set()
        if early and processes.inflight and (cause := await processes.failure(hub.lost_process)) is not None:
            await control.fail(cause)  # it was not vLLM, whose time is not up
        if not ending.done():
            await processes.settle_requests(SETTLE_S)
        ending.cancel(), cut.cancel()
        control.abort.check()
        if hub.lost.is_set() or processes.inflight:
            return "requests in flight were cut off: a stop may not take that long; --shutdown-timeout gives them more"
        if self._left.done():
            return f"FFN left before requests in flight were answered: {self._left.result()}"
        return ""

    async def _follow(self, control: Control) -> None:
        """When a peer stops, this role stops."""
        while not any(peer.state == "draining" for peer in control.peers()):
            await asyncio.sleep(POLL_S)
        if not self._stop.is_set():
            log.info("a peer is stopping: stopping")
            self._stop.set()

    async def _blame(self, control: Control, error: BaseException | None) -> None:
        """The start failed: everybody hears why."""
        if error is None or control.abort.cause is not None:
            return
        await control.fail(Cause.of(error, str(self._plan.ranks[0]), self._plan.hello.host.name))
        if not isinstance(error, AFDError):
            raise error

    # ---- what we hear -------------------------------------------------------------------------------------

    def _enter(self, control: Control, state: str) -> None:
        """A step on the way to ready. A role that stops goes no further: its peers must see that it drains."""
        if not self._stop.is_set():
            self.status.enter(state)
            control.set_state(state)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._signalled:
            log.info("%s again: ending at once", signal.Signals(number).name)
            self._hurry()
            self._hurried.set()
            return
        self._signalled = True
        log.info("%s: stopping; a second signal ends the role at once", signal.Signals(number).name)
        self._stop.set()

    def _on_waiting(self, waiting: Waiting) -> None:
        self.status.waiting_for = tuple(str(rank) for rank in waiting.missing)

    def _on_bye(self, ranks: Sequence[Rank], reason: str) -> None:
        if not self._left.done():
            self._left.set_result(reason)

    def _on_report(self, process: Process, counters: Mapping[str, float], state: str | None) -> None:
        if process.rank is not None:
            self.status.report(process.rank, counters)
        if state == "ready-to-warm" and process.rank is not None:
            self._waiting_for.discard(process.rank)
            if not self._waiting_for:
                self._connected.set()

    async def _unless_stopped(self, work: Awaitable[_T]) -> _T | None:
        """``work``'s result, or None when a stop was asked for first."""
        task = asyncio.ensure_future(work)
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return None
        finally:
            stopping.cancel()
