# SPDX-License-Identifier: Apache-2.0
"""Which line of a failed process's output tells why it failed."""

from __future__ import annotations

import pytest

from afd.agent.last_words import LONGEST, last_words, one_line

ENGINE = "(EngineCore pid=575) "
SERVER = "(APIServer pid=519) "


@pytest.mark.parametrize(
    ("tail", "words"),
    [
        ([], ""),
        (["", "  "], ""),
        (["Loading", "ValueError: too large", ""], "ValueError: too large"),
        (
            [SERVER + "RuntimeError: Engine core initialization failed."],
            "RuntimeError: Engine core initialization failed.",
        ),
        (
            [
                ENGINE + "Traceback (most recent call last):",
                ENGINE + "    raise ValueError(",
                ENGINE + "ValueError: no KV cache fits",
                SERVER + "    raise RuntimeError(",
                SERVER + "RuntimeError: Engine core initialization failed. See root cause above.",
            ],
            "ValueError: no KV cache fits",
        ),
        (
            [
                "(Worker_TP0 pid=12) ERROR 11-30 00:43:59 [multiproc_executor.py:1007] afd.errors.MisuseError: step 3",
                ENGINE
                + "ERROR 11-30 00:43:59 [core.py:1332] RuntimeError: Worker failed with error 'step 3'",
            ],
            "afd.errors.MisuseError: step 3",
        ),
        ([ENGINE + "INFO 11-30 00:43:59 [core.py:12] no Error: here", "the end"], "the end"),
        (["x" * 1000], "x" * LONGEST),
        (
            [
                SERVER + "RuntimeError: Engine core initialization failed. See root cause above. "
                "Failed core proc(s): {'EngineCore_DP1': -7}",
                "/lib/resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 1 leaked objects",
                "  warnings.warn('resource_tracker: There appear to be %d '",
            ],
            "EngineCore_DP1 was killed by SIGBUS (a full /dev/shm does that; see afd doctor)",
        ),
        (
            ["afd: error: no such flag", SERVER + "INFO 11-30 00:43:59 [core.py:12] starting", "a print"],
            "afd: error: no such flag",
        ),
        (
            ["ValueError: too large", SERVER + "INFO:     Started server process [7050]"],
            "ValueError: too large",
        ),
        ([SERVER + "INFO 11-30 00:43:59 [core.py:12] bye"], "INFO 11-30 00:43:59 [core.py:12] bye"),
        (
            ["ValueError: too large", "  warnings.warn('resource_tracker: There appear to be %d '"],
            "ValueError: too large",
        ),
    ],
    ids=[
        "nothing",
        "blank",
        "last-line",
        "server-only",
        "engine-first",
        "worker-first",
        "no-exception",
        "long",
        "engine-killed-early",
        "error-before-late-output",
        "exception-before-late-log",
        "only-a-log",
        "helper-last",
    ],
)
def test_the_first_exception_below_is_told_or_else_the_last_line(tail: list[str], words: str) -> None:
    assert last_words(tail) == words


def test_an_error_of_several_lines_becomes_one() -> None:
    assert one_line(ValueError("one\n  two")) == "ValueError: one two"
    assert one_line(KeyboardInterrupt()) == "KeyboardInterrupt"
