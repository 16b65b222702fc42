# SPDX-License-Identifier: Apache-2.0
"""How the members of a process group find each other: a store whose contents travel over AFD's control plane.

A process group publishes where it listens and then asks for what the others published. The first goes out with the
offer of this rank's end, the second comes with those of the others, so nothing listens for a store: no port that
a stranger could write to, no name that two epochs could share, and every wait can be ended.
"""

from __future__ import annotations

import datetime
import threading
from collections.abc import Mapping, Sequence

from torch._C._distributed_c10d import Store

from afd.errors import ClosedError


class Meeting(Store):
    """The store of one process group on one rank. Keys are small; values are bytes.

    Everything that the group sets before it first asks for a key of somebody else is :meth:`published`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._condition = threading.Condition()
        self._own: dict[str, bytes] = {}
        self._values: dict[str, bytes] = {}
        self._asked = False
        self._ended: str | None = None

    def published(self, timeout_s: float) -> Mapping[str, bytes] | None:
        """What this rank has to tell the others; None when the group says nothing within ``timeout_s`` seconds.
        Raises :class:`ClosedError` when the meeting was ended."""
        with self._condition:
            self._condition.wait_for(lambda: self._asked or self._ended is not None, timeout_s)
            self._check()
            return dict(self._own) if self._asked else None

    def bring(self, values: Mapping[str, bytes]) -> None:
        """Here is what the others published."""
        with self._condition:
            self._values.update(values)
            self._condition.notify_all()

    def end(self, why: str) -> None:
        """Whoever waits for a key gets a :class:`ClosedError`."""
        with self._condition:
            self._ended = why
            self._condition.notify_all()

    def _check(self) -> None:
        if self._ended is not None:
            raise ClosedError(self._ended)

    # ---- what a process group calls, in C++ ---------------------------------------------------------------

    def set(self, key: str, value: str | bytes) -> None:
        with self._condition:
            self._own[key] = self._values[key] = value.encode() if isinstance(value, str) else value

    def wait(self, keys: Sequence[str], timeout: datetime.timedelta | None = None) -> None:
        with self._condition:
            if not self.check(keys):
                self._asked = True
                self._condition.notify_all()
            self._condition.wait_for(
                lambda: self.check(keys) or self._ended is not None,
                None if timeout is None else timeout.total_seconds(),
            )
            self._check()
            if not self.check(keys):
                raise ClosedError(f"nobody published {', '.join(keys)}")

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._values[key]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return [self.get(key) for key in keys]

    def check(self, keys: Sequence[str]) -> bool:
        return all(key in self._values for key in keys)

    def has_extended_api(self) -> bool:
        return False
