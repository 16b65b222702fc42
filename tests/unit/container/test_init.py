# SPDX-License-Identifier: Apache-2.0
"""A child of PID 1: what it is sent, what is reaped, and how it ends. Each case runs in a process of its own: it forks
and blocks signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

PARENT = """
import os, sys
from afd.container.init import Child, as_exit_code
child = Child([sys.executable, "-c", sys.argv[1]], dict(os.environ))
print(child.pid, flush=True)
sys.exit(as_exit_code(child.wait()))
"""
UNBLOCK = "import os, signal, sys, time\nsignal.pthread_sigmask(signal.SIG_SETMASK, ())\n"


def start(program: str) -> tuple[subprocess.Popen[str], int]:
    process = subprocess.Popen([sys.executable, "-c", PARENT, program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def ended(process: subprocess.Popen[str]) -> int:
    with process:
        return process.wait(20)


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("import sys; sys.exit(64)", 64),
        (UNBLOCK + "os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)", 128 + 15),
        ("import os; os.kill(os.getpid(), 9)", 128 + 9),
    ],
)
def test_its_exit_code_is_passed_on(program: str, code: int) -> None:
    process, _ = start(program)
    assert ended(process) == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_is_passed_on_once(number: signal.Signals) -> None:
    heard = (
        UNBLOCK
        + f"signal.signal({int(number)}, lambda *_: print('heard', flush=True))\nprint('up', flush=True)\n"
    )
    process, _ = start(heard + "time.sleep(0.6)\nsys.exit(5)")
    assert line(process) == "up"
    process.send_signal(number)
    assert line(process) == "heard"
    assert line(process) == ""
    assert ended(process) == 5


def test_a_stop_that_comes_before_the_program_listens_waits_for_it() -> None:
    process, _ = start(
        "import signal, sys, time\ntime.sleep(0.5)\nsignal.signal(15, lambda *_: sys.exit(7))\n"
        "signal.pthread_sigmask(signal.SIG_UNBLOCK, {15})\ntime.sleep(20)"
    )
    os.kill(process.pid, signal.SIGTERM)
    assert ended(process) == 7


def test_the_program_ends_with_its_parent() -> None:
    process, pid = start("import time; time.sleep(60)")
    process.kill()
    ended(process)
    deadline = time.monotonic() + 5
    while os.path.exists(f"/proc/{pid}") and _runs(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_orphans_are_reaped_while_the_program_runs() -> None:
    """As a subreaper the parent gets them, as PID 1 would."""
    orphan = (
        "import os, time\nif os.fork() == 0:\n if os.fork() == 0:\n  os._exit(0)\n os._exit(0)\nos.wait()\n"
    )
    parent = "import ctypes; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n" + PARENT
    process = subprocess.Popen(
        [sys.executable, "-c", parent, orphan + "time.sleep(1)"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    time.sleep(0.7)
    with open(f"/proc/{process.pid}/task/{process.pid}/children", encoding="ascii") as file:
        assert file.read().split() == [str(pid)]
    assert ended(process) == 0


def test_the_program_has_no_signal_ignored_that_python_ignores() -> None:
    parent = PARENT.replace('[sys.executable, "-c", sys.argv[1]]', '["cat", "/proc/self/status"]')
    done = subprocess.run([sys.executable, "-c", parent, ""], capture_output=True, text=True, timeout=20)
    (mask,) = (line.split()[1] for line in done.stdout.splitlines() if line.startswith("SigIgn:"))
    assert not int(mask, 16) & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1)


def test_a_program_that_cannot_be_run_is_said_and_ends_with_127() -> None:
    parent = PARENT.replace('[sys.executable, "-c", sys.argv[1]]', '["/no/such/program"]')
    done = subprocess.run([sys.executable, "-c", parent, ""], capture_output=True, text=True, timeout=20)
    assert done.returncode == 127
    assert "/no/such/program: No such file or directory" in done.stderr
