# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C and other signals that end a run: the first interrupts what it does, later ones hurry its end."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any


class Interrupts:
    """Inside the block SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt until :meth:`ending`, and are only noted from
    then on. For the main thread; once."""

    NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self._ending = False
        self._before: dict[signal.Signals, Any] = {}
        self.again = False
        """Whether a signal has come since the end began."""

    def __enter__(self) -> Interrupts:
        for number in self.NUMBERS:
            before = signal.getsignal(number)
            if number is signal.SIGHUP and before is signal.SIG_IGN:  # as with nohup: it shall live on
                continue
            self._before[number] = before
            signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def ending(self) -> None:
        """From here on a signal interrupts nothing."""
        self._ending = True

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._ending:
            raise KeyboardInterrupt
        self.again = True
