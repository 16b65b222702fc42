# SPDX-License-Identifier: Apache-2.0
"""The processes of one role: forked, watched, and ended without a trace.

One :class:`Processes` is one tree. It usually lives as long as its epoch; FFN's may be kept for the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from afd.agent.cores import room_for_a_second_thread
from afd.agent.deaths import Deaths
from afd.agent.exits import describe_exit
from afd.agent.inflight import VARIABLE as INFLIGHT_VARIABLE
from afd.agent.inflight import InflightFile
from afd.agent.last_words import exception_below, last_words, without_name
from afd.agent.launch_protocol import ERROR, OUTPUT_VARIABLE
from afd.agent.launcher import Child, Launcher, OwnLauncher
from afd.agent.leftovers import Leftovers, title
from afd.agent.plan import RolePlan
from afd.agent.priority import before_the_model
from afd.agent.reach import network
from afd.agent.streams import Streams
from afd.connectors.shm.segment import sweep
from afd.control.abort import Cause
from afd.control.channel import SOCKET_ENV
from afd.control.hub import Process
from afd.errors import ConfigError, RoleFailedError
from afd.topology import Rank, Role

log = logging.getLogger(__name__)

IMPORT_S = 120.0
"""How long the launcher may take to import vLLM. Without compiled bytecode on a busy machine it takes a minute."""
OBSERVE_S, OBSERVE_LOADING_S = 5.0, 0.3
"""How often the process tree is looked at."""
LOOK_S = 5.0
"""How long it may take to look at the process tree."""
LAST_LOOK_S = 1.0
"""The same before the tree is killed, which must not wait for long."""
_RANK = "rank "
"""How the name of an FFN rank's process begins, in the agent's log."""
TOLD = 200
"""Characters by which the words of a process are recognised: a cause may be cut off somewhere."""
KILL_S = 0.2
"""How much later than its effects a kill may be heard of: the kernel closes the connections of a process first."""
UNEXPLAINED_S = 1.0
"""How long a process whose child has ended may take to end as well, before it is no longer waited for."""
EXIT_STATUS_S = 0.2
"""How long the exit status of a process that is gone may take to arrive from the launcher."""


class Processes:
    """The process tree of a role."""

    def __init__(
        self,
        plan: RolePlan,
        runtime: Path,
        write: Callable[[str], None] | None = None,
        own: OwnLauncher | None = None,
    ) -> None:
        """``own`` is the launcher to fork from, unless the plan's environment names another."""
        self._plan = plan
        self._own = own
        self._write = write or _to_stderr
        self._runtime = runtime
        self._launcher: Launcher | None = None
        self._children: list[Child] = []
        self._leftovers = Leftovers()
        self._deaths = Deaths()
        self._inflight = InflightFile(runtime / "inflight", create=True)
        self._environment: dict[str, str] = {}
        self._errors: list[str] = []
        self._streams: Streams | None = None
        self._below: deque[str] = deque(maxlen=Launcher.TAIL)
        self._observer: asyncio.Task[None] | None = None
        self._looking: asyncio.Future[None] | None = None
        self._settled = False
        self._ended = False
        self._ranks: dict[int, Rank] = {}
        self._agreed: Mapping[str, str] = {}
        self.resting = False
        """Whether the processes wait for the next epoch."""

    @property
    def children(self) -> tuple[Child, ...]:
        return tuple(self._children)

    @property
    def broken(self) -> int:
        """Requests since its start that Attention's API server answered with an error of its own."""
        return self._inflight.broken

    @property
    def below(self) -> tuple[str, ...]:
        """The last lines of the processes below those that the agent started, without the names of their ranks."""
        return tuple(self._below)

    @property
    def inflight(self) -> int:
        """Requests that Attention's API server is answering now."""
        return self._inflight.count

    def close_door(self) -> None:
        """Attention's API server takes no new requests from now on."""
        self._inflight.close_door()

    def resume(self, agreed: Mapping[str, str]) -> bool:
        """The next epoch begins: whether all processes are there, and were started for what the roles have agreed on
        now."""
        self.resting = False
        return agreed == self._agreed and not any(child.exited.done() for child in self._children)

    def attached(self, process: Process) -> None:
        """Remember which process is which rank."""
        if process.rank is not None:
            self._ranks[process.pid] = process.rank

    async def launch(self, hub_address: str, agreed: Mapping[str, str]) -> None:
        """Import vLLM, in the launcher. ``agreed`` are variables with what the roles have agreed on. Raises
        RoleFailedError."""
        self._agreed = dict(agreed)
        plan = self._plan
        attention = plan.role is Role.ATTENTION
        spread = plan.ranks != plan.config.topology.role_ranks(plan.role)
        self._environment = {
            **(network(agreed["AFD_RANK_HOST"], spread) if attention else {}),
            # Where vLLM puts its sockets: a process that is killed leaves them behind.
            "VLLM_RPC_BASE_PATH": str(self._runtime),
            **plan.environment,
            SOCKET_ENV: hub_address,
            INFLIGHT_VARIABLE: str(self._runtime / "inflight"),
            **agreed,
        }
        if attention:  # its ranks are forked by its own processes
            self._streams = Streams(self._heard, self._begun, self._named)
            await self._streams.start()
            self._environment[OUTPUT_VARIABLE] = self._streams.address
        if agreed["AFD_RANK_TRANSPORT"] == "collective":
            self._spread_threads()
        self._launcher = await Launcher.open(self._runtime, self._environment, IMPORT_S, own=self._own)

    def _spread_threads(self) -> None:
        chosen = self._environment["VLLM_CPU_OMP_THREADS_BIND"]
        bind = room_for_a_second_thread(chosen)
        if bind != chosen:
            log.info(
                "transport collective needs more than one core for each rank: %s instead of %s", bind, chosen
            )
            self._environment["VLLM_CPU_OMP_THREADS_BIND"] = bind

    async def start(self) -> None:
        """Fork the role's processes. Raises RoleFailedError."""
        if self._plan.role is Role.ATTENTION:
            await self._spawn("engines' parent" if self._plan.headless else "API server", {})
        else:
            for rank in self._plan.ranks:
                child = await self._spawn(f"{_RANK}{rank}", {"AFD_RANK_INDEX": str(rank.index)})
                self._ranks[child.pid] = rank
        self._observer = asyncio.create_task(self._observe())

    async def _spawn(self, name: str, more: Mapping[str, str]) -> Child:
        assert self._launcher is not None
        prefix = "" if self._plan.role is Role.ATTENTION else f"({name.removeprefix(_RANK)}) "

        def write(line: str) -> None:
            words = without_name(line)
            if words.startswith(ERROR):  # the agent ends with it, too
                self._errors.append(words.removeprefix(ERROR))
            else:
                self._write(f"{prefix}{line}")

        child = await self._launcher.spawn(
            name,
            self._plan.target,
            self._plan.argv,
            {**self._environment, **more},
            write,
            self._plan.secrets.hide,
        )
        log.info("%s is process %d", name, child.pid)
        self._children.append(child)
        return child

    def _begun(self, pid: int) -> bool:
        """A process says that it was forked below those that the agent started; whether it was. Its end is heard of
        from now on, not from the next look at the tree on."""
        try:
            process = psutil.Process(pid)
            above = process.parents()
        except psutil.Error:
            return False
        if not {one.pid for one in above} & {child.pid for child in self._children}:
            return False
        self._deaths.meet(process, title(above[0]), above[0].pid)
        return True

    def _named(self, pid: int, rank: str) -> None:
        """A process says which rank it is, long before it attaches."""
        with contextlib.suppress(ConfigError):  # a line of its output that looks like it
            self._ranks.setdefault(pid, Rank.parse(rank))

    def _heard(self, rank: str, line: str) -> None:
        """A line of a process below those that the agent started."""
        text = self._plan.secrets.hide(line)
        self._below.append(text)
        self._write(f"({rank}) {text}" if rank else text)

    async def settled(self) -> None:
        """The role is ready: every process has its name now, and little changes from here on."""
        self._settled = True
        await self.look()

    async def look(self) -> None:
        """Note who belongs to the tree.

        In a thread, because what a process has mapped can be read only while that process does not change it, and one
        that got no core in the middle of that lets the reader wait: for half a second and more on a busy machine, and
        heartbeats must not wait with it. The thread runs before the model, or what it holds would be waited for.
        """
        await self._look_at_memory(LOOK_S)
        for process in self._leftovers.alive():
            with contextlib.suppress(psutil.NoSuchProcess):
                self._deaths.watch(process, self._leftovers.name(process.pid), process.ppid())

    async def _look_at_memory(self, limit_s: float) -> None:
        """One look at a time: one that takes for ever has a thread for ever."""
        roots = [child.pid for child in self._children]

        def observe() -> None:
            before_the_model()
            self._leftovers.observe(roots)

        looking = self._looking
        if looking is None or looking.done():
            looking = self._looking = asyncio.get_running_loop().run_in_executor(None, observe)
        done, _ = await asyncio.wait({looking}, timeout=limit_s)  # wait_for may lose a cancellation
        if done:
            looking.result()
        else:
            log.warning("could not see within %.1f s what the role's processes use", limit_s)

    async def first_exit(self) -> Child:
        """Wait until a process the agent started ends."""
        await asyncio.wait([child.exited for child in self._children], return_when=asyncio.FIRST_COMPLETED)
        return next(child for child in self._children if child.exited.done())

    async def first_failure(self) -> Child:
        """Wait until a process the agent started ends with another code than 0, if ever."""
        ended = {asyncio.ensure_future(asyncio.shield(child.exited)): child for child in self._children}
        while ended:
            done, _ = await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
            for future in done:
                child = ended.pop(future)
                if future.result() != 0:
                    return child
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def first_killed(self) -> Cause:
        """Wait until a process of the role is killed or crashes while all others are well, if ever. Whoever forked it
        may take seconds to say so, and nobody else needs to miss it."""
        if (cause := await self.killed(None)) is not None:
            return cause
        death = self._deaths.first
        if death is not None and death.unexplained:
            # Whoever took its exit code along may be about to end, with words that say more.
            await asyncio.wait(
                [child.exited for child in self._children],
                timeout=UNEXPLAINED_S,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not any(child.exited.done() for child in self._children):
                said = exception_below(
                    [*self._below, *(line for child in self._children for line in child.tail)]
                )
                words = f"; its last words: {said}" if said else ""
                return await self._end_of(death.pid, f"{death}{words}")
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def killed(self, timeout_s: float | None) -> Cause | None:
        """The same, when it has happened or happens within ``timeout_s``; None when it does not, or when the first that
        ended did so by itself."""
        death = await self._deaths.wait(timeout_s)
        return await self._end_of(death.pid, str(death)) if death is not None and death.violent else None

    async def behind(self, cause: Cause) -> Cause:
        """What is behind the failure that a process reports: what it met may be the end of another one, that was
        killed. Also when nobody knows any more how that one ended, unless it is the one that reports."""
        if cause.hearsay or cause.kind in ("ConfigError", "MismatchError"):
            return cause
        death = await self._deaths.wait(KILL_S)
        if death is None or not (
            death.violent or (death.code is None and self._rank(death.pid) != cause.rank)
        ):
            return cause
        return await self._end_of(death.pid, str(death))

    async def failure(self, lost: Process | None) -> Cause | None:
        """What the role lost so far: a child that failed, or else ``lost``. None when neither is there."""
        for child in self._children:
            if child.exited.done() and child.exited.result() != 0:
                return self.exit_cause(child)
        return None if lost is None else await self.explain(lost)

    async def explain(self, process: Process) -> Cause:
        """Why an attached process closed its connection without a goodbye: the process of the tree that ended first."""
        death = await self._deaths.wait(EXIT_STATUS_S)
        if death is not None:
            return await self._end_of(death.pid, str(death))
        return await self._end_of(
            process.pid, f"{self._leftovers.name(process.pid)} was killed or crashed", process.rank
        )

    async def _end_of(self, pid: int, text: str, otherwise: Rank | None = None) -> Cause:
        """The cause that the end of process ``pid`` is: ``text``, unless the agent started it or what it hangs on. The
        rank is ``otherwise`` when the process is none."""
        child = next((child for child in self._children if child.pid == pid), None)
        if child is not None:
            await asyncio.wait([child.exited], timeout=EXIT_STATUS_S)
            if child.exited.done():
                return self.exit_cause(child)
        # A child that was killed takes those below it along, and its status may arrive after theirs.
        await asyncio.wait([child.exited for child in self._children], timeout=EXIT_STATUS_S / 4)
        for child in self._children:
            if child.exited.done() and child.exited.result() < 0:
                return self.exit_cause(child)
        rank = str(otherwise) if otherwise is not None and pid not in self._ranks else self._rank(pid)
        return Cause("RoleFailedError", text, rank=rank, host=self._plan.hello.host.name)

    def exit_cause(self, child: Child) -> Cause:
        """The cause that the end of a process is, with the last thing it said when it left by itself. When one below it
        ended before, that is the cause."""
        code, kind, rank = child.exited.result(), "RoleFailedError", self._rank(child.pid)
        said = last_words([*self._below, *child.tail])
        if self._launcher is not None and self._launcher.gone:
            child = self._children[0]  # all ended with it, in no order
            text = f"the launcher was killed or crashed, and the {child.name} (process {child.pid}) with it"
            return Cause(kind, text, rank=self._rank(child.pid), host=self._plan.hello.host.name)
        first = self._deaths.first if code >= 0 else None
        if code == ConfigError.exit_code and said.startswith(ERROR):
            kind, text = "ConfigError", said.removeprefix(ERROR)
        else:
            text = f"the {child.name} (process {child.pid}) {describe_exit(code)}"
            if first is not None and first.pid != child.pid:
                # How it ended is unknown when its parent was faster than we: it may just have been told to end.
                text = f"{first.name + ' ended' if first.code is None else first}, then {text}"
                rank = self._rank(first.pid)
            if code >= 0 and said:
                text += f"; its last words: {said}"
        return Cause(kind, text, rank=rank, host=self._plan.hello.host.name)

    def stopped(self, effect: str) -> RoleFailedError | None:
        """The error of a process of the tree that is stopped now, if there is one, and what its ``effect`` is."""
        for process in self._leftovers.alive():
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.status() == psutil.STATUS_STOPPED:
                    text = f"{self._leftovers.name(process.pid)} is stopped, and {effect}"
                    return RoleFailedError(text, self._rank(process.pid))
        return None

    def _rank(self, pid: int) -> str:
        """The rank to blame for the end of a process: the one that it is, or else the first below it (an engine has
        workers), or the first of this agent."""
        below = [rank for process, rank in self._ranks.items() if self._deaths.is_below(process, pid)]
        return str(self._ranks.get(pid, min(below, default=self._plan.ranks[0])))

    async def settle_requests(self, timeout_s: float) -> None:
        """Wait until every request in flight has had its answer or its error, at most ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        while self.inflight > 0 and time.monotonic() < deadline:
            if self._children and self._children[0].exited.done():
                return
            await asyncio.sleep(0.02)
        if self.inflight > 0:
            log.warning("%d requests were still open after %.1f s", self.inflight, timeout_s)

    async def terminate(self, timeout_s: float) -> bool:
        """Ask the role's processes to end; True when all did within ``timeout_s``."""
        self._signal(signal.SIGTERM)
        return await self.wait(timeout_s)

    def kill(self) -> None:
        """SIGKILL to the processes the agent started; their descendants die with them."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        for child in self._children:
            if not child.exited.done():
                with contextlib.suppress(ProcessLookupError):  # it ended, and its exit is on the way to us
                    os.kill(child.pid, number)

    async def wait(self, timeout_s: float) -> bool:
        """Wait for the role's processes to end by themselves; True when all did within ``timeout_s``."""
        waiting = [child.exited for child in self._children if not child.exited.done()]
        if waiting:
            _, pending = await asyncio.wait(waiting, timeout=timeout_s)
            return not pending
        return True

    def rest(self, epoch: str) -> bool:
        """The epoch is over and the processes stay for the next one; False when one of them has ended."""
        if any(child.exited.done() for child in self._children):
            return False
        sweep(epoch)
        self.resting = True
        return True

    async def end(self, epoch: str) -> None:
        """Kill what is left of the tree, wait until it is gone, and remove what it left in shared memory.

        Twice is fine.
        """
        self.resting = False
        if self._ended:
            return
        self._ended = True
        try:
            await self._end(epoch)
        except Exception:  # the role has another reason to end, which this must not replace
            log.exception("the processes of the role were not ended in order")

    async def _end(self, epoch: str) -> None:
        try:
            if self._observer is not None:
                self._observer.cancel()
            self._deaths.close()
            await self._look_at_memory(LAST_LOOK_S)
        finally:
            if self._launcher is not None:
                self._launcher.release()
                await self._gone(2.0)
                await self._launcher.drain_output(0.3)
                if self._streams is not None:
                    await self._streams.close(0.3)
                await self._launcher.close()
            removed = self._leftovers.remove()
            if removed:
                names = ", ".join(removed[:6])
                log.info("removed %d shared-memory files that the role left: %s", len(removed), names)
            if epoch:
                sweep(epoch)

    def tell_more_than(self, error: BaseException | None) -> None:
        """Log what processes ended with, unless the role ends with the same words."""
        told = str(error)
        for words in self._errors:
            if words[:TOLD] not in told:
                log.error("%s", words)

    async def _gone(self, timeout_s: float) -> None:
        """Kill all at once: one after the other, by the death of its parent each, they would take their time."""
        for process in self._leftovers.alive():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        deadline = time.monotonic() + timeout_s
        while alive := self._leftovers.alive():
            if time.monotonic() > deadline:
                pids = ", ".join(str(process.pid) for process in alive)
                log.warning("processes %s were killed %.0f s ago and still run", pids, timeout_s)
                return
            await asyncio.sleep(0.02)

    async def _observe(self) -> None:
        while True:
            try:
                await self.look()
            except Exception:  # what is not seen now may be seen the next time
                log.exception("could not look at the role's processes")
            await asyncio.sleep(OBSERVE_S if self._settled else OBSERVE_LOADING_S)


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
