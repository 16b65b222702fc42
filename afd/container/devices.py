# SPDX-License-Identifier: Apache-2.0
"""Which devices a role gets: accelerators by their number inside the container, or cores on CPU.

``AFD_ATTENTION_DEVICES`` and ``AFD_FFN_DEVICES`` are lists such as ``0-3,8``. On Ascend they become
``ASCEND_RT_VISIBLE_DEVICES`` of the role, and without them Attention's ranks get the first devices and FFN's the next
ones. On CPU every process of the role is kept to these cores and the role's ranks share them; without them the agents
deal out all cores themselves.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from afd.agent import cores
from afd.agent.cores import Cores
from afd.errors import ConfigError
from afd.number_list import parse, spell
from afd.topology import Role

VARIABLES = {Role.ATTENTION: "AFD_ATTENTION_DEVICES", Role.FFN: "AFD_FFN_DEVICES"}
VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"
BIND, THREADS = "VLLM_CPU_OMP_THREADS_BIND", "OMP_NUM_THREADS"
TOOLKIT = ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH")
"""Set by images with CANN, by nothing else."""


@dataclass(frozen=True)
class Share:
    """What a role gets on top of its environment, and the cores that it is kept to (none: all)."""

    variables: Mapping[str, str] = field(default_factory=dict)
    affinity: tuple[int, ...] = ()


def on_ascend(environment: Mapping[str, str]) -> bool:
    """Whether this is an image for Ascend."""
    return any(environment.get(name) for name in TOOLKIT)


def deal(
    roles: Iterable[Role],
    ranks: Mapping[Role, int],
    environment: Mapping[str, str],
    allowed: Sequence[int] | None = None,
    root: Path = Path("/"),
) -> dict[Role, Share]:
    """The share of each role of this container. ``ranks`` are those that run here, ``allowed`` this process's cores.

    Raises ConfigError for lists that are wrong, overlap, or do not fit the ranks or the machine.
    """
    roles = tuple(roles)
    lists = {role: read(VARIABLES[role], environment.get(VARIABLES[role], "")) for role in VARIABLES}
    both = [role for role in VARIABLES if lists[role]]
    if len(roles) > 1 and len(both) == 1:
        other = VARIABLES[both[0].other]
        raise ConfigError(f"env {VARIABLES[both[0]]} is set and {other} is not; set both, or none")
    twice = sorted(set(lists[Role.ATTENTION]) & set(lists[Role.FFN]))
    if len(roles) > 1 and twice:
        raise ConfigError(
            f"{spell(twice)} in {VARIABLES[Role.ATTENTION]} and in {VARIABLES[Role.FFN]}: a device has one role"
        )
    if on_ascend(environment):
        return {role: _ascend(role, roles, lists[role], ranks, environment) for role in roles}
    allowed = sorted(os.sched_getaffinity(0)) if allowed is None else allowed
    return {role: _cpu(role, lists[role], ranks[role], environment, allowed, root) for role in roles}


def read(name: str, text: str) -> tuple[int, ...]:
    """The numbers of a list such as "0-3,8", ascending. Raises ConfigError naming the variable ``name``."""
    if text.strip() and not text.strip(" ,"):
        raise ConfigError(
            f"env {name}: {text!r} names no device; leave it unset, or give a list such as 0-3,8"
        )
    try:
        return parse(text)
    except ValueError as error:
        raise ConfigError(f"env {name}: {error}") from None


def _ascend(
    role: Role,
    roles: Sequence[Role],
    chosen: tuple[int, ...],
    ranks: Mapping[Role, int],
    environment: Mapping[str, str],
) -> Share:
    visible = environment.get(VISIBLE, "")
    if not chosen:
        if len(roles) == 1:
            return Share()
        pool = read(VISIBLE, visible) or tuple(range(sum(ranks.values())))
        if len(pool) < sum(ranks.values()):
            raise ConfigError(
                f"env {VISIBLE}: {len(pool)} devices ({visible}) for {sum(ranks.values())} ranks; each needs its own"
            )
        start = 0 if role is Role.ATTENTION else ranks[Role.ATTENTION]
        chosen = pool[start : start + ranks[role]]
    elif visible and not set(chosen) <= set(read(VISIBLE, visible)):
        raise ConfigError(
            f"env {VARIABLES[role]}: {spell(chosen)}, but {VISIBLE} is {visible}; leave {VISIBLE} out, or name devices "
            "that are in it"
        )
    if len(chosen) != ranks[role]:
        raise ConfigError(
            f"env {VARIABLES[role]}: {len(chosen)} devices for {ranks[role]} {role} ranks; give each one"
        )
    return Share({VISIBLE: spell(chosen)})


def _cpu(
    role: Role,
    chosen: tuple[int, ...],
    ranks: int,
    environment: Mapping[str, str],
    allowed: Sequence[int],
    root: Path,
) -> Share:
    if not chosen:
        return Share()
    foreign = sorted(set(chosen) - set(allowed))
    if foreign:
        raise ConfigError(
            f"env {VARIABLES[role]}: core {spell(foreign)} is not one of this container's, which are {spell(allowed)}"
        )
    if environment.get(BIND):
        raise ConfigError(f"env {VARIABLES[role]} and {BIND} both choose cores; leave one of them out")
    plans = cores.plan_threads(ranks, Cores.of(chosen, root))
    variables = {BIND: cores.binding(plans)}
    if not environment.get(THREADS):
        variables[THREADS] = str(plans[0].threads)
    return Share(variables, chosen)
