# SPDX-License-Identifier: Apache-2.0
"""A group in a phase: how it gets there, who is who in it, and whether it was there when the deed was done.

Nothing here sleeps for a while and hopes: a phase is reached when the agents, the logs or the streams say so, and a
deed that came too late (:class:`PhaseMissedError`) is repeated.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from afd.errors import RoleFailedError
from afd.testing.stack import Group, status
from afd.topology import Role
from tests.chaos.cells import Cell, Fault, Phase, Target
from tests.chaos.faults import Connections, Deed, NoEffectError
from tests.chaos.saying import Said
from tests.chaos.stand import READY_S, Stand
from tests.chaos.traffic import DECODE, PREFILL, Traffic
from tests.system.rig import Traces, tree

SEEN_S = 0.7
"""Age at which an agent has seen a process that it did not start itself, while it loads: it looks every 0.3 s."""
SETTLED_S = 0.3
"""No step for so long: the group is idle."""


class PhaseMissedError(AssertionError):
    """The group was not in the phase when the deed was done."""


def until(condition: Callable[[], object], timeout_s: float, what: str, group: Group | None = None) -> None:
    """Wait for ``condition``. Raises RoleFailedError naming ``what`` after ``timeout_s``, or as soon as a role of
    ``group`` has ended."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        for role in group.roles.values() if group else ():
            if role.exit_code is not None:
                raise RoleFailedError(f"{role.role} ended with code {role.exit_code}: {role.error()}")
        if time.monotonic() > deadline:
            raise RoleFailedError(f"{what}: not within {timeout_s:g} s")
        time.sleep(0.005)


def body(group: Group, role: Role) -> dict[str, Any]:
    """The agent's /status; {} when it does not answer."""
    try:
        return asyncio.run(status(group.roles[role].agent_url))
    except (aiohttp.ClientError, asyncio.TimeoutError):
        return {}


def said(group: Group, role: Role) -> Said:
    return Said.of(group.roles[role].text())


_TITLES = {
    Target.ATTENTION_AGENT: ("attention agent",),
    Target.FFN_AGENT: ("ffn agent",),
    Target.API_SERVER: ("API server",),
    Target.COORDINATOR: ("DPCoordinator",),
    Target.ENGINE: ("EngineCore_DP0",),
    Target.A0: ("Worker_DP0",),
    Target.A1: ("Worker_DP1",),
    Target.F0: ("rank F0",),
    Target.F1: ("rank F1",),
}
_ALONE = {Target.A0: ("Worker",), Target.ENGINE: ("EngineCore",)}
"""Of a group with one replica. With several, any of their workers is called like that before it knows which it is."""
_CHILD = {Target.ATTENTION_LAUNCHER: "API server", Target.FFN_LAUNCHER: "rank F0"}


def find(found: Mapping[str, psutil.Process], target: Target, replicas: int) -> psutil.Process | None:
    """The target's process among those of :func:`tests.system.rig.tree`; None while there is none. A launcher is the
    process that forks for one agent. Processes of Attention's ``replicas`` are numbered when there are several."""
    if target.is_launcher:
        child = found.get(_CHILD[target])
        return None if child is None else child.parent()
    names = _ALONE.get(target, _TITLES[target]) if replicas == 1 else _TITLES[target]
    return next((found[name] for name in names if name in found), None)


