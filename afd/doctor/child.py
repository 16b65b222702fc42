# SPDX-License-Identifier: Apache-2.0
"""Runs Python in a child with a deadline: what loads a driver may crash, or hang for ever."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from afd.agent.exits import describe_exit

_MARK = "afd-doctor-answer:"
"""How the line begins in which a child gives its answer; libraries print what they like beside it."""
_TAIL = 400
_DEATH_S = 10.0


@dataclass(frozen=True)
class Outcome:
    """``answer`` is what the child said, None when it did not come so far; ``problem`` is why then."""

    answer: dict[str, Any] | None
    problem: str


def answer(found: Mapping[str, Any]) -> None:
    """Say ``found`` to the parent; called in the child."""
    print(f"\n{_MARK}{json.dumps(dict(found))}", flush=True)


def python(arguments: Sequence[str], env: Mapping[str, str], deadline_s: float) -> Outcome:
    """Run ``python arguments`` and take its answer. Its whole session ends with it, at the deadline at the latest."""
    package = str(Path(__file__).parents[2])
    paths = [package, env.get("PYTHONPATH", "")]
    environment = {**env, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            start_new_session=True,
        )
        try:
            code = process.wait(deadline_s)
            problem = "" if code == 0 else describe_exit(code)
        except subprocess.TimeoutExpired:
            problem = f"no answer within {deadline_s:g} s; it was killed"
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            try:
                process.wait(_DEATH_S)
            except subprocess.TimeoutExpired:  # inside the kernel, in a call of a driver
                problem = f"no answer within {deadline_s:g} s, and SIGKILL does not end process {process.pid}"
        found = _answer(out)
        if problem and (said := _last_words(errors)):
            problem = f"{problem}: {said}"
    if found is None and not problem:
        problem = "it ended without an answer"
    return Outcome(None if problem else found, problem)


def _answer(out: Any) -> dict[str, Any] | None:
    out.seek(0)
    for line in reversed(out.read().decode("utf-8", "replace").splitlines()):
        if line.startswith(_MARK):
            found = json.loads(line.removeprefix(_MARK))
            return found if isinstance(found, dict) else None
    return None


def _last_words(errors: Any) -> str:
    """The last line that is not empty: of a traceback, the exception."""
    errors.seek(0)
    lines = [line.strip() for line in errors.read().decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1][:_TAIL] if lines else ""
