# SPDX-License-Identifier: Apache-2.0
"""Which process of a tree is to blame when several end."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator

import psutil
import pytest

from afd.agent.deaths import Death, Deaths

# A parent with a child that dies with it (as those of a role do), which ends with code 3 when its child ends.
PROGRAM = """
import os, sys, time
from afd.agent.launch_protocol import die_with_parent
parent = os.getpid()
child = os.fork()
if child == 0:
    die_with_parent(parent)
    print("ready", flush=True)
    time.sleep(600)
os.waitpid(child, 0)
time.sleep(0.05)
os._exit(3)
"""

Family = tuple[psutil.Process, psutil.Process]


@pytest.fixture
def family() -> Iterator[Family]:
    """A process and its child."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        running.stdout.readline()
        parent = psutil.Process(running.pid)
        (child,) = parent.children()
        yield parent, child
        running.kill()


def blamed(family: Family, deed: Callable[[Deaths], Coroutine[None, None, None]]) -> Death | None:
    async def run() -> Death | None:
        deaths = Deaths()
        parent, child = family
        deaths.watch(parent, f"afd::parent (process {parent.pid})", 1)
        deaths.watch(child, f"VLLM::child (process {child.pid})", parent.pid)
        await deed(deaths)
        found = await deaths.wait(5)
        await asyncio.sleep(0.2)
        assert deaths.first == found
        deaths.close()
        return found

    return asyncio.run(run())


def test_a_killed_child_is_blamed_and_not_the_parent_that_ends_because_of_it(family: Family) -> None:
    _, child = family

    async def deed(deaths: Deaths) -> None:
        assert deaths.first is None
        child.kill()

    found = blamed(family, deed)
    assert found is not None
    assert found.pid == child.pid
    assert str(found) in (
        f"VLLM::child (process {child.pid}) was killed {how}" for how in ("by SIGKILL", "or crashed")
    )


def test_a_killed_parent_is_blamed_and_not_the_child_that_the_kernel_kills_with_it(family: Family) -> None:
    parent, _ = family

    async def deed(deaths: Deaths) -> None:
        parent.kill()

    found = blamed(family, deed)
    assert found == Death(parent.pid, f"afd::parent (process {parent.pid})", -signal.SIGKILL)


def test_a_process_with_another_title_and_one_that_is_gone_are_not_watched(family: Family) -> None:
    parent, child = family

    async def run() -> Death | None:
        deaths = Deaths()
        deaths.watch(child, "cc1 (process 1)", parent.pid)
        child.kill()
        psutil.wait_procs([parent], timeout=5)
        deaths.watch(child, "VLLM::child", parent.pid)
        found = await deaths.wait(0.1)
        deaths.close()
        return found

    assert asyncio.run(run()) is None
