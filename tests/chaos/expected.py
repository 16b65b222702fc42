# SPDX-License-Identifier: Apache-2.0
"""What a group has to make of a fault: who names whom, how fast, and with which exit code (docs/architecture.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from afd.errors import PeerAbsentError, PeerLostError, RoleFailedError
from afd.topology import Role
from tests.chaos.cells import Cell, Fault, Phase, Target

STEP_S, RENDEZVOUS_S, DRAIN_S = 5.0, 15.0, 60.0
"""Settings of every group here. The first bounds a step, and requests without one; a drain may take as long as all
requests do on a busy machine."""
LOAD_S = 30.0
"""That of groups in which something stops while it loads."""
HEARTBEAT_S = 0.66
"""The default of timeouts.heartbeat_s; three of them without a sign of life are a loss."""
KILL_S = 2.0
"""From the kill of a process, or the end of a connection, to the cause in every log."""
SILENCE_S = 3 * HEARTBEAT_S + 1.0
"""The same for what can only be seen by its silence."""
STEP_BOUND_S = 2 * STEP_S + 4.0
"""The same for a process that is stopped: step_s of requests without a step, and as long again for an answer of the
server when it may be that one."""
LOAD_BOUND_S = LOAD_S + 12.0
END_S = 5.0
"""From the cause to the exit, which is the default of timeouts.grace_s: requests in flight get their error, processes
end."""

LOST, FAILED, ABSENT = PeerLostError.exit_code, RoleFailedError.exit_code, PeerAbsentError.exit_code
KILLED = -9
AGENT = r"(its agent|the agent of [AF0-9, ]+)"
"""How a cause names the agent of one rank, and that of several."""


@dataclass(frozen=True)
class Expected:
    """What is right.

    ``codes`` are the exit codes that a role may have when it ends; ``words`` the pattern that a role's cause matches,
    with {pid} for the target's; ``bound_s`` how long a role may take to name it. ``notices`` are the roles that do.
    """

    codes: Mapping[Role, tuple[int, ...]]
    words: Mapping[Role, str]
    bound_s: float
    notices: tuple[Role, ...] = (Role.ATTENTION, Role.FFN)
    one_cause: bool = True
    """Whether all name the same."""
    may_survive: bool = False
    """Whether the group may go on as if nothing had happened, when its answers are right."""


Codes = Mapping[Role, tuple[int, ...]]
_FULL = "/dev/shm|shared memory|No space left"
_NOTHING: Mapping[Role, str] = {}


def expected(cell: Cell) -> Expected:
    """What is right in a cell."""
    if cell.phase is Phase.RENDEZVOUS:
        return _alone(cell)
    match cell.fault:
        case Fault.KILL:
            return _killed(cell)
        case Fault.STOP:
            return _stopped(cell)
        case Fault.CLOSE:
            return _closed(cell)
        case Fault.CUT:
            codes: Codes = {role: (LOST,) for role in Role}
            return Expected(codes, _each_other("gave no sign of life"), SILENCE_S, one_cause=False)
        case Fault.FILL:
            codes = {role: (LOST, FAILED) for role in Role}
            return Expected(codes, _both(_FULL), STEP_BOUND_S, may_survive=True)


def other(role: Role) -> Role:
    return Role.FFN if role is Role.ATTENTION else Role.ATTENTION


def rank(target: Target) -> str:
    """The rank that a cause begins with."""
    if target.is_rank:
        return str(target)
    return "F0" if target.role is Role.FFN else "A0"


def _both(words: str) -> Mapping[Role, str]:
    """The same for every role."""
    return {role: words for role in Role}


def _each_other(words: str) -> Mapping[Role, str]:
    """Each role lost the agent of the other one, and cannot tell it: so there are two causes, and none is its own."""
    return {
        role: rf"^{first}: {AGENT} \(pid \w+ on .+\) {words}"
        for role, first in ((Role.ATTENTION, "F0"), (Role.FFN, "A0"))
    }


def _own(cell: Cell) -> Role:
    role = cell.target.role
    assert role is not None, cell
    return role


def _alone(cell: Cell) -> Expected:
    """One agent waits for its peer. A kill is nobody's loss; else the peer that comes waits in vain, and so does the
    first one when it goes on."""
    if cell.fault is Fault.KILL:
        own = _own(cell)
        return Expected({own: (KILLED,), other(own): (0,)}, _NOTHING, 0.0, notices=())
    if cell.fault is Fault.FILL:
        codes = {role: (LOST, FAILED) for role in Role}
        return Expected(codes, _both(_FULL), LOAD_BOUND_S, may_survive=True)
    codes = {role: (ABSENT, LOST) for role in Role}
    return Expected(codes, _NOTHING, RENDEZVOUS_S + END_S, notices=())


def _killed(cell: Cell) -> Expected:
    own, first = _own(cell), rank(cell.target)
    if cell.target.is_agent:
        codes = {own: (KILLED,), other(own): (LOST,)}
        words = rf"^{first}: {AGENT} \(pid {{pid}} on .+\) is gone: its connection closed"
        return Expected(codes, _both(words), KILL_S, notices=(other(own),))
    codes = {own: (FAILED,), other(own): (LOST,)}
    words = rf"^{first}: .*\(process {{pid}}\) was killed"
    if cell.target.is_launcher:
        words = rf"^{first}: the launcher was killed"
    return Expected(codes, _both(words), KILL_S)


def _stopped(cell: Cell) -> Expected:
    own, first = _own(cell), rank(cell.target)
    if cell.target.is_agent:
        # The stopped one hears of it when it goes on.
        codes = {own: (LOST, FAILED), other(own): (LOST,)}
        words = rf"^{first}: {AGENT} \(pid {{pid}} on .+\) gave no sign of life"
        return Expected(codes, _both(words), SILENCE_S, notices=(other(own),))
    codes = {own: (FAILED,), other(own): (LOST,)}
    bound_s = STEP_BOUND_S
    if cell.phase is Phase.LOAD:
        bound_s = LOAD_BOUND_S
    # A coordinator is asked when replicas start or end a run of steps, not within one.
    survives = cell.target is Target.COORDINATOR
    # Ranks of a role that load wait for each other: all are late, and the one that was stopped is among them. Those
    # that were in time follow a semicolon.
    words = rf"^[^;]*\b{first}\b" if cell.phase is Phase.LOAD else rf"^{first}\b"
    return Expected(codes, _both(words), bound_s, may_survive=survives)


def _closed(cell: Cell) -> Expected:
    codes: Codes
    if cell.target.is_agent:
        codes = {role: (LOST,) for role in Role}
        return Expected(codes, _each_other("is gone: its connection closed"), KILL_S, one_cause=False)
    codes = {role: (LOST, FAILED) for role in Role}
    # Whoever reads or writes first says that the other end closed it.
    end, far = cell.target, "A" if cell.target.role is Role.FFN else "F"
    words = (
        rf"^({end} closed (its step|the step|the) connection|{far}\d+ closed its step connection to {end})\b"
    )
    return Expected(codes, _both(words), KILL_S)
