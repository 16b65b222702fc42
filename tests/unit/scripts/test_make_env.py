# SPDX-License-Identifier: Apache-2.0
"""scripts/make_env.py: which Python it takes, what it says when there is none, one run at a time.

Making a whole environment is what every CI run does first, so it is not repeated here.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A checkout with no more than the script reads before it installs anything."""
    for name in ("scripts/make_env.py", "afd/pins.toml", "pyproject.toml", "VERSION"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def make_env(project: Path, *, timeout_s: float = 30, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(project / "scripts" / "make_env.py")],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


def interpreter(project: Path, reply: str) -> str:
    """A program that answers the script's question about an interpreter with ``reply``."""
    path = project / "python3"
    path.write_text(f"#!/bin/sh\necho '{reply}'\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ('[[3, 9, 18], "/usr", "", "x"]', "is 3.9.18"),
        ('[[3, 13, 0], "/usr", "", "x"]', "is 3.13.0"),
        (
            '[[3, 11, 2], "/usr", "ensurepip", "x"]',
            "has no ensurepip module (Debian and Ubuntu: install python3-venv)",
        ),
        ("no JSON", "does not run"),
    ],
)
def test_an_unusable_python_is_refused_with_the_reason(project: Path, reply: str, says: str) -> None:
    done = make_env(project, PYTHON=interpreter(project, reply))
    assert done.returncode == 1
    assert f"needs Python 3.10 to 3.12 with venv; found: {project}/python3 {says}" in done.stderr
    assert not (project / ".venv").exists()


def test_a_python_that_is_not_there_is_refused_by_name(project: Path) -> None:
    done = make_env(project, PYTHON="python0")
    assert (done.returncode, done.stderr.count("python0 does not exist")) == (1, 1)


def test_a_second_run_waits_for_the_first_and_says_so(project: Path) -> None:
    first = os.open(project, os.O_RDONLY)
    fcntl.flock(first, fcntl.LOCK_EX)
    second = subprocess.Popen(
        [sys.executable, str(project / "scripts" / "make_env.py")],
        env={**os.environ, "PYTHON": "python0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert second.stdout is not None
        assert "another setup of this checkout is running" in second.stdout.readline()
        assert second.poll() is None
    finally:
        os.close(first)
        second.communicate(timeout=30)
    assert second.returncode == 1
