# SPDX-License-Identifier: Apache-2.0
"""Attention's replicas in two `afd serve` processes: one with the API server, one without."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import aiohttp
import psutil
import pytest

from afd.agent.leftovers import title
from afd.launch.free_ports import free_port
from afd.testing.stack import RoleProcess, status
from afd.topology import Role, Topology
from tests.system.conftest import DETAILED, Groups, Natives, layout
from tests.system.interview import (
    full_script,
    interview_group,
    reasons,
    report,
)
from tests.system.rig import processes, until

pytestmark = pytest.mark.timeout(300)


class Spread:
    """A group of F0, an agent with A0 and the API server, and an agent with A1 only."""

    def __init__(
        self, groups: Groups, launcher: str, directory: Path, runner: str, afd_args: tuple[str, ...]
    ) -> None:
        # Two busy cores may need more than the default for a request and the steps that both replicas end together.
        vllm_args = (*DETAILED, "--shutdown-timeout", "20")
        self.layout = layout(runner, vllm_args=vllm_args, topology=Topology(2, 1), afd_args=afd_args)
        rpc = ("--data-parallel-size-local", "1", "--data-parallel-rpc-port", str(free_port()))
        self.group = groups(self.layout, arguments={Role.ATTENTION: rpc})
        self.group.start()
        directory.mkdir()
        self.rest = RoleProcess(
            Role.ATTENTION,
            self.layout,
            directory,
            {**self.group.ports, "attention": free_port()},
            launcher=launcher,
            arguments=(*rpc, "--headless", "--data-parallel-start-rank", "1"),
        )

    @property
    def roles(self) -> list[RoleProcess]:
        return [*self.group.roles.values(), self.rest]

    def ready(self) -> None:
        asyncio.run(self.group.ready(120))

    def ends(self, timeout_s: float = 40) -> dict[str, int]:
        return {name: role.wait(timeout_s) for name, role in zip(("F0", "A0", "A1"), self.roles, strict=True)}


@pytest.fixture
def spread(
    groups: Groups, launchers: Callable[[str], str], tmp_path: Path
) -> Iterator[Callable[..., Spread]]:
    with ExitStack() as scope:

        def make(runner: str, *afd_args: str) -> Spread:
            made = Spread(groups, launchers(runner), tmp_path / "rest", runner, afd_args)
            scope.callback(made.rest.close)
            made.ready()
            return made

        yield make


async def ask(url: str, replica: int, tokens: int) -> int:
    body = {"model": "afd", "prompt": "Who keeps the cache?", "max_tokens": tokens, "ignore_eos": True}
    headers = {"X-data-parallel-rank": str(replica)}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        async with session.post(f"{url}/v1/completions", json=body, headers=headers) as response:
            return int((await response.json())["usage"]["completion_tokens"])


@pytest.mark.parametrize("runner", ["v2", "v1"])
def test_replicas_of_two_agents_give_native_tokens_and_stop_together(
    runner: str, spread: Callable[[str], Spread], natives: Natives
) -> None:
    script = full_script(runner)
    native = natives(layout(runner, vllm_args=DETAILED), script)
    made = spread(runner)
    ours = interview_group(made.group, script, native)
    comparison = ours.against(native)
    report(f"two Attention agents, runner {runner}", comparison)
    assert comparison.agrees, reasons(comparison)
    head, rest = (asyncio.run(status(role.agent_url)) for role in (made.group.attention, made.rest))
    assert (head["ranks"], rest["ranks"], rest["state"]) == (["A0"], ["A1"], "ready")
    assert head["epoch"] == rest["epoch"]
    assert rest["steps"] > 10
    made.group.attention.signal(signal.SIGTERM)
    assert made.ends() == {"F0": 0, "A0": 0, "A1": 0}


@pytest.mark.parametrize("stopped", ["A0", "A1", "F0"])
def test_a_stop_of_any_agent_lets_a_request_on_the_other_replica_be_answered(
    stopped: str, spread: Callable[[str], Spread]
) -> None:
    made = spread("v2")

    async def run() -> int:
        asked = asyncio.create_task(ask(made.group.attention.api_url, 1, 60))
        while (await status(made.rest.agent_url))["steps"] < 20 and not asked.done():
            await asyncio.sleep(0.05)
        dict(zip(("F0", "A0", "A1"), made.roles, strict=True))[stopped].signal(signal.SIGTERM)
        return await asked

    assert asyncio.run(run()) == 60
    assert made.ends() == {"F0": 0, "A0": 0, "A1": 0}


def test_the_death_of_the_agent_without_api_server_ends_all_with_one_cause(
    spread: Callable[[str], Spread],
) -> None:
    made = spread("v2")
    made.rest.signal(signal.SIGKILL)
    ends = made.ends()
    assert (ends["F0"], ends["A0"]) == (70, 70)
    assert made.group.ffn.error() == made.group.attention.error()
    assert "A1: its agent" in made.group.ffn.error()


@pytest.mark.parametrize("victim", ["a worker of A1", "the API server"])
def test_three_agents_meet_again_when_one_of_them_lost_a_process(
    victim: str, spread: Callable[..., Spread]
) -> None:
    made = spread("v2", "--afd-on-loss", "rejoin")
    before = asyncio.run(status(made.rest.agent_url))["epoch"]
    if victim == "the API server":
        pid = processes(made.group.attention)["API server"]
    else:
        (engines,) = processes(made.rest).values()
        below = psutil.Process(engines).children(recursive=True)
        pid = next(process.pid for process in below if "Worker" in title(process))
    os.kill(pid, signal.SIGKILL)

    def again() -> bool:
        now = [asyncio.run(status(role.agent_url)) for role in made.roles]
        return all(body["state"] == "ready" and body["epoch"] != before for body in now)

    until(again, 60, "a new epoch")
    bodies = [asyncio.run(status(role.agent_url)) for role in made.roles]
    assert len({body["epoch"] for body in bodies}) == 1
    assert [body["restarts"] for body in bodies] == [1, 1, 1]
    blamed = "A0: " if victim == "the API server" else "A1: "
    assert all(body["last_error"].startswith(blamed) for body in bodies), bodies
    assert [asyncio.run(ask(made.group.attention.api_url, replica, 8)) for replica in (0, 1)] == [8, 8]
    made.group.attention.signal(signal.SIGTERM)
    assert made.ends() == {"F0": 0, "A0": 0, "A1": 0}
