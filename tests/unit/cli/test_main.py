# SPDX-License-Identifier: Apache-2.0
"""The command line: light, and every failure one line with the exit code that belongs to it."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from afd.cli import main
from afd.cli.version import afd_version
from afd.doctor import report
from afd.errors import AFDError

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
        (("doctor", "--agent-port", "0"), "Invalid value for '--agent-port': 0 is not a port (1-65535)"),
        (("doctor", "--api-port", "99999"), "Invalid value for '--api-port': 99999 is not a port (1-65535)"),
        (("serve", "ffn", "M", "--agent-port", "99999"), "'--agent-port': 99999 is not a port (1-65535)"),
        (("serve", "ffn", "M", "--agent-port", "-1"), "'--agent-port': -1 is not a port (1-65535)"),
        (("smoke", "--model", "builtin:tiny-deepsek-v2"), "did you mean 'builtin:tiny-deepseek-v2'?"),
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


@pytest.mark.parametrize("arguments", [(), ("config",)], ids=str)
def test_without_a_command_there_is_the_whole_help_and_then_the_error(arguments: tuple[str, ...]) -> None:
    run = afd(*arguments)
    assert (run.returncode, run.stdout) == (64, "")
    *text, blank, last = run.stderr.splitlines()[:-1]
    assert text == afd(*arguments, "--help").stdout.splitlines()
    see = " ".join(["afd", *arguments, "--help"])
    assert (blank, last) == ("", f"afd: error: a command is missing (see: {see})")


def test_help_says_every_exit_code_that_there_is() -> None:
    codes = {
        0,
        report.WARNED,
        report.FAILED,
        main._INTERRUPTED,
        *(error.exit_code for error in _all(AFDError)),
    }
    lines = afd("--help").stdout.partition("Exit codes:")[2].splitlines()
    assert {int(line.split()[0]) for line in lines if line.strip()} == codes


def _all(cls: type[AFDError]) -> Iterator[type[AFDError]]:
    yield cls
    for below in cls.__subclasses__():
        yield from _all(below)


@pytest.mark.parametrize(
    "command", [(), *((name,) for name in main.SUBCOMMANDS), ("config", "show")], ids=str
)
def test_help_fits_a_terminal_and_points_at_nothing_that_is_not_there(command: tuple[str, ...]) -> None:
    text = afd(*command, "--help").stdout
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert not re.search(r"see below|mode NONE|INTEGER RANGE|To check\.", text)


@pytest.mark.parametrize(
    "arguments",
    [
        ("doctor",),
        ("config", "show"),
        ("serve", "--help"),
        ("serve", "ffn", "/nowhere/…×"),
        ("serve", "ffn", "M", "--data-parallel-size", "×"),
        ("d\udcffctor",),
    ],
    ids=lambda arguments: ascii(" ".join(arguments)).strip("'"),
)
@pytest.mark.parametrize("encoding", ["ascii", "iso-8859-15"])
def test_every_stream_can_take_what_is_said(arguments: tuple[str, ...], encoding: str) -> None:
    argv = [argument.encode("utf-8", "surrogateescape") for argument in arguments]
    run = subprocess.run(
        [sys.executable, "-m", "afd.cli.main", *argv],
        env={"PATH": "/usr/bin:/bin", "HOME": "/tmp", "PYTHONIOENCODING": encoding, "PYTHONUTF8": "1"},
        capture_output=True,
        timeout=60,
        cwd=ROOT,
    )
    assert run.returncode in (0, 64, 71), run
    assert b"Traceback" not in run.stderr and b"Unicode" not in run.stderr
    # click takes a stream that knows ASCII only for a mistake, and writes UTF-8.
    reads = "utf-8" if encoding == "ascii" else encoding
    assert (run.stdout + run.stderr).decode(reads)


def test_a_letter_that_the_encoding_lacks_is_spelt() -> None:
    code = "from afd.cli.plain import spell; spell(); print('2 × 3 …', '\\u6771', '\\udcff')"
    environment = {"PYTHONIOENCODING": "ascii"}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, timeout=60, cwd=ROOT
    )
    assert run.stdout == b"2 x 3 ... \\u6771 \\udcff\n", run


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
