# SPDX-License-Identifier: Apache-2.0
"""The role agent: what `afd serve attention|ffn` runs. It imports neither torch nor vLLM.

Order of events, which is a contract: agent port, rendezvous and handshake, and only then the first process that
imports vLLM (:mod:`afd.agent.epoch`). When an epoch is lost, ``on_loss`` decides: the role ends, or stays and meets its
peers again in a new epoch. A stop that was asked for is final, whatever the agent does then.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import TypeVar

from afd.agent import readiness
from afd.agent.epoch import Epoch
from afd.agent.launcher import OwnLauncher
from afd.agent.plan import RolePlan
from afd.agent.processes import Processes
from afd.agent.progress import Progress
from afd.agent.reach import Reach, agree
from afd.agent.rejoin import Attempts
from afd.agent.run_directory import RunDirectory
from afd.agent.status import AgentStatus
from afd.agent.stopping import Stop, drain_budget_s
from afd.agent.threads import ENDING, unblock_signals
from afd.control.group import Control, Waiting
from afd.control.handshake import attention_tp
from afd.control.hub import new_address
from afd.control.messages import PROFILE_START, PROFILE_STOP
from afd.control.rendezvous import open_control
from afd.errors import AFDError, PeerAbsentError
from afd.observe.operator import Action, Reply
from afd.observe.state import State

log = logging.getLogger(__name__)

_T = TypeVar("_T")


def variables(control: Control, reach: Reach) -> dict[str, str]:
    """What a rank's process is told of that the roles have agreed on."""
    return {
        "AFD_RANK_TRANSPORT": reach.transport,
        "AFD_RANK_HOST": reach.host,
        "AFD_RANK_ATTENTION_TP": str(attention_tp(control.hellos)),
    }


class RoleAgent:
    """One role of one run, from its agent port to its exit code."""

    def __init__(self, plan: RolePlan, write: Callable[[str], None] | None = None) -> None:
        """``write`` takes the lines that the role's processes say, and does not block; stderr when it is None."""
        self._plan = plan
        self._write = write
        self.status = AgentStatus(plan)
        self._stop = Stop()
        self._attempts = Attempts(plan.config)
        self._own = OwnLauncher()
        self._hub_address = new_address()
        self._resting: Processes | None = None
        self._lost: float | None = None
        self._pause_s = 0.0
        self._again: bool | None = None
        self._drain_s = 0.0
        self._current: Epoch | None = None

    async def run(self) -> None:
        """Run the role to its end. Returns after a stop that was asked for; raises the AFDError that ended it."""
        loop = asyncio.get_running_loop()
        for number in ENDING:
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # as with nohup
                loop.add_signal_handler(number, self._stop.signal, signal.Signals(number).name)
        unblock_signals()  # whoever started this agent may have kept them back until it listens
        runtime = RunDirectory.for_sockets()
        try:
            await readiness.api_port(self._plan)
            async with self.status.serve(self._actions()):
                await self._run(runtime.path)
        except AFDError as error:
            self.status.failed(error)
            raise
        finally:
            await self._end_resting()
            await self._own.close()
            runtime.close()

    async def _run(self, runtime: Path) -> None:
        """Epoch after epoch, until one ends for good."""
        while True:
            self._again = None
            try:
                await self._epoch(runtime)
                return
            except AFDError as error:
                if not self._on_lost(error):
                    raise
                self._tell(error)
            await self._unless_stopped(asyncio.sleep(self._pause_s))
            if self._stop.asked.is_set():
                self.status.enter("stopped")
                return

    def _tell(self, error: AFDError) -> None:
        kept = ", and its processes keep what they have loaded" if self._resting is not None else ""
        pause = f" in {self._pause_s:g} s" if self._pause_s else ""
        log.warning("lost the epoch: %s; starting again%s (%s)%s", error, pause, self._attempts, kept)

    # ---- one epoch ----------------------------------------------------------------------------------------

    async def _epoch(self, runtime: Path) -> None:
        plan = self._plan
        self.status.enter("rendezvous")
        progress = Progress(plan, lost=self._lost)
        epoch = Epoch(
            plan, self.status, self._stop, progress, self._hub_address, self._on_ready, self._on_lost
        )
        self._current = epoch
        forming = open_control(plan.config, plan.hello, on_waiting=self._on_waiting, on_bye=epoch.on_bye)
        try:
            control = await self._unless_stopped(forming.__aenter__())
        except PeerAbsentError as absent:  # the longest wait there is has passed already
            self._on_lost(absent, final=True)
            raise
        if control is None:
            return
        processes = self._resting or Processes(plan, runtime, self._write, self._own)
        self._resting = None
        error: BaseException | None = None
        try:
            self.status.joined(control)
            self._drain_s = drain_budget_s(control)
            reach = await self._unless_stopped(agree(control))
            if reach is None:
                return
            self.status.transport = reach.transport
            agreed = variables(control, reach)
            if processes.children and not processes.resume(agreed):
                log.info("what rested since the last epoch has ended, or was started for another transport")
                await processes.end("")
                processes = Processes(plan, runtime, self._write, self._own)
            self._stop.kill = processes.kill
            await epoch.run(control, processes, agreed)
        except BaseException as raised:
            error = raised
            raise
        finally:
            if processes.resting:
                self._resting = processes
            else:
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

    async def _end_resting(self) -> None:
        resting, self._resting = self._resting, None
        if resting is not None:
            await resting.end("")

    # ---- what we hear -------------------------------------------------------------------------------------

    async def _drain(self) -> Reply:
        """POST /drain: the group stops in order, as at a signal. It says so at once, and ends within the budget."""
        self._stop.ask("POST /drain")
        budget_s = max(self._drain_s, self._plan.drain_s)
        return Reply(202, {"state": "draining", "budget_s": budget_s})

    def _actions(self) -> dict[str, Action]:
        """What operators may have done with a POST to the agent port."""
        return {
            "/drain": self._drain,
            "/profile/start": partial(self._profile, PROFILE_START),
            "/profile/stop": partial(self._profile, PROFILE_STOP),
        }

    async def _profile(self, name: str) -> Reply:
        commands = None if self._current is None else self._current.commands
        if commands is None or self.status.state is not State.READY:
            return Reply(409, {"error": "not ready", "reason": f"state is {self.status.state}"})
        return await commands.profile(name)

    def _on_ready(self) -> None:
        self._attempts.ready()
        if self._lost is not None:
            self.status.ready_again(time.monotonic() - self._lost)
            self._lost = None

    def _on_lost(self, error: AFDError, final: bool = False) -> bool:
        """The epoch ends with ``error``: whether the role starts again. The first error of an epoch decides."""
        if self._again is None:
            self._again = not final and not self._stop.asked.is_set() and self._attempts.allows(error)
            if self._again:
                self._lost = self._lost or time.monotonic()
                self._pause_s = self._attempts.lost()
                self.status.again(error, str(self._attempts))
            else:
                self.status.failed(error)
        return self._again

    def _on_waiting(self, waiting: Waiting) -> None:
        self.status.waiting_for = tuple(str(rank) for rank in waiting.missing)

    async def _unless_stopped(self, work: Awaitable[_T]) -> _T | None:
        """``work``'s result, or None when a stop was asked for first."""
        task = asyncio.ensure_future(work)
        stopping = asyncio.create_task(self._stop.asked.wait())
        try:
            await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return None
        finally:
            stopping.cancel()
