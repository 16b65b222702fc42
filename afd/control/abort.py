# SPDX-License-Identifier: Apache-2.0
"""One root cause, told to everything that waits.

An ``Abort`` is created once per process and handed to every part that can block. The first ``trigger`` wins;
later ones are ignored, so all parts report the same cause. Parts that block somewhere a flag is not looked at
(a futex, a socket) subscribe a callback that wakes them. Callbacks run in the triggering thread, must not
block and must not raise.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from afd import errors


@dataclass(frozen=True)
class Cause:
    """Why an epoch ended, the same on every side.

    ``kind`` is the name of a class in :mod:`afd.errors`, as the rank to blame sees it; ``rank`` is that rank ("A0",
    "F1"), or "" when there is none; ``message`` is one line for people. ``hearsay`` marks what a bystander saw (a
    socket that closed): the root waits a moment for the account of the rank to blame before it makes hearsay the
    root cause.
    """

    kind: str
    message: str
    rank: str = ""
    host: str = ""
    hearsay: bool = False
    differences: tuple[errors.Difference, ...] = ()

    def seen_by(self, ranks: Collection[str]) -> Cause:
        """The cause for the owner of ``ranks``: a failure of this role for one is a lost peer for the others."""
        if not self.rank or self.kind in ("MismatchError", "PeerAbsentError"):
            return self
        if self.rank not in ranks:
            return replace(self, kind="PeerLostError")
        return replace(self, kind="RoleFailedError") if self.kind == "PeerLostError" else self

    def __str__(self) -> str:
        message = self.message or f"{self.kind or 'a failure'} without a word"
        named = not self.rank or message.startswith(self.rank)
        return message if named else f"{self.rank}: {message}"

    def error(self) -> errors.AFDError:
        """The exception that this process raises for the cause."""
        if self.kind == "MismatchError":
            return errors.MismatchError(str(self), self.differences)
        if self.kind == "PeerLostError":
            return errors.PeerLostError(str(self), self.rank)
        return _KINDS.get(self.kind, errors.RoleFailedError)(str(self))

    @staticmethod
    def of(error: BaseException, rank: str, host: str = "") -> Cause:
        """The cause to report when ``rank`` stops with ``error``, which may name another rank.

        What it says about a lost peer is hearsay.
        """
        text = " ".join((str(error) if isinstance(error, errors.AFDError) else repr(error)).split())
        if isinstance(error, errors.PeerLostError):
            return Cause("PeerLostError", text, rank=error.rank, hearsay=True)
        if isinstance(error, errors.MismatchError):
            return Cause("MismatchError", text, differences=error.differences)
        if isinstance(error, errors.RoleFailedError) and error.rank:
            rank = error.rank
        kind = type(error).__name__
        return Cause(kind if kind in _KINDS else "RoleFailedError", text, rank=rank, host=host)


_KINDS: dict[str, type[errors.AFDError]] = {
    kind.__name__: kind
    for kind in (
        errors.ConfigError,
        errors.UnsupportedError,
        errors.PeerAbsentError,
        errors.RoleFailedError,
        errors.ClosedError,
        errors.MisuseError,
        errors.ResourceError,
    )
}


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
        """Call ``wake`` when the abort is triggered (at once if it was). Returns a function that
        unsubscribes."""
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
