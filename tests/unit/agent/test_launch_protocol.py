# SPDX-License-Identifier: Apache-2.0
"""A process that must not outlive the one that forked it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil

PROGRAM = """
import os, sys, time
from afd.agent.launch_protocol import die_with_parent
die_with_parent(int(sys.argv[1]))
print("alive", flush=True)
time.sleep(float(sys.argv[2]))
"""


def test_a_process_whose_parent_is_there_lives() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(os.getpid()), "0"], capture_output=True, timeout=30
    )
    assert (done.returncode, done.stdout) == (0, b"alive\n")


def test_a_process_whose_parent_was_gone_before_it_asked_ends_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, "1", "60"], capture_output=True, timeout=30)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, b"")


def test_a_process_dies_with_a_parent_that_is_killed() -> None:
    # The parent in the middle prints its child's number and its first line, then waits to be killed.
    middle = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, subprocess, sys\n"
            f"child = subprocess.Popen([sys.executable, '-c', {PROGRAM!r}, str(os.getpid()), '60'])\n"
            "print(child.pid, flush=True)\nchild.wait()",
        ],
        stdout=subprocess.PIPE,
    )
    assert middle.stdout is not None
    with middle.stdout:
        child = psutil.Process(int(middle.stdout.readline()))
        assert middle.stdout.readline() == b"alive\n"
        middle.kill()
        middle.wait()
    deadline = time.monotonic() + 10
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.02)
