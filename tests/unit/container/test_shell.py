# SPDX-License-Identifier: Apache-2.0
"""docker/afd-entrypoint.sh: CANN's environment where there is one, and then the entry point in the shell's place."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "docker" / "afd-entrypoint.sh"


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """A PATH on which afd-entrypoint says what it gets."""
    commands = tmp_path / "bin"
    commands.mkdir()
    program = commands / "afd-entrypoint"
    program.write_text('#!/bin/sh\nprintf "%s|" "$@"; echo "$ORDER $ABI $$"; exit 65\n')
    program.chmod(0o755)
    return commands


def run(commands: Path, *arguments: str, **environment: str) -> tuple[subprocess.Popen[str], str, str]:
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.Popen(
        [str(SCRIPT), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": path, **environment},
    )
    return (process, *process.communicate(timeout=20))


def test_without_cann_it_becomes_the_entry_point_with_the_same_words_and_process(commands: Path) -> None:
    process, out, err = run(commands, "attention", "a model", "")
    assert (process.returncode, out, err) == (65, f"attention|a model||  {process.pid}\n", "")


def test_the_three_files_of_cann_are_read_in_order_whatever_they_do(commands: Path, tmp_path: Path) -> None:
    home = tmp_path / "cann-1"
    for path, then in (
        (tmp_path / "ascend-toolkit/set_env.sh", "echo noise; export ORDER=$ORDER-toolkit$UNSET"),
        (home / "share/info/ascendnpu-ir/bin/set_env.sh", "export ORDER=$ORDER-ir; return 3"),
        (tmp_path / "nnal/atb/set_env.sh", "export ORDER=$ORDER-atb ABI=$1"),
    ):
        path.parent.mkdir(parents=True)
        path.write_text(then + "\n")
    _, out, err = run(commands, "version", ASCEND_HOME_PATH=str(home), ATB_CXX_ABI="0")
    assert out.startswith("version|-toolkit-ir-atb --cxx_abi=0 ")
    assert err == "noise\n"