@dataclass
class Scene:
    """A group that is in the phase of a cell."""

    cell: Cell
    stand: Stand
    group: Group
    traffic: Traffic | None = None
    victim: psutil.Process | None = None
    connections: Connections | None = None
    """Those that are to be shut down, when they were looked up before the phase."""
    traces: Traces = field(default_factory=lambda: Traces({}, {}, set()))
    epoch: str = ""
    resources: dict[Role, tuple[int, int]] = field(default_factory=dict)
    """Threads and sockets of each agent, when the group was ready and nobody had asked for anything."""
    temporary: set[str] = field(default_factory=set)

    @property
    def role(self) -> Role:
        """Whose states decide about the phase."""
        return self.cell.target.role or Role.ATTENTION

    def find(self, found: Mapping[str, psutil.Process], target: Target) -> psutil.Process | None:
        """The target's process among those ``found`` in this group; None while there is none."""
        return find(found, target, self.cell.topology.num_attention)

    # ---- the way there ------------------------------------------------------------------------------------

    def reach(self) -> None:
        """Bring the group to the phase. Raises AFDError when it does not get there."""
        cell, group = self.cell, self.group
        match cell.phase:
            case Phase.RENDEZVOUS:
                self._meet()
            case Phase.LOAD:
                self.stand.start(group)
                until(self._loads, READY_S, f"the load with {cell.target} in it", group)
            case Phase.WARMUP:
                self.stand.start(group)
                until(self._populated, READY_S, f"the processes, with {cell.target}", group)
                self._note()  # it takes longer than some warm-ups, and so does looking at connections
                if cell.fault is Fault.CLOSE:
                    until(self._connected, READY_S, "the connections", group)
                until(lambda: said(group, Role.ATTENTION).state("warming"), READY_S, "the warm-up", group)
                return
            case Phase.PREFILL:
                self._idle()
                self.traffic = Traffic(group.attention.api_url, PREFILL)
                steps = body(group, Role.ATTENTION)["steps"]
                until(lambda: body(group, Role.ATTENTION)["steps"] >= steps + 4, 30, "steps", group)
            case Phase.DECODE | Phase.DRAIN:
                self._idle()
                self._decode()
            case Phase.IDLE:
                self._idle()
        if cell.phase is Phase.DRAIN:
            self._drain()
        self._note()

    def _meet(self) -> None:
        """One agent alone. Of the network and shared memory nobody is the victim: the root waits."""
        first = self.cell.target.role or Role.FFN
        self.stand.start(self.group, first)
        until(lambda: body(self.group, first).get("state") == "rendezvous", 30, "the rendezvous", self.group)

    def _loads(self) -> bool:
        target, found = self.cell.target, tree(self.group)
        if target in (Target.ENGINE, Target.COORDINATOR, Target.A0, Target.A1):
            process = self.find(found, target)
            return process is not None and time.time() - process.create_time() > SEEN_S
        first = "API server" if self.role is Role.ATTENTION else "rank F0"
        return first in found and (target.role is None or self.find(found, target) is not None)

    def _idle(self) -> None:
        """No step for a while. Remember what the agents use then."""
        seen = [-1, time.monotonic()]

        def settled() -> bool:
            steps = body(self.group, Role.ATTENTION).get("steps", -1)
            if steps != seen[0]:
                seen[:] = [steps, time.monotonic()]
            return time.monotonic() - seen[1] > SETTLED_S

        until(settled, 30, "no more steps", self.group)
        self.resources = {role: usage(process.process.pid) for role, process in self.group.roles.items()}

    def _decode(self) -> None:
        """Each stream has more tokens than one step gives: its prompt is done, and those beside it are, too."""
        traffic = self.traffic = Traffic(self.group.attention.api_url, DECODE)
        streams = [question.name for question in DECODE if question.stream]
        until(
            lambda: all(len(traffic.answers[name].tokens) >= 8 for name in streams),
            30,
            "tokens of every stream",
            self.group,
        )

    def _drain(self) -> None:
        """Attention is told to stop, both roles say that they drain, and tokens still come. Raises PhaseMissedError
        when every request has its answer before that is seen: the drain is over then."""
        group, traffic = self.group, self.traffic
        assert traffic is not None
        group.attention.signal(signal.SIGTERM)
        until(lambda: served(traffic) or drains(group), 10, "the drain", group)
        tokens = traffic.tokens
        until(lambda: served(traffic) or traffic.tokens > tokens, 10, "tokens in the drain", group)
        if served(traffic):
            raise PhaseMissedError("every request was answered before the drain was seen")

    def _populated(self) -> bool:
        target, found = self.cell.target, tree(self.group)
        ranks = (Target.A0, Target.A1)[: self.cell.topology.num_attention]
        here = {"API server", "rank F0"} <= found.keys() and all(self.find(found, rank) for rank in ranks)
        return here and (target.role is None or self.find(found, target) is not None)

    def _connected(self) -> bool:
        with suppress(NoEffectError):
            self.connections = self.connections_to_peers()
        return self.connections is not None

    def connections_to_peers(self) -> Connections:
        """Those of the victim to the other role. Raises NoEffectError when there are none."""
        target, victim = self.cell.target, self.victim
        assert victim is not None
        peers = (Target.ATTENTION_AGENT, Target.FFN_AGENT)
        if target.is_rank:
            peers = (Target.A0, Target.A1) if target.role is Role.FFN else (Target.F0, Target.F1)
        there = [self.find(self.traces.processes, peer) for peer in peers]
        return Connections.of(victim, [found for found in there if found is not None and found != victim])

    def _note(self) -> None:
        """Who is there now, and what they use."""
        group, target = self.group, self.cell.target
        self.traces = Traces.of(group)
        processes = self.traces.processes
        self.victim = None if target.role is None else self.find(processes, target)
        if target.role is not None and self.victim is None:
            raise RoleFailedError(f"there is no {target}: {', '.join(processes)}")
        launchers = {launcher: self.find(processes, launcher) for launcher in _CHILD}
        processes |= {str(launcher): found for launcher, found in launchers.items() if found is not None}
        self.temporary = self.stand.left_in_temporary()
        self.epoch = body(group, self.role).get("epoch", "") if self.role in group.roles else ""

    # ---- afterwards ---------------------------------------------------------------------------------------

    def check(self, deed: Deed) -> None:
        """Raises PhaseMissedError when the phase was over before the deed, RoleFailedError when the group was."""
        cell = self.cell
        state = said(self.group, self.role if self.role in self.group.roles else Role.FFN).state_at(
            deed.clock
        )
        right = {
            Phase.RENDEZVOUS: ("rendezvous",),
            Phase.LOAD: ("loading",),
            Phase.WARMUP: ("ready-to-warm", "warming"),
            Phase.DRAIN: ("draining",),
        }.get(cell.phase, ("ready",))
        if state == "failed":
            raise RoleFailedError(f"{self.role} had failed before the fault came")
        if state not in right:
            raise PhaseMissedError(f"{self.role} was {state} when the fault came")
        if self.traffic is not None and not self.traffic.open_at(deed.at):
            raise PhaseMissedError("every request was answered when the fault came")


def drains(group: Group) -> bool:
    """Whether both roles have said so."""
    return all(said(group, role).state("draining") for role in Role)


def served(traffic: Traffic) -> bool:
    """Whether every request has an answer."""
    return traffic.over and not traffic.errors


def usage(pid: int) -> tuple[int, int]:
    """Threads and sockets of a process. Its other files come and go with the processes that it watches."""
    sockets = 0
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since
            sockets += os.readlink(descriptor).startswith("socket:")
    return psutil.Process(pid).num_threads(), sockets
