# SPDX-License-Identifier: Apache-2.0
"""scripts/timed.py: passes a command's result on and notes how long it took."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.timed import table

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "timed.py"


@pytest.mark.parametrize("code", [0, 3])
def test_the_exit_code_of_the_command_is_passed_on_and_noted(tmp_path: Path, code: int) -> None:
    timings = tmp_path / "timings.tsv"
    command = [sys.executable, str(SCRIPT), "a name", sys.executable, "-c", f"raise SystemExit({code})"]
    done = subprocess.run(command, env={**os.environ, "TIMINGS": str(timings)}, timeout=30)
    assert done.returncode == code
    name, seconds, noted = timings.read_text().rstrip("\n").split("\t")
    assert (name, noted) == ("a name", str(code))
    assert 0 <= float(seconds) < 30


def test_the_table_has_a_row_per_command_and_the_total() -> None:
    lines = table("setup\t90.0\t0\nmypy\t2.5\t1\n").splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["setup", "90.0", "ok"],
        ["mypy", "2.5", "exit", "1"],
        ["total", "92.5"],
    ]
