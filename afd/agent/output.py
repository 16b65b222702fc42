# SPDX-License-Identifier: Apache-2.0
"""Where an agent writes: a thread of its own, so that a reader who stops reading does not stop the agent.

A terminal on hold, a full pipe or a slow log driver blocks whoever writes to it. In the event loop that would stop the
heartbeats, and the group would end. Lines that find the queue full are dropped and counted.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable
from typing import TextIO

from afd.agent.threads import start_thread

LINES = 20_000
"""Lines that may wait for a reader."""


class Output:
    """Writes whole lines to ``stream`` in the order in which they were given, each as ``clean`` makes it. Safe to use
    from any thread."""

    def __init__(self, stream: TextIO, clean: Callable[[str], str] = lambda line: line) -> None:
        self._stream, self._clean = stream, clean
        self._queue: queue.Queue[str | None] = queue.Queue(LINES)
        self._dropped = 0
        self._thread = start_thread(self._run, "afd-output")

    def line(self, text: str) -> None:
        """Write ``text`` and a line's end; returns at once."""
        try:
            self._queue.put_nowait(text)
        except queue.Full:
            self._dropped += 1

    def close(self, timeout_s: float = 1.0) -> None:
        """Write what waits, for at most ``timeout_s``."""
        try:
            self._queue.put(None, timeout=timeout_s)
        except queue.Full:
            return
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (text := self._queue.get()) is not None:
            try:
                if self._dropped:
                    dropped, self._dropped = self._dropped, 0
                    self._stream.write(f"afd: {dropped} lines were dropped: nobody read them\n")
                self._stream.write(self._clean(text) + "\n")
                self._stream.flush()
            except (
                OSError,
                ValueError,
            ):  # nobody will read any more; what the agent does matters more than its log
                continue


class OutputHandler(logging.Handler):
    """Log records as lines of an :class:`Output`."""

    def __init__(self, output: Output) -> None:
        super().__init__()
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        self._output.line(self.format(record))
