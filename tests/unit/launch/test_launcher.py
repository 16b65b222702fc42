# SPDX-License-Identifier: Apache-2.0
"""The launcher and the agent's side of it: what a forked process is given, and how its end is told."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from afd.agent.exits import describe_exit
from afd.agent.launch_protocol import LAUNCHER_VARIABLE, MAX_MESSAGE
from afd.agent.launcher import Child, Launcher, OwnLauncher, start_launcher
from afd.errors import ConfigError, MismatchError, RoleFailedError
from tests.unit.launch.forks import Forks, connected, environment, gone, wait_until


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60.0))


async def lines(forks: Forks, count: int, timeout_s: float = 15.0) -> list[str]:
    """The first ``count`` lines that the forked processes wrote."""
    for _ in range(int(timeout_s / 0.02)):
        if len(forks.lines) >= count:
            return forks.lines
        await asyncio.sleep(0.02)
    raise AssertionError(f"only {forks.lines} within {timeout_s} s")


# ---- how it ends ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "argv", "code", "says"),
    [
        ("succeed", ["a", "b"], 0, "done a b"),
        ("leave", ["3"], 3, None),
        ("leave", ["a reason"], 1, "a reason"),
        ("leave_quietly", [], 0, None),
        ("interrupted", [], 130, None),
        ("kill_itself", [str(int(signal.SIGKILL))], -signal.SIGKILL, None),
        ("kill_itself", [str(int(signal.SIGTERM))], -signal.SIGTERM, None),
        ("raise_error", [], 1, "ValueError: as the test asked"),
        ("raise_mismatch", [], MismatchError.exit_code, "afd: error: two ranks differ"),
        ("no_such_function", [], 1, "KeyError: 'no_such_function'"),
        ("tests.no_such_module:main", [], 1, "ModuleNotFoundError: No module named 'tests.no_such_module'"),
    ],
)
def test_the_end_of_a_process_is_told_as_it_was(
    launcher_path: str, tmp_path: Path, function: str, argv: list[str], code: int, says: str | None
) -> None:
    async def work() -> None:
        async with connected(launcher_path, tmp_path) as forks:
            found, said = await forks.run(function, *argv)
            assert found == code
            assert (said[-1] if said else None) == says

    run(work())


def test_an_exception_is_told_with_its_traceback(launcher_path: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with connected(launcher_path, tmp_path) as forks:
            _, said = await forks.run("raise_error")
            assert said[0] == "Traceback (most recent call last):"
            assert any("targets.py" in line for line in said)

    run(work())


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exited with code 0"),
        (-signal.SIGKILL, "was killed by SIGKILL"),
        (-signal.SIGBUS, "was killed by SIGBUS (a full /dev/shm does that; see afd doctor)"),
        (-(signal.SIGRTMIN + 3), f"was killed by signal {signal.SIGRTMIN + 3}"),
    ],
)
def test_an_exit_code_is_put_into_words(code: int, words: str) -> None:
    assert describe_exit(code) == words


def test_several_processes_run_and_end_independently(launcher_path: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with connected(launcher_path, tmp_path) as forks:
            waiting = [await forks.fork("wait_for_term", name=f"w{number}") for number in range(3)]
            assert await asyncio.wait_for((await forks.fork("leave", "2")).exited, 15) == 2
            await lines(forks, 3)
            assert len({child.pid for child in waiting}) == 3
            for number, child in enumerate(waiting):
                os.kill(child.pid, signal.SIGTERM if number < 2 else signal.SIGKILL)
            codes = await asyncio.wait_for(asyncio.gather(*(child.exited for child in waiting)), 15)
            assert codes == [5, 5, -signal.SIGKILL]

    run(work())


# ---- what it is given -------------------------------------------------------------------------------------


def test_a_process_gets_exactly_its_arguments_environment_and_directory(
    launcher_path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"HOME": "/nowhere", "ÜBER": "ß\n=", "OMP_NUM_THREADS": "2"}

    async def work() -> None:
        async with connected(launcher_path, tmp_path) as forks:
            code, said = await forks.run("describe", "--flag", "a value", env=given)
            assert code == 0, said
            found = json.loads(said[-1])
            assert found["argv"] == ["describe", "--flag", "a value"]
            assert found["env"] == given
            assert found["cwd"] == str(tmp_path)
            assert found["title"] == "afd::describe"
            assert found["omp"] == 2

    run(work())


def test_a_process_has_a_session_of_its_own_and_nothing_of_the_launchers(
    launcher_path: str, tmp_path: Path
) -> None:
    async def work() -> None:
        async with connected(launcher_path, tmp_path) as forks:
            found = json.loads((await forks.run("describe"))[1][-1])
            assert found["session"] is True
            assert found["threads"] == 1
            assert found["ignored"] == []
            assert sorted(found["files"]) == ["0", "1", "2"]
            assert found["files"]["0"] == "/dev/null"
            assert found["files"]["1"].startswith("pipe:")

    run(work())


@pytest.mark.parametrize("variable", ["OMP_PLACES", "GOMP_CPU_AFFINITY"])
def test_a_process_runs_on_the_cores_that_openmp_would_have_read(
    launcher_path: str, tmp_path: Path, variable: str
) -> None:
    core = min(os.sched_getaffinity(0))

    async def work() -> None:
        async with connected(launcher_path, tmp_path) as forks:
            found = json.loads((await forks.run("describe", env=environment(**{variable: f"{core}"})))[1][-1])
            assert found["cores"] == [core]

    run(work())


def test_output_arrives_line_by_line_whatever_it_is(launcher_path: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with connected(launcher_path, tmp_path) as forks:
            child = await forks.fork("speak")
            assert await child.exited == 0
            await forks.launcher.drain_output(10.0)
            # Output and errors have a stream each: whole lines, and an order within each.
            assert sorted(child.tail) == sorted(forks.lines)
            said = [line for line in forks.lines if line != "err"]
            assert len(said) == len(forks.lines) - 1
            assert said[:2] == ["out", "\ufffd broken"]
            assert said[-1] == "last, without an end"

    run(work())


def test_the_last_lines_are_remembered_and_no_more(launcher_path: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with connected(launcher_path, tmp_path) as forks:
            child = await forks.fork("succeed", *["\n"] * (Launcher.TAIL + 50), "end")
            await child.exited
            await forks.launcher.drain_output(10.0)
            assert len(child.tail) == Launcher.TAIL
            assert child.tail[-1] == " end"

    run(work())


def test_an_environment_of_100_kilobytes_arrives_and_one_too_big_is_refused(
    launcher_path: str, tmp_path: Path
) -> None:
    async def work() -> None:
        async with connected(launcher_path, tmp_path) as forks:
            code, said = await forks.run("describe", env=environment(BIG="x" * 100_000))
            assert code == 0
            assert len(json.loads(said[-1])["env"]["BIG"]) == 100_000
            with pytest.raises(RoleFailedError, match=f"at most {MAX_MESSAGE} fit"):
                await forks.fork("succeed", env=environment(BIG="x" * MAX_MESSAGE))
            assert (await forks.run("succeed"))[0] == 0

    run(work())


def test_a_launcher_for_the_other_runner_refuses_in_one_line(launcher_path: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with connected(launcher_path, tmp_path) as forks:
            code, said = await forks.run("succeed", env=environment(TRITON_BACKENDS_IN_TREE="1"))
            assert code == ConfigError.exit_code
            assert said == [
                "afd: error: this launcher has imported vLLM for the other model runner; start one for each"
            ]

    run(work())


# ---- who dies with whom -----------------------------------------------------------------------------------


async def _family(forks: Forks) -> tuple[Child, list[int]]:
    """A process, and the numbers of itself, its child and its grandchild."""
    root = await forks.fork("family")
    return root, [int(line.split()[1]) for line in (await lines(forks, 3))]


def test_a_closed_connection_takes_children_and_grandchildren_along(
    launcher_path: str, tmp_path: Path
) -> None:
    async def work() -> None:
        async with connected(launcher_path, tmp_path) as forks:
            _, pids = await _family(forks)
            assert not gone(*pids)
        await asyncio.to_thread(wait_until, lambda: gone(*pids), f"{pids} are gone")

    run(work())


def test_a_killed_process_takes_what_it_forked_along(launcher_path: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with connected(launcher_path, tmp_path) as forks:
            root, pids = await _family(forks)
            os.kill(root.pid, signal.SIGKILL)
            await asyncio.to_thread(wait_until, lambda: gone(*pids), f"{pids} are gone")

    run(work())


def test_connections_do_not_touch_each_others_processes(launcher_path: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with connected(launcher_path, tmp_path) as forks:
            kept = await forks.fork("wait")
            async with connected(launcher_path, tmp_path) as others:
                other = await others.fork("wait")
            await asyncio.to_thread(wait_until, lambda: gone(other.pid), "the other process is gone")
            assert not gone(kept.pid)
            assert not kept.exited.done()

    run(work())


def test_a_launcher_of_ones_own_dies_with_the_connection(tmp_path: Path) -> None:
    async def work() -> None:
        path = str(tmp_path / "own")
        process = start_launcher(path, environment(), modules=("json",))
        try:
            async with connected(path, tmp_path) as forks:
                root, pids = await _family(forks)
                os.kill(process.pid, signal.SIGKILL)
                assert await asyncio.wait_for(root.exited, 15) == -signal.SIGKILL
                await asyncio.to_thread(wait_until, lambda: gone(*pids), f"{pids} are gone")
                with pytest.raises(RoleFailedError, match=r"the launcher was killed or crashed before"):
                    await forks.fork("succeed")
        finally:
            process.kill()
            process.wait()

    run(work())


async def until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_until, condition, "what the process says", 30.0)


def test_a_forked_process_does_not_keep_the_ports_of_its_parent_open(
    launcher_path: str, tmp_path: Path
) -> None:
    """As an engine that outlives its API server's port by the time of a drain."""

    async def work() -> None:
        async with connected(launcher_path, tmp_path) as forks:
            await forks.fork("listen_and_fork")
            await until(lambda: len(forks.lines) == 2)
            port = int(next(line for line in forks.lines if line.startswith("listening")).split()[-1])
            with socket.create_connection(("127.0.0.1", port), 5):
                pass
            await until(lambda: "closed" in forks.lines)
            began = time.monotonic()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), 5).close()
            assert time.monotonic() - began < 1
            assert "the child has null in its place, and a unix socket that listens" in forks.lines

    run(work())


