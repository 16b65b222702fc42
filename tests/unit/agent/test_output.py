# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
import logging
import threading
import time

from afd.agent.output import LINES, Output, OutputHandler


def test_lines_and_log_records_are_written_in_order() -> None:
    stream = io.StringIO()
    output = Output(stream)
    handler = OutputHandler(output)
    handler.setFormatter(logging.Formatter("log: %(message)s"))
    output.line("one")
    handler.emit(logging.makeLogRecord({"msg": "two"}))
    output.line("three")
    output.close()
    assert stream.getvalue() == "one\nlog: two\nthree\n"


class Stalled(io.StringIO):
    """A stream whose reader has stopped reading until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = threading.Event()

    def write(self, text: str) -> int:
        assert self.reads.wait(10)
        return super().write(text)


def test_a_reader_that_stops_reading_blocks_nobody_and_is_told_what_it_missed() -> None:
    stream = Stalled()
    output = Output(stream)
    began = time.monotonic()
    for number in range(LINES + 500):
        output.line(str(number))
    assert time.monotonic() - began < 5
    stream.reads.set()
    output.close(5)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "0"
    assert any("lines were dropped: nobody read them" in line for line in lines)


def test_a_stream_that_fails_does_not_end_the_writer() -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            if text.startswith("lost"):
                raise BrokenPipeError
            return super().write(text)

    stream = Broken()
    output = Output(stream)
    output.line("lost")
    output.line("kept")
    output.close()
    assert stream.getvalue() == "kept\n"
