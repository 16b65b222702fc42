# SPDX-License-Identifier: Apache-2.0
"""``afd smoke``, as a person runs it: what it prints, what it writes, how it ends, and that nothing is left."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from afd.agent.leftovers import mapped_by
from afd.support import records
from afd.testing.tiny import resolve_builtin
from tests.system.checkpoints import with_another_name
from tests.system.conftest import MODEL, ROOT

SHM = Path("/dev/shm")


class Run:
    """One ``afd smoke`` with a temporary directory of its own. Everything that it starts is remembered."""

    def __init__(self, directory: Path, arguments: Sequence[str]) -> None:
        self.temporary = directory
        directory.mkdir(exist_ok=True)
        self.shm: set[str] = set()
        self.expected = (
            8  # a launcher, two agents, an FFN rank, and twice a server, an engine and a worker, at least
        )
        environment = {**os.environ, "TMPDIR": str(directory), "XDG_RUNTIME_DIR": str(directory.parent)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "afd.cli.main", "smoke", *arguments],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.out = self.err = ""
        self._seen: set[psutil.Process] = set()
        self._stop = threading.Event()
        self._watch = threading.Thread(target=self._sample, name="watch", daemon=True)
        self._watch.start()

    def _sample(self) -> None:
        root = psutil.Process(self.process.pid)
        try:
            while not self._stop.wait(0.1):
                self._seen |= set(root.children(recursive=True))
        except psutil.NoSuchProcess:
            return

    def end(self, timeout_s: float = 180.0) -> int:
        """Wait for it to end by itself and return its exit code."""
        out, self.err = self.process.communicate(timeout=timeout_s)
        self.out += out
        return self.process.returncode

    def says(self, pattern: str, timeout_s: float) -> str:
        """Wait until it prints ``pattern``, and return its first group."""
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        deadline = time.monotonic() + timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            if not select.select([descriptor], [], [], left_s)[0]:
                break
            more = os.read(descriptor, 1 << 16).decode()
            self.out += more
            if found := re.search(pattern, self.out):
                return found.group(1)
            if not more:
                break
        self.process.send_signal(signal.SIGINT)
        self.end(30)
        raise AssertionError(f"{pattern!r} was not printed within {timeout_s:.0f} s: {self.out}{self.err}")

    def look(self) -> None:
        """Remember which shared memory its processes use now, vLLM's included: :meth:`left` looks for that."""
        deadline = time.monotonic() + 20
        while not self.shm:
            assert time.monotonic() < deadline, "no process of the run uses shared memory"
            time.sleep(0.1)
            self.shm = set[str]().union(*(mapped_by(process.pid) for process in self._running()))

    def left(self) -> list[str]:
        """What is still there of it at its end: processes, shared memory, temporary files."""
        assert len(self._seen) >= self.expected, f"only {len(self._seen)} processes were seen"
        running = self._running()
        found = [f"process {process.pid}" for process in running]
        found += [name for name in sorted(self.shm) if (SHM / name).exists()]
        # torch keeps a cache there, for all runs of a user.
        return found + [p.name for p in self.temporary.iterdir() if not p.name.startswith("torchinductor_")]

    def agents(self) -> list[psutil.Process]:
        """The roles."""
        return [process for process in self._running() if "serve" in process.cmdline()]

    def _running(self) -> list[psutil.Process]:
        found = []
        for process in list(self._seen):
            try:
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.NoSuchProcess:
                continue
        return found

    def close(self) -> None:
        self._stop.set()
        self._watch.join(5)
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def smoke() -> Iterator[Callable[..., Run]]:
    """Starts ``afd smoke`` with some arguments."""
    with ExitStack() as scope:

        def run(*arguments: str, below: str = "") -> Run:
            # Not below pytest's: sockets would be elsewhere, because their paths have at most 107 bytes.
            directory = scope.enter_context(tempfile.TemporaryDirectory(prefix="afd-test-"))
            started = Run(Path(directory, below), arguments)
            scope.callback(started.close)
            return started

        yield run


@pytest.mark.timeout(240)
@pytest.mark.parametrize("runner", [pytest.param("v2", marks=pytest.mark.pairwise), "v1"])
def test_a_smoke_run_passes_writes_a_record_and_leaves_nothing(
    runner: str, smoke: Callable[..., Run], tmp_path: Path
) -> None:
    run = smoke("--runner", runner, "--json", "--record", str(tmp_path))
    assert run.end() == 0, run.out + run.err
    found = json.loads(run.out)
    print(f"\n{found}")
    assert found["passed"] is True and found["problems"] == []
    assert (found["runner"], found["topology"], found["transport"]) == (runner, "1A1F", "shm")
    assert found["requests"] >= 34 and found["tokens"] > 500
    assert found["max_logprob_error"] <= 1e-4
    assert found["ffn_tokens"] == found["sent_tokens"] * found["ffn_layers"] > 0
    assert run.left() == []

    (record,) = records.load(tmp_path)
    assert record.passed
    assert (record.setup.runner, record.setup.platform, record.model.dtype) == (runner, "cpu", "float32")
    assert record.counts.passed == found["requests"] and record.counts.failed == 0
    assert record.comparisons[0].tokens == found["tokens"]
    assert (record.cleanup.processes, record.cleanup.segments) == (0, 0)
    assert len(record.commits.afd) == 40


