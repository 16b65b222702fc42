# SPDX-License-Identifier: Apache-2.0
"""How many OpenMP threads each model process gets on this host, and on which cores.

vLLM's own choice binds every engine to the same cores of the first NUMA node, so two roles on one host would
compete for them. Here the cores that this process may use are dealt out once, for all model processes of the
host together. Every process gets the same number of threads, because the number of threads decides the order
of sums, and ranks that should compute the same must sum alike.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from afd.agent.cgroup import cpu_quota
from afd.errors import MisuseError

NOBIND = "nobind"
_ONE_CORE = re.compile(r"[ {]*(\d+)(?:-\1)?[ }]*")


@dataclass(frozen=True)
class CorePlan:
    """For one process: ``threads`` for ``OMP_NUM_THREADS``, and ``bind`` for ``VLLM_CPU_OMP_THREADS_BIND``.

    ``bind`` is a list of cores such as "0,2,4", or "nobind": then the kernel places the threads.
    """

    threads: int
    bind: str


@dataclass(frozen=True)
class Cores:
    """What this process may run on: ``groups`` holds the logical cores of each physical one, ``quota`` a
    limit on CPU time in cores, or None.
    """

    groups: tuple[tuple[int, ...], ...]
    quota: float | None

    @property
    def logical(self) -> int:
        """Logical cores in the affinity mask."""
        return sum(len(group) for group in self.groups)

    @property
    def usable(self) -> int:
        """Threads that can really run at once."""
        return self.logical if self.quota is None else max(1, min(self.logical, math.floor(self.quota)))

    @classmethod
    def read(cls, root: Path = Path("/")) -> Cores:
        """The affinity mask of this process, grouped by physical core, with the quota of its control group."""
        return cls.of(sorted(os.sched_getaffinity(0)), root)

    @classmethod
    def of(cls, allowed: Sequence[int], root: Path) -> Cores:
        """The same for a given affinity mask."""
        groups: dict[str, list[int]] = {}
        for core in allowed:
            try:
                siblings = (
                    root / f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"
                ).read_text()
            except OSError:
                siblings = str(core)
            groups.setdefault(siblings.strip(), []).append(core)
        return cls(tuple(tuple(group) for group in groups.values()), cpu_quota(root))


def plan_threads(num_processes: int, cores: Cores | None = None) -> list[CorePlan]:
    """Deal the host's cores out to ``num_processes`` model processes; entry i is for process i.

    Cores are listed when there is at least one for each process, physical ones before their hyperthreads.
    Nothing is bound when processes exceed cores, or when a quota grants less than the mask shows: in the
    second case every container of the host sees the same cores and would choose the same ones.
    """
    if num_processes < 1:
        raise MisuseError(f"{num_processes} processes to plan threads for")
    found = Cores.read() if cores is None else cores
    if num_processes > found.logical or found.usable < found.logical:
        return [CorePlan(max(1, found.usable // num_processes), NOBIND)] * num_processes
    first = [group[0] for group in found.groups]
    pool = first if len(first) >= num_processes else [core for group in found.groups for core in group]
    share = len(pool) // num_processes
    return [
        CorePlan(share, ",".join(map(str, pool[index * share : (index + 1) * share])))
        for index in range(num_processes)
    ]


def binding(plans: Sequence[CorePlan]) -> str:
    """One value of ``VLLM_CPU_OMP_THREADS_BIND`` for an engine whose workers follow ``plans``, in rank order."""
    lists = [plan.bind for plan in plans]
    return NOBIND if NOBIND in lists else "|".join(lists)


def room_for_a_second_thread(bind: str) -> str:
    """``bind`` (as in ``VLLM_CPU_OMP_THREADS_BIND``), or "nobind" when it keeps some rank to one core.

    For transports whose bytes are moved by a thread of their own: on the one core of a rank that thread and the model
    take turns by the scheduler's tick, and a small round trip takes 3.6 ms instead of 0.2.
    """
    return NOBIND if any(_ONE_CORE.fullmatch(cores) for cores in bind.split("|")) else bind
