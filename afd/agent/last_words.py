# SPDX-License-Identifier: Apache-2.0
"""What a process that failed said about it, found in its output.

vLLM's API server fails because its engine did, which failed because a worker did; each prints its traceback, and the
last one only says "see above". The first is the one to tell.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from afd.agent.exits import describe_exit
from afd.agent.launch_protocol import ERROR

LONGEST = 400
"""Characters of the answer."""

_PROCESS = re.compile(r"^\((?P<process>[A-Za-z]+)[^)]*\) ")
_LOGGED = re.compile(r"^(?:ERROR|CRITICAL) \S+ \S+ \[\S+\] ?")
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Failure)(?:: .*)?$")
_BELOW = ("EngineCore", "Worker")
_DIED = re.compile(r"Failed core proc\(s\): \{'(?P<name>\w+)': (?P<code>-\d+)")
"""What vLLM's API server says when an engine was killed while it started, which says nothing itself."""
_CHATTER = re.compile(r"^(?:DEBUG|INFO|WARNING)[: ]")
"""Lines of a log that end nothing."""
_HELPER = "resource_tracker: "
"""In warnings of Python's own helper, which speaks when the process has ended."""


def last_words(tail: Sequence[str]) -> str:
    """One line: the first exception of a process below, or else that one was killed, in vLLM's words, or the error
    that it ended with, or the last line. "" when nothing was said.

    ``tail`` are the last lines of output of a process and all below it.
    """
    if below := exception_below(tail):
        return below
    said = [without_name(line).strip() for line in tail if line.strip()]
    for line in said:
        if died := _DIED.search(line):
            return f"{died['name']} {describe_exit(int(died['code']))}"
    words = [line for line in said if _HELPER not in line]
    # Output and errors arrive in streams of their own, so that what was logged before may come after the last word.
    errors = [line for line in words if line.startswith(ERROR)]
    spoken = [line for line in words if not _CHATTER.match(line)]
    return (errors or spoken or words or [""])[-1][:LONGEST]


def exception_below(tail: Sequence[str]) -> str:
    """The first exception of a process below the one with this output; "" when there was none."""
    for line in tail:
        process = _PROCESS.match(line)
        if process is not None and process["process"].startswith(_BELOW):
            text = _LOGGED.sub("", line[process.end() :])
            if _EXCEPTION.match(text):
                return text[:LONGEST]
    return ""


def without_name(line: str) -> str:
    """A line of output without the name that vLLM's processes put in front: "(APIServer pid=12) "."""
    return _PROCESS.sub("", line)


def one_line(error: BaseException) -> str:
    """``error`` as a last line: its class, and its text without line breaks."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
