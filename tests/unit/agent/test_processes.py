# SPDX-License-Identifier: Apache-2.0
"""The process tree of a role: real forks of small functions, watched, explained and ended."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from afd.agent.inflight import VARIABLE as INFLIGHT_VARIABLE
from afd.agent.inflight import InflightFile
from afd.agent.launch_protocol import LAUNCHER_VARIABLE
from afd.agent.processes import Processes
from afd.control.abort import Cause
from afd.control.channel import SOCKET_ENV
from afd.control.hub import Process
from afd.errors import ConfigError
from afd.topology import Rank, Role
from tests.unit.agent.plans import planned
from tests.unit.launch.forks import environment, gone, wait_until

Work = Callable[[Processes], Coroutine[Any, Any, None]]
Run = Callable[..., None]
A0, F0 = Rank(Role.ATTENTION, 0), Rank(Role.FFN, 0)


@pytest.fixture
def run(checkpoint: Path, launcher_path: str, tmp_path: Path) -> Run:
    """Runs ``work`` with the processes of a role that runs a function of tests/unit/launch/targets.py."""

    def with_processes(function: str, work: Work, role: Role = Role.FFN, argv: tuple[str, ...] = ()) -> None:
        plan = planned(
            checkpoint,
            role,
            ("--dtype", "float32", *argv),
            environment(**{LAUNCHER_VARIABLE: launcher_path}),
            target=f"tests.unit.launch.targets:{function}",
        )

        async def started() -> None:
            processes = Processes(plan, tmp_path)
            try:
                await processes.launch("@hub", {"AFD_RANK_TRANSPORT": "shm", "AFD_RANK_HOST": "127.0.0.1"})
                await processes.start()
                await work(processes)
            finally:
                await processes.end("")

        asyncio.run(asyncio.wait_for(started(), 60))

    return with_processes


async def said(processes: Processes, word: str, number: int = 0) -> None:
    """Wait until a process has said ``word``; on a busy machine it takes a while to come so far."""
    deadline = time.monotonic() + 30
    while not any(word in line for line in (*processes.children[number].tail, *processes.below)):
        assert time.monotonic() < deadline, f"nobody said {word!r}"
        await asyncio.sleep(0.02)


async def settled(processes: Processes) -> None:
    """Wait for the first process to end, and for its last words."""
    await processes.first_exit()
    await asyncio.sleep(0.1)


def test_a_rank_is_told_its_place_the_agent_and_the_transport(
    run: Run, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    async def work(processes: Processes) -> None:
        await settled(processes)
        assert [child.name for child in processes.children] == ["rank F0"]

    run("describe", work)
    line = next(line for line in capfd.readouterr().err.splitlines() if line.startswith("(F0) {"))
    found = json.loads(line.removeprefix("(F0) "))
    assert found["env"]["AFD_RANK_INDEX"] == "0"
    assert found["env"]["AFD_RANK_TRANSPORT"] == "shm"
    assert found["env"]["AFD_RANK_HOST"] == "127.0.0.1"
    assert found["env"][SOCKET_ENV] == "@hub"
    assert found["env"][INFLIGHT_VARIABLE] == str(tmp_path / "inflight")
    assert found["argv"][0] == "rank F0"


def test_attention_is_one_process_whose_output_is_left_as_it_is(
    run: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    async def work(processes: Processes) -> None:
        await settled(processes)
        assert [child.name for child in processes.children] == ["API server"]

    run("succeed", work, Role.ATTENTION)
    assert any(line.startswith("done ") for line in capfd.readouterr().err.splitlines())


@pytest.mark.parametrize(
    ("function", "kind", "text"),
    [
        (
            "raise_error",
            "RoleFailedError",
            "exited with code 1; its last words: ValueError: as the test asked",
        ),
        (
            "raise_mismatch",
            "RoleFailedError",
            "exited with code 65; its last words: afd: error: two ranks differ",
        ),
        ("raise_config", "ConfigError", "vLLM does not know --no-such-flag"),
        ("kill_itself_hard", "RoleFailedError", "was killed by SIGKILL"),
        ("leave_quietly", "RoleFailedError", "exited with code 0"),
    ],
)
def test_the_end_of_a_process_becomes_a_cause_that_names_rank_and_reason(
    run: Run, function: str, kind: str, text: str
) -> None:
    async def work(processes: Processes) -> None:
        await settled(processes)
        cause = processes.exit_cause(await processes.first_exit())
        assert (cause.kind, cause.rank) == (kind, "F0")
        who = f"the rank F0 (process {processes.children[0].pid}) " if kind != "ConfigError" else ""
        assert cause.message == who + text

    run(function, work)


def test_a_killed_process_below_the_first_one_is_named_by_its_title(run: Run) -> None:
    async def work(processes: Processes) -> None:
        root = processes.children[0]
        await said(processes, "grandchild")
        await processes.look()
        child = int((Path("/proc") / f"{root.pid}/task/{root.pid}/children").read_text().split()[0])
        os.kill(child, signal.SIGKILL)
        await asyncio.to_thread(wait_until, lambda: gone(child), "the child is gone")
        cause = await processes.explain(Process(A0, "rank", 1))
        assert (cause.kind, cause.rank) == ("RoleFailedError", "A0")
        assert cause.message.endswith(f"(process {child}) was killed by SIGKILL")

    run("family", work, Role.ATTENTION)


def test_a_process_that_was_killed_is_missed_at_once_and_one_that_was_told_to_end_is_not(run: Run) -> None:
    def children(pid: int) -> list[int]:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    async def ended(processes: Processes, number: int) -> tuple[int, Cause | None]:
        await said(processes, "grandchild")
        await processes.look()
        (child,) = children(processes.children[0].pid)
        waiting = asyncio.ensure_future(processes.first_killed())
        await asyncio.sleep(0.1)
        assert not waiting.done()
        os.kill(child, number)
        await asyncio.to_thread(wait_until, lambda: gone(child), "the child is gone")
        found = await processes.killed(0.2)
        assert waiting.done() is (found is not None)
        waiting.cancel()
        return child, found

    async def killed(processes: Processes) -> None:
        effect = Cause("RoleFailedError", "RuntimeError('Connection reset by peer')", rank="A0")
        hearsay = Cause("PeerLostError", "it closed its connection", rank="F0", hearsay=True)
        assert await processes.behind(effect) == effect
        child, cause = await ended(processes, signal.SIGKILL)
        assert (await processes.behind(effect), await processes.behind(hearsay)) == (cause, hearsay)
        assert cause is not None and (cause.kind, cause.rank) == ("RoleFailedError", "A0")
        assert cause.message.endswith(f"(process {child}) was killed by SIGKILL")

    async def told(processes: Processes) -> None:
        _, cause = await ended(processes, signal.SIGTERM)
        assert cause is None

    run("family", killed, Role.ATTENTION)
    run("family", told, Role.ATTENTION)


def test_a_lost_connection_of_the_first_process_is_explained_by_its_exit(run: Run) -> None:
    async def work(processes: Processes) -> None:
        root = processes.children[0]
        os.kill(root.pid, signal.SIGKILL)
        await asyncio.to_thread(wait_until, lambda: gone(root.pid), "the process is gone")
        cause = await processes.explain(Process(F0, "rank", root.pid))
        assert cause.message == f"the rank F0 (process {root.pid}) was killed by SIGKILL"

    run("wait", work)


def test_what_a_rank_claims_is_replaced_by_the_kill_of_a_process_beside_it(
    checkpoint: Path, launcher_path: str, tmp_path: Path
) -> None:
    plan = planned(
        checkpoint,
        Role.FFN,
        environment=environment(**{LAUNCHER_VARIABLE: launcher_path}),
        target="tests.unit.launch.targets:wait",
        num_attention_ranks=2,
        num_ffn_ranks=2,
    )
    seen = Cause("RoleFailedError", "RuntimeError('Connection closed by peer')", rank="F0")

    async def work() -> None:
        processes = Processes(plan, tmp_path)
        try:
            await processes.launch("@hub", {"AFD_RANK_TRANSPORT": "shm"})
            await processes.start()
            await said(processes, "waiting", 0)
            await said(processes, "waiting", 1)
            await processes.look()
            assert await processes.behind(seen) == seen  # nobody was killed
            killed = processes.children[1]
            os.kill(killed.pid, signal.SIGKILL)
            cause = await processes.behind(seen)
            assert str(cause) == f"F1: the rank F1 (process {killed.pid}) was killed by SIGKILL"
            hearsay = replace(seen, hearsay=True)
            assert await processes.behind(hearsay) == hearsay
        finally:
            await processes.end("")

    asyncio.run(asyncio.wait_for(work(), 60))


def test_lines_of_many_processes_are_whole_and_have_the_name_of_their_rank(
    run: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    async def work(processes: Processes) -> None:
        await settled(processes)

    run("speak_all_at_once", work, Role.ATTENTION)
    lines = [line for line in capfd.readouterr().err.splitlines() if "tick" in line]
    for rank in range(4):
        prefix = f"(A{rank}) " if rank else ""
        for stream in ("stdout", "stderr"):
            expected = [f"{prefix}{stream} of {rank} tick {number} {'x' * 3000}" for number in range(200)]
            assert [line for line in lines if f"{stream} of {rank} " in line] == expected
    assert len(lines) == 4 * 2 * 200


def test_processes_end_when_asked_and_are_killed_when_they_do_not(run: Run) -> None:
    async def polite(processes: Processes) -> None:
        await said(processes, "waiting")
        assert await processes.terminate(10.0) is True
        assert processes.children[0].exited.result() == 5

    async def stubborn(processes: Processes) -> None:
        await said(processes, "waiting")
        assert await processes.terminate(0.2) is False
        processes.kill()
        assert await processes.wait(10.0) is True
        assert processes.children[0].exited.result() == -signal.SIGKILL
        assert await processes.terminate(0.2) is True

    run("wait_for_term", polite)
    run("ignore_term", stubborn)


def test_the_end_takes_the_whole_tree_and_its_shared_memory_along(run: Run) -> None:
    seen: list[int] = []
    name = f"afd-test-{os.getpid()}-tree"

    async def work(processes: Processes) -> None:
        path = Path("/dev/shm") / name
        await asyncio.to_thread(wait_until, path.exists, "the file is mapped")
        await asyncio.sleep(0.3)
        seen.append(processes.children[0].pid)
        await processes.look()
        await processes.end("")
        assert gone(*seen)
        assert not path.exists()
        await processes.end("")  # twice is fine

    run("map_shared", work, argv=("--chat-template", name))


def test_requests_in_flight_are_waited_for_but_not_for_ever(run: Run, tmp_path: Path) -> None:
    async def work(processes: Processes) -> None:
        loop = asyncio.get_running_loop()
        server = InflightFile(tmp_path / "inflight", create=False)
        server.add(2)
        assert processes.inflight == 2
        began = loop.time()
        await processes.settle_requests(0.2)
        assert 0.2 <= loop.time() - began < 2
        loop.call_later(0.1, server.add, -2)
        await processes.settle_requests(10.0)
        assert loop.time() - began < 5
        server.add(1)
        processes.kill()
        await processes.settle_requests(10.0)  # nobody is there any more to answer them
        assert loop.time() - began < 8

    run("wait", work, Role.ATTENTION)


def test_a_wrong_argument_is_the_users_fault_not_the_roles(run: Run) -> None:
    async def work(processes: Processes) -> None:
        await settled(processes)
        assert processes.exit_cause(processes.children[0]).error().exit_code == ConfigError.exit_code

    run("raise_config", work)
