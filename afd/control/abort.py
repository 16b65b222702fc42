# SPDX-License-Identifier: Apache-2.0
"""One root cause, told to everything that waits.

An ``Abort`` is created once per process and handed to every part that can block. The first ``trigger`` wins;
later ones are ignored, so all parts report the same cause. Parts that block somewhere a flag is not looked at
(a futex, a socket) subscribe a callback that wakes them. Callbacks run in the triggering thread, must not block
and must not raise.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from afd import errors


@dataclass(frozen=True)
class Cause:
    """Why an epoch ended.

    ``kind`` is the name of a class in :mod:`afd.errors`, as those see it who are not to blame; ``rank`` is the rank
    to blame ("A0", "F1"), or "" when there is none; ``message`` is one line for people, the same on every side.
    ``hearsay`` marks what a bystander saw (a socket that closed): the root waits a moment for the account of the
    rank to blame before it makes hearsay the root cause.
    """

    kind: str
    message: str
    rank: str = ""
    host: str = ""
    hearsay: bool = False
    differences: tuple[errors.Difference, ...] = ()

    def seen_by(self, ranks: Collection[str]) -> Cause:
        """The cause as the owner of ``ranks`` sees it: a loss of one's own rank is a failure of this role."""
        if self.kind == "PeerLostError" and self.rank in ranks:
            return replace(self, kind="RoleFailedError")
        return self

    def error(self) -> errors.AFDError:
        """The exception that this process raises for the cause."""
        text = f"{self.rank}: {self.message}" if self.rank else self.message
        if self.kind == "MismatchError":
            return errors.MismatchError(text, self.differences)
        return {
            "PeerLostError": errors.PeerLostError,
            "PeerAbsentError": errors.PeerAbsentError,
            "RoleFailedError": errors.RoleFailedError,
            "ConfigError": errors.ConfigError,
        }.get(self.kind, errors.RoleFailedError)(text)


class Abort:
    """A flag with a cause that is set once and wakes its subscribers. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cause: Cause | None = None
        self._wakers: list[Callable[[], None]] = []

    @property
    def cause(self) -> Cause | None:
        return self._cause

    def trigger(self, cause: Cause) -> bool:
        """Record ``cause`` and wake every subscriber. Returns False when a cause was recorded before."""
        with self._lock:
            if self._cause is not None:
                return False
            self._cause = cause
            wakers = list(self._wakers)
        for wake in wakers:
            wake()
        return True

    def check(self) -> None:
        """Raise the recorded cause, if there is one."""
        if self._cause is not None:
            raise self._cause.error()

    def subscribe(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call ``wake`` when the abort is triggered (at once if it was). Returns a function that unsubscribes."""
        with self._lock:
            triggered = self._cause is not None
            if not triggered:
                self._wakers.append(wake)
        if triggered:
            wake()

        def unsubscribe() -> None:
            with self._lock:
                if wake in self._wakers:
                    self._wakers.remove(wake)

        return unsubscribe
