# SPDX-License-Identifier: Apache-2.0
"""The command line: light, and every failure one line with the exit code that belongs to it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from afd.cli import main
from afd.cli.version import afd_version

ROOT = Path(__file__).parents[3]

# Runs a command in a fresh interpreter and reports, on the last line of stderr, CPU seconds and heavy modules.
PROBE = """
import json, sys, time
from afd.cli.main import run
code = run(sys.argv[1:])
heavy = sorted({"torch", "vllm", "transformers", "triton"} & set(sys.modules))
print(json.dumps([time.process_time(), heavy]), file=sys.stderr)
sys.exit(code)
"""


def afd(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROBE, *arguments]
    env = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", **(environment or {})}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=env, cwd=ROOT)


def error(run: subprocess.CompletedProcess[str]) -> str:
    """The one line of an error."""
    lines = run.stderr.splitlines()[:-1]
    assert len(lines) == 1, run.stderr
    return lines[0]


def exists(subcommand: str) -> bool:
    return importlib.util.find_spec(main.SUBCOMMANDS[subcommand].module) is not None


LIGHT = [
    ("--help",),
    ("--version",),
    ("config", "show"),
    ("config", "show", "--json"),
    ("config", "--help"),
    ("doctor", "--help"),
    ("doctor", "--json"),
    *((name, "--help") for name in ("serve", "smoke") if exists(name)),
]


@pytest.mark.parametrize("arguments", LIGHT, ids=" ".join)
def test_what_needs_no_model_answers_at_once_without_torch_or_vllm(arguments: tuple[str, ...]) -> None:
    run = afd(*arguments)
    seconds, heavy = json.loads(run.stderr.splitlines()[-1])
    assert heavy == []
    assert seconds < 1.0
    assert run.stdout


def test_help_lists_every_command_without_importing_it() -> None:
    run = afd("--help")
    assert run.returncode == 0
    assert all(f"  {name}" in run.stdout for name in main.SUBCOMMANDS)
    assert "Exit codes" in run.stdout


def test_the_version_is_that_of_the_file() -> None:
    run = afd("--version")
    assert run.stdout.strip() == f"afd {(ROOT / 'VERSION').read_text().strip()}"
    assert afd_version() in run.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("doctr",), "no such command 'doctr'; did you mean 'doctor'? (see: afd --help)"),
        (("config", "show", "--afd-prot", "1"), "No such option '--afd-prot'"),
        (
            ("config", "show", "--afd-port"),
            "Option '--afd-port' requires an argument (see: afd",
        ),
        (("config", "show", "stray"), "Got unexpected extra argument (stray)"),
        (("config", "show", "--afd-port", "99999"), "flag --afd-port: 99999 is not a port (1-65535)"),
        (("config", "show", "--additional-config", "{"), "flag --additional-config: not JSON"),
        (("config", "show", "--additional-config", "[]"), "flag --additional-config: not a JSON object"),
        (("config", "show", "--additional-config", '{"afd": 3}'), "json afd: 3 is not a JSON object"),
        (("config", "show", "--additional-config", '{"afd": {"prot": 1}}'), "did you mean 'port'?"),
        (("doctor", "--agent-port", "0"), "Invalid value for '--agent-port'"),
    ],
)
def test_a_wrong_command_line_is_one_readable_line_and_exit_code_64(
    arguments: tuple[str, ...], message: str
) -> None:
    run = afd(*arguments)
    assert run.returncode == 64
    assert error(run).startswith("afd: error: ")
    assert message in error(run)
    assert run.stdout == ""


def test_a_wrong_variable_is_named() -> None:
    run = afd("config", "show", environment={"AFD_PROT": "1"})
    assert run.returncode == 64
    assert error(run) == "afd: error: env AFD_PROT: there is no such setting; did you mean 'AFD_PORT'?"


def test_a_reader_that_leaves_early_is_no_error() -> None:
    pipe = f"{sys.executable} -m afd.cli.main config show --help | head -1; exit ${{PIPESTATUS[0]}}"
    run = subprocess.run(["bash", "-c", pipe], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert "Traceback" not in run.stderr


def test_a_command_that_is_not_built_in_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(main.SUBCOMMANDS, "plan", main._Subcommand("afd.cli.no_such_module", "Later."))
    assert main.run(["plan"]) == 64


def test_the_group_without_a_command_shows_its_help() -> None:
    run = afd("config")
    assert "show" in run.stdout + run.stderr


def test_every_subcommand_that_exists_is_a_click_command() -> None:
    for name in main.SUBCOMMANDS:
        if exists(name):
            assert main.run([name, "--help"]) == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(("config", "show"), 71), (("no-such-command",), 64), (("smoke", "--model", "/no"), 64)],
)
def test_the_exit_code_is_the_same_when_nothing_can_be_written(arguments: tuple[str, ...], code: int) -> None:
    with open("/dev/full", "w") as full:
        run = subprocess.run(
            [sys.executable, "-m", "afd.cli.main", *arguments], stdout=full, stderr=full, timeout=60, cwd=ROOT
        )
    assert run.returncode == code


def test_a_full_output_is_one_line_and_no_bug() -> None:
    with open("/dev/full", "w") as full:
        run = subprocess.run(
            [sys.executable, "-m", "afd.cli.main", "config", "show"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            cwd=ROOT,
        )
    assert run.returncode == 71
    (line,) = run.stderr.splitlines()
    assert line.startswith("afd: error: No space left on device: the output")
