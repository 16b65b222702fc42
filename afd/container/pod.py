# SPDX-License-Identifier: Apache-2.0
"""Which role and which replicas this pod has, as its own surroundings say.

A StatefulSet holds the pods of one role: ``AFD_POD_COUNT`` says how many, and the pod's ordinal (``AFD_POD_INDEX``, or
the number at the end of its host name) which of them this is. A group of a LeaderWorkerSet holds both roles in the
order of the world: one FFN pod, and the pods of Attention after it (before it, where Attention comes first).

FFN is one agent with all FFN ranks, so it is one pod. Attention's data-parallel replicas are dealt out evenly; the pod
with index 0 has the API server, the others run headless.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from afd.agent.share import DATA, HEADLESS, LOCAL, START, size
from afd.agent.vllm_arguments import VllmArguments
from afd.config import kinds
from afd.errors import ConfigError
from afd.topology import Role, Topology

INDEX, COUNT = "AFD_POD_INDEX", "AFD_POD_COUNT"
WORKER, SIZE, LEADER = "LWS_WORKER_INDEX", "LWS_GROUP_SIZE", "LWS_LEADER_ADDRESS"
ADDRESS = "--data-parallel-address"
_ORDINAL = re.compile(r"-(\d+)$")


@dataclass(frozen=True)
class Pod:
    """Pod ``index`` of the ``count`` pods that have ``role``. ``rendezvous`` is the host of world rank 0 and ``head``
    that of the API server, where the surroundings tell; "" else."""

    role: Role
    index: int = 0
    count: int = 1
    rendezvous: str = ""
    head: str = ""


def find(role: Role | None, environment: Mapping[str, str], hostname: str, topology: Topology) -> Pod:
    """The pod of this process. ``role`` is the one that was asked for in words, None when the pod has to know.

    Raises ConfigError when nothing tells the role, and when two sources contradict each other.
    """
    named = environment.get("AFD_ROLE", "")
    if role is None and named:
        if named not in tuple(map(str, Role)):
            raise ConfigError(f"env AFD_ROLE: {named!r} is neither attention nor ffn")
        role = Role(named)
    elif role is not None and named not in ("", str(role)):
        raise ConfigError(f"env AFD_ROLE: {named}, but the command is {role}; leave one of them out")
    if environment.get(COUNT):
        return _of_set(role, environment, hostname)
    if environment.get(WORKER):
        return _of_group(role, environment, topology)
    if environment.get(INDEX):
        raise ConfigError(f"env {INDEX}: means nothing without {COUNT}, the number of pods of this role")
    if role is None:
        raise ConfigError(
            f"no role: say `attention` or `ffn` instead of `serve`, set AFD_ROLE, or have {WORKER} set"
        )
    return Pod(role)


def arguments_of(pod: Pod, given: VllmArguments) -> list[str]:
    """What vLLM's arguments lack to give this pod its replicas. Raises ConfigError when they say something else."""
    if pod.role is Role.FFN or pod.count == 1:
        return []
    replicas = size(given, DATA)
    if replicas % pod.count:
        raise ConfigError(
            f"{replicas} data-parallel replicas of Attention ({DATA}) cannot be dealt out evenly to {pod.count} pods; "
            f"use a multiple of {pod.count}"
        )
    local = replicas // pod.count
    wanted: dict[str, str | None] = {LOCAL: str(local)}
    if pod.index:
        wanted |= {START: str(pod.index * local), HEADLESS: None}
    for flag in (LOCAL, START, HEADLESS):
        told = given.get(flag) if given.enabled(flag) else None
        if given.enabled(flag) and (flag not in wanted or (wanted[flag] or "") != told):
            right = f"{flag} {wanted[flag] or ''}".strip() if flag in wanted else f"no {flag}"
            raise ConfigError(
                f"{f'{flag} {told}'.strip()}: pod {pod.index} of Attention's {pod.count} needs {right}; "
                f"leave {flag} out, or {COUNT}"
            )
    if not given.enabled(ADDRESS):
        if not pod.head:
            raise ConfigError(
                f"Attention on {pod.count} pods: {ADDRESS} must name the pod with index 0, by which the others find it"
            )
        wanted[ADDRESS] = pod.head
    missing = {flag: value for flag, value in wanted.items() if not given.enabled(flag)}
    return [word for flag, value in missing.items() for word in (flag, value) if word is not None]


def _of_set(role: Role | None, environment: Mapping[str, str], hostname: str) -> Pod:
    count = _number(environment, COUNT, minimum=1)
    if role is None:
        raise ConfigError(f"env {COUNT}: the pods of which role? Set AFD_ROLE, or say `attention` or `ffn`")
    if environment.get(INDEX):
        index, source = _number(environment, INDEX), f"env {INDEX}"
    else:
        ordinal = _ORDINAL.search(hostname)
        if ordinal is None and count > 1:
            raise ConfigError(
                f"host name {hostname!r} ends with no ordinal as the pods of a StatefulSet have it; set {INDEX}"
            )
        index, source = (int(ordinal[1]) if ordinal else 0), f"host name {hostname!r}"
    if index >= count:
        raise ConfigError(f"{source}: there is no pod {index} among {count} (env {COUNT}), numbered from 0")
    _one_ffn(role, count, f"env {COUNT}")
    return Pod(role, index, count)


def _of_group(role: Role | None, environment: Mapping[str, str], topology: Topology) -> Pod:
    """Of a LeaderWorkerSet: the leader is world rank 0's host."""
    index, members = _number(environment, WORKER), _number(environment, SIZE, minimum=2)
    if index >= members:
        raise ConfigError(
            f"env {WORKER}: {index}, but the group has {members} pods ({SIZE}), numbered from 0"
        )
    leader = environment.get(LEADER, "")
    if not leader:
        raise ConfigError(f"env {LEADER}: not set; it is where the other pods of the group find world rank 0")
    ffn_first = topology.order.roles[0] is Role.FFN
    ffn = 0 if ffn_first else members - 1
    mine = Role.FFN if index == ffn else Role.ATTENTION
    if role not in (None, mine):
        raise ConfigError(
            f"{role} was asked for, but pod {index} of {members} of a LeaderWorkerSet ({WORKER}) has {mine}: one FFN "
            f"pod, {'first' if ffn_first else 'last'}, all others Attention; use `serve`, or set {COUNT}"
        )
    head = _member(leader, 1) if ffn_first else leader
    if mine is Role.FFN:
        return Pod(mine, rendezvous=leader, head=head)
    return Pod(mine, index - ffn_first, members - 1, leader, head)


def _member(leader: str, index: int) -> str:
    """The address of another pod of the group: the leader's name, "-", the index, in the same domain."""
    name, dot, domain = leader.partition(".")
    return f"{name}-{index}{dot}{domain}"


def _one_ffn(role: Role, count: int, where: str) -> None:
    if role is Role.FFN and count > 1:
        raise ConfigError(
            f"{where}: {count} pods of FFN, but one agent has all FFN ranks; use 1, and --afd-num-ffn-ranks for more"
        )


def _number(environment: Mapping[str, str], name: str, minimum: int = 0) -> int:
    try:
        found: int = kinds.at_least("a number of pods" if minimum else "an index", minimum).read(
            environment.get(name, "")
        )
    except ValueError as error:
        raise ConfigError(f"env {name}: {error}") from None
    return found
