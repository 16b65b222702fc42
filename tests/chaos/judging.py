# SPDX-License-Identifier: Apache-2.0
"""Whether what a group made of a fault is what it should have made of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from afd.topology import Role
from tests.chaos.cells import Cell, Fault, Phase
from tests.chaos.expected import END_S, Expected, expected


@dataclass
class Seen:
    """What a group made of a fault, by role: when an agent named a cause, and which, when it exited, and with which
    code. Times are seconds after the fault. With ``survived`` every request has its answer, and nobody named a cause.
    """

    noticed: dict[Role, float] = field(default_factory=dict)
    causes: dict[Role, str] = field(default_factory=dict)
    ended: dict[Role, float] = field(default_factory=dict)
    codes: dict[Role, int] = field(default_factory=dict)
    survived: bool = False


def problems(cell: Cell, seen: Seen, pid: str) -> list[str]:
    """What is wrong with it. ``pid`` is that of the target, as the causes have it."""
    if seen.survived:
        return list(_with_survivors(cell, seen))
    right = expected(cell)
    return [*_with_causes(right, seen, pid), *_with_codes(cell, right, seen)]


def leaves_nothing(cell: Cell, seen: Seen) -> bool:
    """Whether the group has come to an end after which nothing of it, or of its epoch, may be left."""
    if cell.phase is Phase.RENDEZVOUS or (seen.survived and cell.phase is not Phase.DRAIN):
        return False
    return cell.rejoins or len(seen.ended) == len(Role)


def _with_survivors(cell: Cell, seen: Seen) -> list[str]:
    """A group that nothing happened to goes on, or ends its drain as if nothing had happened."""
    found = [
        f"{role} names a cause, though the group goes on: {words!r}" for role, words in seen.causes.items()
    ]
    for role in Role:
        code = seen.codes.get(role)
        if cell.phase is not Phase.DRAIN and code is not None:
            found.append(f"{role} exited with {code}, though the group goes on")
        elif cell.phase is Phase.DRAIN and code is None:
            found.append(f"{role} did not end its drain")
        elif cell.phase is Phase.DRAIN and code != 0:
            found.append(f"{role} ended its drain with {code}, not with 0")
    return found


def _with_causes(right: Expected, seen: Seen, pid: str) -> list[str]:
    found = []
    for role in right.notices:
        if role not in seen.causes:
            found.append(f"{role} named no cause")
            continue
        if seen.noticed[role] > right.bound_s:
            found.append(f"{role} noticed after {seen.noticed[role]:.2f} s, bound {right.bound_s:g} s")
        words = right.words[role].format(pid=pid)
        if not re.search(words, seen.causes[role]):
            found.append(f"{role} says {seen.causes[role]!r}, expected {words!r}")
    named = {str(role): words for role, words in seen.causes.items() if role in right.notices}
    if right.one_cause and len(set(named.values())) > 1:
        found.append(f"two causes: {named}")
    return found


def _with_codes(cell: Cell, right: Expected, seen: Seen) -> list[str]:
    found = []
    killed = cell.target.role if cell.fault is Fault.KILL and cell.target.is_agent else None
    final = not cell.rejoins and not (cell.phase is Phase.RENDEZVOUS and killed)
    for role in Role:
        if role in seen.codes:
            allowed = right.codes[role] if final or role is killed else ()
            if seen.codes[role] not in allowed:
                found.append(f"{role} exited with {seen.codes[role]}, allowed: {allowed or 'not at all'}")
        elif final:
            found.append(f"{role} did not exit")
        if final and role in seen.ended and role in seen.noticed:
            late = seen.ended[role] - seen.noticed[role]
            if late > END_S:
                found.append(f"{role} exited {late:.2f} s after it knew the cause, bound {END_S:g} s")
    return found
