# SPDX-License-Identifier: Apache-2.0
"""The entry point's doors: what is refused, with which words, what is run instead, and what is never said."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
KEY, TOKEN = "sk-very-secret-key", "hf_very_secret_token"
Run = Callable[..., "subprocess.CompletedProcess[str]"]
SINGLE = ("single-node", "builtin:tiny-deepseek-v2")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def entrypoint(
        *arguments: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        clean = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "AFD_RUN_DIR": str(tmp_path / "run")}
        return subprocess.run(
            [sys.executable, "-m", "afd.container.entrypoint", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=ROOT,
            env={**clean, **(environment or {})},
        )

    return entrypoint


def error(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of a refusal, which ends with 64."""
    lines = [line for line in done.stderr.splitlines() if line.startswith("afd-entrypoint: error: ")]
    assert done.returncode == 64 and len(lines) == 1, done
    return lines[0].removeprefix("afd-entrypoint: error: ")


def test_without_arguments_it_says_what_a_container_can_do(run: Run) -> None:
    done = run()
    assert error(done) == "nothing to do: say what this container is for"
    for word in (
        "single-node MODEL",
        "attention MODEL",
        "ffn MODEL",
        "smoke",
        "doctor",
        "version",
        "exit codes",
    ):
        assert word in done.stderr
    asked = run("--help")
    assert asked.returncode == 0 and asked.stdout.strip() in done.stderr


@pytest.mark.parametrize(
    ("arguments", "environment", "says"),
    [
        (("single-nod",), {}, "did you mean 'single-node'?"),
        (("--dtype", "float32"), {}, "'--dtype' is neither a command in this image nor one of single-node"),
        (("attention",), {}, "Missing argument 'MODEL'"),
        (("serve", "m"), {}, "no role"),
        (("ffn", "m"), {"AFD_ROLE": "attention"}, "AFD_ROLE: attention, but the command is ffn"),
        (("attention", "m", "--afd-prt", "1"), {}, "there is no such flag"),
        (("attention", "m"), {"AFD_PRT": "1"}, "env AFD_PRT: there is no such setting"),
        (("attention", "m", "extra"), {}, "unexpected argument 'extra'"),
        (("attention", "m"), {"AFD_ATTENTION_DEVICES": "a"}, "AFD_ATTENTION_DEVICES: 'a'"),
        (("version", "x"), {}, "version takes no arguments"),
        (SINGLE[:1], {}, "Missing argument 'MODEL'"),
        ((*SINGLE, "--agent-port", "0"), {}, "two ports are needed"),
        ((*SINGLE, "--headless"), {}, "single-node has its own API server"),
        (SINGLE, {"AFD_ROLE": "ffn"}, "single-node runs both roles"),
        (SINGLE, {"AFD_FFN_DEVICES": "0"}, "AFD_FFN_DEVICES is set and AFD_ATTENTION_DEVICES is not"),
        ((*SINGLE, "--ffn-model"), {}, "--ffn-model: a directory is missing"),
        ((*SINGLE, "--shutdown-timeout", "soon"), {}, "'soon' is not an integer"),
        ((*SINGLE, "--api-key", "sk-one", "sk-two"), {}, "--api-key: give one value, once, or VLLM_API_KEY"),
        (("attention", "m", "--api-key", "sk-one", "sk-two"), {}, "--api-key: give one value"),
        (("ffn", "m", "--api_key=sk-one", "--api-key"), {}, "--api-key: give one value"),
        (("smoke", "--controll", "x"), {}, "No such option"),
        (("smoke", "--golden", "/nonexistent"), {}, "golden answers /nonexistent"),
        (("smoke", "--control", "token"), {}, "needs golden answers"),
    ],
)
def test_what_is_wrong_is_one_line_and_64(
    run: Run, arguments: tuple[str, ...], environment: dict[str, str], says: str
) -> None:
    assert says in error(run(*arguments, environment=environment))


def test_a_configuration_that_only_the_role_can_judge_ends_with_the_roles_own_code(run: Run) -> None:
    done = run("ffn", "builtin:nonsense")
    assert done.returncode == 64
    assert "there is no built-in model 'builtin:nonsense'" in done.stderr


def test_any_other_command_takes_the_place_of_the_entry_point(run: Run) -> None:
    program = "import os, signal; print(os.getpid() == os.getsid(0), signal.pthread_sigmask(0, ()))"
    done = run(sys.executable, "-c", program + "; import sys; sys.exit(9)")
    assert (done.returncode, done.stdout.split()[1]) == (9, "set()")
    killed = run(sys.executable, "-c", "import os; os.kill(os.getpid(), 15)")
    assert killed.returncode == -signal.SIGTERM


def test_any_other_command_has_no_signal_ignored_that_python_ignores(run: Run) -> None:
    assert ignored(run("cat", "/proc/self/status").stdout) == set()
    # As a shell sees it: the writer ends when its reader does.
    assert run("bash", "-c", "set -o pipefail; yes | head -n 1").returncode == 128 + signal.SIGPIPE


def ignored(status: str) -> set[str]:
    """Of the signals that Python ignores from its start on, those that a process with this status ignores."""
    (mask,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:"))
    python = (signal.SIGPIPE, signal.SIGXFSZ)
    return {number.name for number in python if int(mask, 16) >> (number - 1) & 1}


def test_a_command_gets_a_home_and_a_name(run: Run, tmp_path: Path) -> None:
    program = "import os, getpass, json; print(json.dumps([os.environ['HOME'], getpass.getuser()]))"
    lacking = {"HOME": "/nonexistent", "TMPDIR": str(tmp_path)}
    home, _ = json.loads(run(sys.executable, "-c", program, environment=lacking).stdout)
    assert home == str(tmp_path / f"afd-home-{os.geteuid()}")


def test_version_says_the_version(run: Run) -> None:
    done = run("version")
    assert done.returncode == 0
    assert done.stdout.startswith(f"afd {(ROOT / 'VERSION').read_text().strip()}\n")


def test_doctor_is_the_one_of_afd(run: Run) -> None:
    done = run("doctor", "--json")
    assert {"version", "checks", "summary"} == json.loads(done.stdout).keys()


@pytest.mark.parametrize(
    "arguments",
    [
        ("attention", "m", KEY, "--api-key", KEY),
        ("attention", KEY, KEY, f"--api_key={KEY}"),
        ("single-node", "m", TOKEN, "--hf-token", TOKEN),
        (KEY, "--api-key", KEY),
    ],
)
def test_no_refusal_quotes_a_secret(run: Run, arguments: tuple[str, ...]) -> None:
    done = run(*arguments, environment={"VLLM_API_KEY": KEY, "HF_TOKEN": TOKEN})
    assert done.returncode == 64 and "***" in error(done)
    assert KEY not in done.stdout + done.stderr and TOKEN not in done.stdout + done.stderr
