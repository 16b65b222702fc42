# SPDX-License-Identifier: Apache-2.0
"""One exit code out of the ends of two roles.

The role that knows most decides: a wrong configuration (64), a mismatch (65), an absent peer (69), a role that failed
and said why (71). What is left is a role that was lost: killed, or gone without a word of its own (70), like
the 70 that the other role then ends with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from afd.errors import ConfigError, MismatchError, PeerAbsentError, PeerLostError, RoleFailedError

LOST = PeerLostError.exit_code
FAILED = RoleFailedError.exit_code
_SPEAKING = (ConfigError.exit_code, MismatchError.exit_code, PeerAbsentError.exit_code, FAILED)
_WORDS = {
    0: "stopped",
    ConfigError.exit_code: "found a wrong configuration",
    MismatchError.exit_code: "is configured differently from the other role",
    PeerAbsentError.exit_code: "waited for the other role in vain",
    LOST: "lost the other role",
    FAILED: "failed",
}


@dataclass(frozen=True)
class End:
    """How a role ended: ``code`` is None when it could not be started, negative when a signal killed it."""

    role: str
    code: int | None

    def __str__(self) -> str:
        if self.code is None:
            return f"{self.role} could not be started"
        if self.code < 0:
            return f"{self.role} was killed"
        return f"{self.role} {_WORDS.get(self.code, 'ended')} ({self.code})"


@dataclass(frozen=True)
class Verdict:
    """``code`` for the container, and the line that says why."""

    code: int
    words: str


def judge(ends: Sequence[End], *, asked: bool, supervisor: int) -> Verdict:
    """``ends`` in the order in which they were seen; ``asked`` whether a signal asked for a stop; ``supervisor`` is
    supervisord's own exit code."""
    told = "; ".join(map(str, ends))
    codes = [end.code for end in ends]
    for code in _SPEAKING:
        if code in codes:
            return Verdict(code, told)
    if None in codes:
        return Verdict(FAILED, told)
    if supervisor != 0:
        return Verdict(FAILED, f"supervisord ended with {supervisor}{f'; {told}' if told else ''}")
    if asked and all(code == 0 for code in codes):
        return Verdict(0, told or "stopped before a role ran")
    if len(codes) > 1 and not any(codes):
        return Verdict(0, told)  # POST /drain, or a signal to a role: both were told, and both are done
    if not codes:
        return Verdict(FAILED, "supervisord was stopped by somebody else")
    return Verdict(LOST, f"a role was lost: {told}")