@pytest.mark.timeout(240)
def test_a_kept_group_serves_until_ctrl_c_and_then_ends_with_zero(
    smoke: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AFD_PORT", "1")  # neither this nor a stream without "×" disturbs the run
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    run = smoke("--keep")
    url = run.says(r"AFD serves (http://[\w.]+:\d+)", 150)
    body = json.dumps({"model": "afd", "prompt": "Attention keeps", "max_tokens": 4})
    answer = subprocess.run(
        ["curl", "-sS", f"{url}/v1/completions", "-H", "Content-Type: application/json", "-d", body],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["usage"]["completion_tokens"] == 4
    run.look()
    run.process.send_signal(signal.SIGINT)
    assert run.end(30) == 0, run.err
    assert run.out.index("PASS") < run.out.index("AFD serves")
    assert run.out.splitlines()[0].endswith(": AFD_PORT")
    assert re.search(r"^  ffn: http://\S+/status, log /\S+/ffn\.log$", run.out, re.M)
    assert run.out.splitlines()[-1] == "stopped: both roles ended with code 0 and left nothing behind"
    assert run.left() == []


def test_a_model_that_cannot_be_read_is_refused_in_one_line_before_anything_starts(
    smoke: Callable[..., Run], tmp_path: Path
) -> None:
    began = time.monotonic()
    run = smoke("--model", str(tmp_path / "absent"))
    assert run.end(30) == 64
    assert time.monotonic() - began < 10
    (line,) = run.err.splitlines()
    assert line.startswith("afd: error: ") and "absent" in line
    run.expected = 0
    assert run.left() == []


def test_a_role_that_fails_is_named_with_its_cause_and_its_log_is_kept(
    smoke: Callable[..., Run], tmp_path: Path
) -> None:
    damaged = with_another_name(
        resolve_builtin(MODEL), tmp_path / "damaged", "shared_experts", "sharex_experts"
    )
    run = smoke("--model", str(damaged))
    assert run.end(110) in (70, 71)
    said = " ".join((run.out + run.err).split())
    assert "sharex_experts" in said
    logs = Path(re.findall(r"logs are kept in (\S+)", said)[-1])
    assert {"ffn.log", "attention.log", "native.log"} <= {path.name for path in logs.iterdir()}
    assert run.left() == [logs.name]


@pytest.mark.parametrize(
    ("number", "says", "later_s", "expected"),
    [
        (signal.SIGINT, "(importing) vLLM", 1.0, 1),
        (signal.SIGINT, "(starting) native vLLM", 0.0, 1),  # while processes are forked
        (signal.SIGINT, "(starting) native vLLM", 1.0, 4),
        (signal.SIGTERM, "(starting) native vLLM", 1.0, 4),
        (signal.SIGHUP, "(starting) native vLLM", 1.0, 4),
        (signal.SIGINT, "(asking) native vLLM", 0.2, 8),
        (signal.SIGINT, "(asking) AFD", 0.5, 8),
    ],
)
def test_a_run_that_is_interrupted_returns_when_all_of_it_is_gone(
    number: signal.Signals, says: str, later_s: float, expected: int, smoke: Callable[..., Run]
) -> None:
    run = smoke()
    run.expected = expected
    run.says(says, 90)
    time.sleep(later_s)
    run.process.send_signal(number)
    began = time.monotonic()
    assert run.end(20) == 130, run.err
    print(f"\n{number.name}: ended after {time.monotonic() - began:.1f} s")
    assert run.err.splitlines()[-1] == "afd: error: interrupted"
    assert run.left() == []


@pytest.mark.parametrize("says", ["(starting) native vLLM", "(asking) AFD"], ids=["start", "afd"])
def test_a_second_ctrl_c_kills_at_once_and_leaves_nothing_either(
    says: str, smoke: Callable[..., Run]
) -> None:
    run = smoke()
    run.expected = 4  # when it has just begun to start them
    run.says(says, 90)
    run.look()
    for role in run.agents():  # that cannot end as they are asked to
        role.send_signal(signal.SIGSTOP)
    run.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert run.process.poll() is None, "it waits for its roles"
    run.process.send_signal(signal.SIGINT)
    began = time.monotonic()
    assert run.end(20) == 130, run.err
    assert time.monotonic() - began < 3
    assert run.left() == []


def test_a_run_works_below_a_temporary_directory_whose_path_is_too_long_for_sockets(
    smoke: Callable[..., Run],
) -> None:
    run = smoke(below="x" * 120)
    assert run.end() == 0, run.out + run.err
    assert "PASS" in run.out
    assert f"unix sockets are made in {run.temporary.parent}: the path of {run.temporary} has" in run.err
    assert run.left() == []
    assert list(run.temporary.parent.iterdir()) == [run.temporary]
