# SPDX-License-Identifier: Apache-2.0
"""What an agent said and when, read from its log: the times of its states, and its root cause."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

_LINE = re.compile(r"^(\d\d):(\d\d):(\d\d\.\d+) afd \S+ \S+ (.*)$", re.M)
_DAY_S = 86400.0


@dataclass(frozen=True)
class Said:
    """Lines of one agent, each with its time of day as seconds since 1970."""

    lines: tuple[tuple[float, str], ...]

    @classmethod
    def of(cls, text: str, now: float | None = None) -> Said:
        """The agent's own lines in a log that is at most some hours old."""
        now = time.time() if now is None else now
        local = time.localtime(now)
        midnight = now - (local.tm_hour * 3600 + local.tm_min * 60 + local.tm_sec) - now % 1
        found = []
        for hours, minutes, seconds, words in _LINE.findall(text):
            at = midnight + int(hours) * 3600 + int(minutes) * 60 + float(seconds)
            found.append((at - _DAY_S if at > now + 60 else at, words))
        return cls(tuple(found))

    def state(self, name: str) -> float | None:
        """When it first entered a state."""
        return next((at for at, words in self.lines if words == f"state: {name}"), None)

    def state_at(self, clock: float) -> str:
        """The state that it was in."""
        states = [
            words.removeprefix("state: ") for at, words in self.lines if at <= clock and is_state(words)
        ]
        return states[-1] if states else "starting"

    def cause(self, since: float) -> tuple[float, str] | None:
        """The first root cause it named after a time, and when."""
        for at, words in self.lines:
            named = re.match(r"epoch \S+ ends: (.*)", words)
            if named is not None and at >= since - 0.002:
                return at, named[1]
        return None


def is_state(words: str) -> bool:
    return words.startswith("state: ")
