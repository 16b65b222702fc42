# SPDX-License-Identifier: Apache-2.0
"""A child answers, or it is said why not; it never outlives its deadline."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from afd.doctor.child import Outcome, python

ANSWER = "from afd.doctor import child; child.answer({'x': 1})"


def run(code: str, deadline_s: float = 30.0, **env: str) -> Outcome:
    return python(["-c", code], {"PATH": os.defpath, **env}, deadline_s)


def test_a_child_that_answers_is_heard_over_what_libraries_print() -> None:
    assert run(f"print('hello', end=''); {ANSWER}; print('bye')") == Outcome({"x": 1}, "")


def test_an_answer_before_a_crash_does_not_count() -> None:
    found = run(f"{ANSWER}; import os; os.abort()")
    assert found.answer is None and found.problem == "was killed by SIGABRT"


def test_a_signal_without_a_name_of_its_own_is_said_by_its_number() -> None:
    found = run("import os, signal; os.kill(os.getpid(), signal.SIGRTMIN + 5)")
    assert found == Outcome(None, "was killed by signal 39")


def test_an_exception_is_the_reason() -> None:
    found = run("raise ImportError('libx.so: undefined symbol: y')")
    assert found == Outcome(None, "exited with code 1: ImportError: libx.so: undefined symbol: y")


def test_a_child_without_an_answer_has_a_problem() -> None:
    assert run("pass") == Outcome(None, "it ended without an answer")


def test_a_child_that_hangs_is_killed_with_what_it_started(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    code = (
        "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); p = os.fork();"
        f"p and open({str(mark)!r}, 'w').write(str(p)); time.sleep(600)"
    )
    start = time.monotonic()
    found = run(code, 2.0)
    assert found.answer is None and "no answer within 2 s" in found.problem
    assert time.monotonic() - start < 30
    left = int(mark.read_text())
    for _ in range(100):
        if not Path(f"/proc/{left}").exists() or " Z " in Path(f"/proc/{left}/stat").read_text():
            return
        time.sleep(0.1)
    pytest.fail(f"process {left} outlived its deadline")


def test_a_child_has_the_environment_of_the_subject_and_no_other() -> None:
    code = "import os; from afd.doctor import child; child.answer({'x': [os.environ.get(n) for n in ('A', 'HOME')]})"
    assert run(code, A="1") == Outcome({"x": ["1", None]}, "")
