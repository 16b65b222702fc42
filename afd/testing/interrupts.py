# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C and other signals that end a run: the first interrupts what it does, later ones hurry its end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, TypeVar

_T = TypeVar("_T")


class Interrupts:
    """Inside the block SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt until :meth:`ending`, and are only noted from
    then on. For the main thread; once. A second one before that is only noted, too.

    An exception out of nowhere is lost when it hits a finalizer or the hooks of a fork, and can part a process from the
    one that started it. So what takes long belongs into :meth:`run`, and :meth:`check` stands at the end.
    """

    NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self._ending = self._came = False
        self._cancel: Callable[[], object] | None = None
        self._before: dict[signal.Signals, Any] = {}
        self.again = False
        """Whether another signal has come since the first one, or since the end began."""

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

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """``work``'s result, from an event loop of its own. A signal cancels it where it waits, and raises
        KeyboardInterrupt when it has ended."""

        async def cancellable() -> _T:
            loop, task = asyncio.get_running_loop(), asyncio.current_task()
            assert task is not None
            self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
            try:
                if self._came:  # a moment ago
                    task.cancel()
                return await work
            finally:
                self._cancel = None

        try:
            result = asyncio.run(cancellable())
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
        self.check()
        return result

    def check(self) -> None:
        """Raise KeyboardInterrupt when a signal has come that nobody has taken."""
        if self._came:
            raise KeyboardInterrupt

    def take(self) -> None:
        """The signal that has come was expected."""
        self._came = False

    def ending(self) -> None:
        """From here on a signal interrupts nothing."""
        self._ending = True

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._ending or self._came:  # what the first one has begun to end must not be cut off
            self.again = True
            return
        self._came = True
        if self._cancel is None:
            raise KeyboardInterrupt
        self._cancel()
