# SPDX-License-Identifier: Apache-2.0
"""The agent runs before the model, and what it starts does not."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, subprocess, sys
from afd.agent.priority import NICE, before_the_model, behind_the_agent
if before_the_model():
    assert os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK == os.SCHED_RR
else:
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
child = "import os; print(os.sched_getscheduler(0) == os.SCHED_OTHER)"
print(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True).stdout, end="")
before = os.nice(0)
behind_the_agent()
print(os.nice(0) - before == NICE)
"""


def test_an_agent_may_run_at_once_where_the_system_permits_it_and_its_children_are_as_others() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout.split()) == (0, ["True", "True"]), done.stderr
