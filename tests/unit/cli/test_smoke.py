# SPDX-License-Identifier: Apache-2.0
"""What ``afd smoke`` prints, and what it takes from its environment."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from afd.cli import smoke
from afd.cli.main import run
from afd.testing.smoke import Outcome
from afd.testing.stack import Layout, base_environment, ignored_variables
from afd.topology import Topology

LAYOUT = Layout("M" * 300, "v2", Topology(1, 1), ("--dtype", "float32"))


def test_lines_stay_whole_and_brackets_stay_words() -> None:
    file = io.StringIO()
    line = "12:00 afd ffn INFO " + "word [red] " * 40 + "end"
    smoke._say(Console(file=file, width=80), "problem: ", f"{line}\n  {line}", style="red")
    assert file.getvalue() == f"problem: {line}\n  {line}\n"


def test_a_table_that_is_no_terminals_is_as_wide_as_its_words() -> None:
    file = io.StringIO()
    Console(file=file, width=smoke._WIDE).print(smoke._table(LAYOUT, Outcome()))
    assert f" {LAYOUT.model}, float32 " in file.getvalue()


def test_variables_that_a_run_ignores_are_named_and_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AFD_PORT", "AFD_PROT", "AFD_CACHE_DIR", "OMP_NUM_THREADS", "VLLM_USE_V2_MODEL_RUNNER"):
        monkeypatch.setenv(name, "1")
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND", raising=False)
    expected = ["AFD_PORT", "AFD_PROT", "OMP_NUM_THREADS", "VLLM_USE_V2_MODEL_RUNNER"]
    assert ignored_variables() == expected
    assert not set(expected) & set(base_environment())
    assert base_environment()["AFD_CACHE_DIR"] == "1"


def test_a_directory_for_the_record_that_cannot_be_written_is_refused_at_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    assert run(["smoke", "--record", str(tmp_path / "file" / "below")]) == 64
    (line,) = capsys.readouterr().err.splitlines()
    assert "below: cannot be written: Not a directory; give another directory" in line
