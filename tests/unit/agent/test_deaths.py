# SPDX-License-Identifier: Apache-2.0
"""Which process of a tree is to blame when several end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator

import psutil
import pytest

from afd.agent import deaths
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

# A parent that waits for its child and goes on.
REAPER = """
import os, time
child = os.fork()
if child == 0:
    print("ready", flush=True)
    time.sleep(600)
os.waitpid(child, 0)
time.sleep(600)
"""


def remembers() -> bool:
    """Whether this kernel tells by a pidfd how a process has ended for which its parent has waited."""
    process = subprocess.Popen(["true"])
    descriptor = os.pidfd_open(process.pid)
    try:
        process.wait()
        return deaths._status_of_the_gone(descriptor) is not None
    finally:
        os.close(descriptor)


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


@pytest.mark.parametrize(
    ("name", "looks", "unexplained"),
    [
        ("VLLM::child", 2, True),
        ("VLLM::child", 1, False),
        ("afd::child", 2, False),
    ],
)
def test_one_that_lasted_and_whose_exit_code_is_gone_is_unexplained(
    name: str, looks: int, unexplained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was just forked to run another program has its parent's name, and may end as it likes."""
    monkeypatch.setattr("afd.agent.deaths._GET_INFO", 0)  # what a kernel before 6.15 does not know

    def watch(deaths: Deaths, child: psutil.Process, parent: int) -> None:
        for _ in range(looks):
            deaths.watch(child, name, parent)

    found = reaped(watch)
    assert found is not None and found.code is None and not found.violent
    assert found.unexplained is unexplained


def test_a_kernel_that_remembers_tells_how_one_ended_whose_parent_was_faster() -> None:
    found = reaped(lambda watched, child, parent: watched.watch(child, "VLLM::child", parent))
    assert found is not None and found.code == (-signal.SIGKILL if remembers() else None)


def test_one_that_was_just_forked_is_named_after_its_parent(family: Family) -> None:
    parent, child = family

    async def run() -> Death | None:
        deaths = Deaths()
        deaths.meet(child, "afd::API server", parent.pid)
        child.kill()
        found = await deaths.wait(5)
        deaths.close()
        return found

    found = asyncio.run(run())
    assert found is not None and found.violent
    assert found.name == f"a process forked from afd::API server (process {child.pid})"


def test_one_that_was_met_and_has_a_name_by_now_keeps_it(family: Family) -> None:
    parent, child = family

    async def run() -> Death | None:
        deaths = Deaths()
        deaths.meet(child, "afd::API server", parent.pid)
        deaths.watch(child, "VLLM::EngineCore", parent.pid)
        deaths.meet(child, "afd::API server", parent.pid)
        child.kill()
        found = await deaths.wait(5)
        deaths.close()
        deaths.meet(parent, "afd::API server", 1)  # too late: nothing is watched any more
        return found

    found = asyncio.run(run())
    assert found is not None and found.name == "VLLM::EngineCore"


def test_a_helper_that_fails_hides_no_kill(family: Family) -> None:
    """What was just forked may be to run another program; it has no name, or that of its parent."""
    parent, child = family

    async def run(name: str) -> tuple[Death | None, Death | None]:
        deaths = Deaths()
        deaths.watch(parent, f"VLLM::EngineCore (process {parent.pid})", 1)
        with subprocess.Popen(
            [sys.executable, "-c", "import sys; sys.stdin.read(); sys.exit(1)"], stdin=-1
        ) as helper:
            process = psutil.Process(helper.pid)
            deaths.meet(process, "VLLM::EngineCore", parent.pid)
            if name:
                deaths.watch(process, name, parent.pid)
            helper.communicate()
        before = await deaths.wait(0.3)
        child.kill()
        parent.kill()
        after = await deaths.wait(5)
        deaths.close()
        return before, after

    before, after = asyncio.run(run(f"VLLM::EngineCore (process {child.pid})"))
    assert before is None
    assert after is not None and after.violent and "EngineCore" in after.name


def test_where_no_end_can_be_heard_it_is_known_who_is_below_whom(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, child = family

    def refused(pid: int) -> int:
        raise PermissionError(1, "a sandbox")

    async def run() -> bool:
        deaths = Deaths()
        deaths.watch(parent, "VLLM::EngineCore_DP1", 1)
        deaths.watch(child, "VLLM::Worker_DP1", parent.pid)
        below = deaths.is_below(child.pid, parent.pid)
        deaths.close()
        return below

    monkeypatch.setattr(os, "pidfd_open", refused)
    assert asyncio.run(run())


def reaped(watch: Callable[[Deaths, psutil.Process, int], object]) -> Death | None:
    """What is heard of a child that was killed and whose parent has waited for it."""

    async def run(child: psutil.Process, parent: int) -> Death | None:
        deaths = Deaths()
        watch(deaths, child, parent)
        child.kill()
        time.sleep(0.5)  # the parent is faster than this event loop
        found = await deaths.wait(5)
        deaths.close()
        return found

    with subprocess.Popen([sys.executable, "-c", REAPER], stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        running.stdout.readline()
        (child,) = psutil.Process(running.pid).children()
        found = asyncio.run(run(child, running.pid))
        running.kill()
    return found
