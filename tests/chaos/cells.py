# SPDX-License-Identifier: Apache-2.0
"""Which experiments there are, which of their combinations cannot exist and why, and which of them a run takes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from enum import Enum

from allpairspy import AllPairs

from afd.topology import Role, Topology


class Fault(str, Enum):
    """What is done."""

    KILL = "kill"
    STOP = "stop"
    CLOSE = "close"
    CUT = "cut"
    FILL = "fill"

    def __str__(self) -> str:
        return self.value

    @property
    def isolated(self) -> bool:
        """Whether it needs mount and network namespaces of its own."""
        return self in (Fault.CUT, Fault.FILL)


class Target(str, Enum):
    """To whom it is done."""

    ATTENTION_AGENT = "attention agent"
    FFN_AGENT = "ffn agent"
    ATTENTION_LAUNCHER = "attention launcher"
    FFN_LAUNCHER = "ffn launcher"
    API_SERVER = "API server"
    COORDINATOR = "DP coordinator"
    ENGINE = "EngineCore"
    A0 = "A0"
    A1 = "A1"
    F0 = "F0"
    F1 = "F1"
    NETWORK = "network"
    SHM = "shared memory"

    def __str__(self) -> str:
        return self.value

    @property
    def role(self) -> Role | None:
        """Whose process it is."""
        if self in (Target.NETWORK, Target.SHM):
            return None
        return Role.FFN if self in _OF_FFN else Role.ATTENTION

    @property
    def is_agent(self) -> bool:
        return self in (Target.ATTENTION_AGENT, Target.FFN_AGENT)

    @property
    def is_launcher(self) -> bool:
        return self in (Target.ATTENTION_LAUNCHER, Target.FFN_LAUNCHER)

    @property
    def is_rank(self) -> bool:
        return self in (Target.A0, Target.A1, Target.F0, Target.F1)


_OF_FFN = (Target.FFN_AGENT, Target.FFN_LAUNCHER, Target.F0, Target.F1)


class Phase(str, Enum):
    """When. The order is that of a group's life."""

    RENDEZVOUS = "rendezvous"
    LOAD = "load"
    WARMUP = "warmup"
    IDLE = "idle"
    PREFILL = "prefill"
    DECODE = "decode"
    DRAIN = "drain"

    def __str__(self) -> str:
        return self.value

    @property
    def serving(self) -> bool:
        """Whether the group is ready by then."""
        return self in (Phase.IDLE, Phase.PREFILL, Phase.DECODE, Phase.DRAIN)


LAYOUTS = {"1A1F": Topology(1, 1), "2A2F": Topology(2, 2)}
ON_LOSS = ("exit", "rejoin")


@dataclass(frozen=True)
class Cell:
    """One experiment. The order of the fields is that of :func:`product`."""

    fault: Fault
    target: Target
    phase: Phase
    layout: str = "1A1F"
    on_loss: str = "exit"

    def __str__(self) -> str:
        """A name for files and for the command line."""
        words = (self.fault, self.target, self.phase, self.layout, self.on_loss)
        return ".".join(str(word).replace(" ", "-") for word in words).lower()

    @classmethod
    def parse(cls, name: str) -> Cell:
        """The cell that is called ``name``. Raises KeyError."""
        return {str(cell): cell for cell in product()}[name]

    @property
    def topology(self) -> Topology:
        return LAYOUTS[self.layout]

    @property
    def rejoins(self) -> bool:
        """Whether the agents stay: a stop that was asked for is final, and so is a peer that never came."""
        return self.on_loss == "rejoin" and self.phase not in (Phase.DRAIN, Phase.RENDEZVOUS)


def product() -> list[Cell]:
    """Every combination there is, of which most are impossible."""
    values = itertools.product(Fault, Target, Phase, LAYOUTS, ON_LOSS)
    return [Cell(*value) for value in values]


def impossible(cell: Cell) -> str:
    """Why there is no such experiment; "" when there is."""
    return _no_such_pair(cell) or _not_there(cell)


def _no_such_pair(cell: Cell) -> str:
    """Faults that a target cannot have."""
    fault, target = cell.fault, cell.target
    if fault is Fault.CUT and target is not Target.NETWORK:
        return "a cut loses packets between the roles, whichever process sends them: see the target network"
    if fault is Fault.FILL and target is not Target.SHM:
        return "shared memory is the machine's, not a process's: see the target shared memory"
    if target is Target.NETWORK and fault is not Fault.CUT:
        return "a network is cut; it is no process, and connections are closed at one of their ends"
    if target is Target.SHM and fault is not Fault.FILL:
        return "shared memory is filled; it is no process"
    if fault is Fault.CLOSE and not (target.is_agent or target.is_rank):
        return "it has no connection to the other role"
    if fault is Fault.STOP and target.is_launcher:
        return "after its forks a launcher only waits, and nobody misses one that is stopped"
    return ""


def _not_there(cell: Cell) -> str:
    """Targets that are not there yet, or not in this layout."""
    fault, target, phase, topology = cell.fault, cell.target, cell.phase, cell.topology
    if target is Target.COORDINATOR and topology.num_attention == 1:
        return "one Attention replica has no DP coordinator"
    if target in (Target.A1, Target.F1) and max(topology.num_attention, topology.num_ffn) == 1:
        return f"{cell.layout} has no {target}"
    if phase is Phase.RENDEZVOUS and not target.is_agent and target.role is not None:
        return "the role's processes start only after the rendezvous"
    if fault is Fault.CLOSE and phase is Phase.RENDEZVOUS:
        return "the roles are connected only when the rendezvous is over"
    if fault is Fault.CLOSE and phase is Phase.LOAD and target.is_rank:
        return "ranks of the two roles connect to each other at the end of the load"
    return ""


def possible(cells: Iterable[Cell]) -> list[Cell]:
    """Those that can be run."""
    return [cell for cell in cells if not impossible(cell)]


def complete() -> list[Cell]:
    """Kill each process in each phase, on 1A1F with ``exit``."""
    return [
        cell
        for cell in possible(product())
        if (cell.fault, cell.layout, cell.on_loss) == (Fault.KILL, "1A1F", "exit")
    ]


def pairs(cell: Cell) -> set[tuple[tuple[str, object], ...]]:
    """Every two values that meet in a cell."""
    values = [(field.name, value) for field, value in zip(fields(cell), astuple(cell), strict=True)]
    return set(itertools.combinations(values, 2))


def pairwise() -> list[Cell]:
    """A selection in which any two values meet that can meet at all, of all dimensions."""
    every = possible(product())
    # The other way round: ties go to what comes first, and `complete` has enough of that.
    backwards = every[::-1]
    prefixes = {astuple(cell)[:length] for cell in every for length in range(1, 6)}
    dimensions: Sequence[Sequence[object]] = [
        list(dict.fromkeys(column)) for column in zip(*map(astuple, backwards), strict=True)
    ]
    found = AllPairs(dimensions, filter_func=lambda row: tuple(row) in prefixes)
    chosen = [Cell(*row) for row in found]
    # The library is greedy and never goes back: where impossible combinations are many, it leaves pairs out.
    open_pairs = set().union(*map(pairs, every)) - set().union(*map(pairs, chosen))
    while open_pairs:
        best = max(backwards, key=lambda cell: len(pairs(cell) & open_pairs))
        chosen.append(best)
        open_pairs -= pairs(best)
    return sorted(chosen, key=every.index)
