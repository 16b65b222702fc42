# SPDX-License-Identifier: Apache-2.0
"""The fixture of tests/conftest.py that fails a test which leaves something running."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.rules.sources import ROOT


def _run(directory: Path, test: str) -> str:
    shutil.copy(ROOT / "tests" / "conftest.py", directory)
    (directory / "test_it.py").write_text(
        f"import subprocess, sys, threading, time\n\ndef test_it():\n    {test}\n"
    )
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            str(directory),
            "test_it.py",
        ],
        cwd=directory,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout


@pytest.mark.parametrize(
    ("test", "says"),
    [
        (
            "open('pid', 'w').write(str(subprocess.Popen([sys.executable, '-c', 'input()'], stdin=-1).pid))",
            "process",
        ),
        ("threading.Thread(target=time.sleep, args=(3,), name='straggler').start()", "thread straggler"),
    ],
)
def test_a_test_that_leaves_something_running_fails_and_names_it(
    tmp_path: Path, test: str, says: str
) -> None:
    output = _run(tmp_path, test)
    assert f"test_it left behind: {says}" in output
    assert "1 passed, 1 error" in output
    if (pid := tmp_path / "pid").exists():
        assert not psutil.pid_exists(int(pid.read_text()))


def test_a_test_that_cleans_up_after_itself_passes(tmp_path: Path) -> None:
    assert "1 passed in" in _run(tmp_path, "subprocess.run([sys.executable, '-c', ''], check=True)")
