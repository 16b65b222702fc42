# SPDX-License-Identifier: Apache-2.0
"""Whether a role that lost its epoch starts again, and after which pause."""

from __future__ import annotations

import time
from collections.abc import Callable

from afd.config import AFDConfig
from afd.errors import AFDError, ConfigError, MismatchError


class Attempts:
    """Counts the losses of a role. Every agent of a group sees every loss, so agents with the same settings that were
    started together give up together."""

    def __init__(self, config: AFDConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._rejoins = config.on_loss == "rejoin"
        self._settings = config.rejoin
        self._clock = clock
        self._ready: float | None = None
        self.number = 0
        """Attempts since the role was last ready for ``rejoin.reset_s``."""

    def ready(self) -> None:
        """The role is ready now."""
        self._ready = self._clock()

    def allows(self, error: BaseException | None) -> bool:
        """Whether the role starts again after an epoch that ended with ``error``. A wrong configuration and one that
        does not fit to that of the peers are not better the next time."""
        if not self._rejoins or not isinstance(error, AFDError):
            return False
        return (
            not isinstance(error, (ConfigError, MismatchError)) and self._before() < self._settings.attempts
        )

    def lost(self) -> float:
        """Count a loss, and return the seconds to wait before the next attempt."""
        self.number = self._before() + 1
        self._ready = None
        if self.number == 1:
            return 0.0
        # The exponent is bounded, too: 2.0 ** 1024 is no number any more.
        pause_s = self._settings.backoff_s * 2.0 ** min(self.number - 2, 64)
        return min(pause_s, self._settings.backoff_max_s)

    def _before(self) -> int:
        """The attempts that count."""
        lasting = self._ready is not None and self._clock() - self._ready >= self._settings.reset_s
        return 0 if lasting else self.number

    def __str__(self) -> str:
        return f"attempt {self.number} of {self._settings.attempts}"
