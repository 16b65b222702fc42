# SPDX-License-Identifier: Apache-2.0
"""Reports a process's counters to its agent now and then, from a thread, so that the model loop never does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from afd.control.session import RankSession

PERIOD_S = 0.25


class Reporter:
    """Calls ``read`` every :data:`PERIOD_S` and reports when something changed. ``read`` runs in another thread
    than the one that counts, so it reads plain numbers only."""

    def __init__(self, session: RankSession, read: Callable[[], Mapping[str, float]]) -> None:
        self._session = session
        self._read = read
        self._last: Mapping[str, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="afd-reporter", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(PERIOD_S):
            self._report()

    def _report(self) -> None:
        counters = self._read()
        if counters != self._last:
            self._last = counters
            self._session.report(counters)

    def close(self) -> None:
        """Report once more and end the thread. Call it before the session is closed; twice is fine."""
        if not self._stop.is_set():
            self._stop.set()
            self._thread.join()
            self._report()