# ---- finding one ------------------------------------------------------------------------------------------


def test_an_agent_uses_the_launcher_that_its_environment_names(launcher_path: str, tmp_path: Path) -> None:
    async def work() -> None:
        launcher = await Launcher.open(tmp_path, {LAUNCHER_VARIABLE: launcher_path}, 30.0)
        try:
            child = await launcher.spawn(
                "it", "tests.unit.launch.targets:leave", ["4"], environment(), lambda line: None
            )
            assert await child.exited == 4
        finally:
            await launcher.close()
        assert os.listdir(tmp_path) == []

    run(work())


def test_a_launcher_that_is_not_there_in_time_is_named(tmp_path: Path) -> None:
    path = str(tmp_path / "nobody")
    with pytest.raises(RoleFailedError, match=f"the launcher at {path} did not finish importing"):
        asyncio.run(Launcher.open(tmp_path, {}, 0.2, path=path))


def test_a_launcher_whose_imports_fail_is_told_at_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = environment(PYTHONPATH="/nowhere")
    with pytest.raises(RoleFailedError, match="the launcher exited with code 1 while it imported vLLM"):
        asyncio.run(Launcher.open(tmp_path, {**broken, "PYTHONHOME": "/nowhere"}, 30.0, own=OwnLauncher()))
    assert capfd.readouterr().err
