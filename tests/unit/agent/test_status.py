# SPDX-License-Identifier: Apache-2.0
"""What an agent says about itself: its state, whether it is ready, and everything in /status, over real HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from afd.agent.status import AgentStatus
from afd.errors import ConfigError, Difference, MismatchError, PeerLostError
from afd.launch.free_ports import free_port
from afd.observe.state import State
from afd.topology import Rank, Role
from tests.unit.agent.plans import planned
from tests.unit.control.agents import Agents

Get = Callable[[str], Coroutine[Any, Any, tuple[int, Any]]]
A0 = Rank(Role.ATTENTION, 0)


def serving(checkpoint: Path, work: Callable[[AgentStatus, Get], Coroutine[Any, Any, None]]) -> None:
    """Run ``work`` with the status of an Attention agent that answers on a port."""

    async def run() -> None:
        port = free_port()
        status = AgentStatus(planned(checkpoint, agent_port=port))
        async with status.serve(), aiohttp.ClientSession() as client:

            async def get(path: str) -> tuple[int, Any]:
                async with client.get(f"http://127.0.0.1:{port}{path}") as response:
                    json = response.content_type == "application/json"
                    return response.status, await (response.json() if json else response.text())

            await work(status, get)

    asyncio.run(asyncio.wait_for(run(), 30))


def test_the_body_of_status_has_every_field_of_the_contract(checkpoint: Path) -> None:
    async def work(status: AgentStatus, get: Get) -> None:
        code, body = await get("/status")
        assert code == 200
        assert set(body) == {
            *("version", "image", "role", "rank", "ranks", "epoch", "state", "since", "waiting_for", "peers"),
            *("topology", "connector", "transport", "runner", "model", "config_revision", "graphs", "steps"),
            *("last_step_age_s", "restarts", "last_restart_s", "last_error"),
        }
        assert (body["role"], body["rank"], body["ranks"], body["state"]) == (
            "attention", "A0", ["A0"], "starting",
        )  # fmt: skip
        assert body["topology"] == {"num_attention": 1, "num_ffn": 1, "order": "ffn_first"}
        assert (body["runner"], body["transport"], body["model"]) == ("v2", "auto", str(checkpoint))
        assert (body["epoch"], body["peers"], body["last_error"], body["last_step_age_s"]) == (
            "",
            [],
            None,
            None,
        )

    serving(checkpoint, work)


def test_a_role_is_ready_in_one_state_only_and_says_why_in_all_others(checkpoint: Path) -> None:
    async def work(status: AgentStatus, get: Get) -> None:
        status.enter("rendezvous")
        status.waiting_for = ("F0",)
        assert await get("/readyz") == (
            503,
            {"state": "rendezvous", "reason": "state is rendezvous, waiting for F0"},
        )
        status.waiting_for = ()
        for state in ("loading", "ready-to-warm", "warming"):
            status.enter(state)
            assert await get("/readyz") == (503, {"state": state, "reason": f"state is {state}"})
            assert (await get("/livez"))[0] == 200
        status.enter("ready")
        assert await get("/readyz") == (200, {"state": "ready"})
        status.enter("draining")
        assert (await get("/readyz"))[0] == 503
        assert await get("/livez") == (200, {"state": "draining"})

    serving(checkpoint, work)


@pytest.mark.parametrize(
    ("entered", "passed"),
    [
        (["rendezvous", "loading", "ready"], ["rendezvous", "loading", "ready-to-warm", "warming", "ready"]),
        (["ready"], ["rendezvous", "loading", "ready-to-warm", "warming", "ready"]),
        (["loading", "warming"], ["rendezvous", "loading", "ready-to-warm", "warming"]),
        (["loading", "stopped"], ["rendezvous", "loading", "stopped"]),
        (["ready", "draining", "ready"], ["rendezvous", "loading", "ready-to-warm", "warming", "ready", "draining"]),
        (["stopped", "ready"], ["stopped"]),
    ],
)  # fmt: skip
def test_the_way_to_a_state_passes_the_states_between(
    checkpoint: Path, caplog: pytest.LogCaptureFixture, entered: list[str], passed: list[str]
) -> None:
    caplog.set_level("INFO", logger="afd.agent.status")
    status = AgentStatus(planned(checkpoint))
    for state in entered:
        status.enter(state)
    assert [record.getMessage() for record in caplog.records] == [f"state: {state}" for state in passed]
    assert status.state == passed[-1]


def test_the_first_error_is_the_one_that_is_told(checkpoint: Path) -> None:
    async def work(status: AgentStatus, get: Get) -> None:
        status.enter("ready")
        status.failed(PeerLostError("F0 is gone", "F0"))
        status.failed(ConfigError("an effect"))
        status.enter("ready")
        assert status.state is State.FAILED
        assert await get("/livez") == (503, {"state": "failed", "reason": "F0 is gone"})
        assert await get("/readyz") == (503, {"state": "failed", "reason": "state is failed: F0 is gone"})
        assert (await get("/status"))[1]["last_error"] == "F0 is gone"

    serving(checkpoint, work)


def test_a_refused_handshake_is_counted_once_for_each_field(checkpoint: Path) -> None:
    async def work(status: AgentStatus, get: Get) -> None:
        error = MismatchError("differ", (Difference("dtype", {"A0": "x", "F0": "y"}),))
        status.failed(error)
        status.failed(error)
        _, text = await get("/metrics")
        assert 'afd_handshake_failures_total{field="dtype",role="attention"} 1.0' in text
        assert 'afd_state{role="attention",state="failed"} 1.0' in text

    serving(checkpoint, work)


def test_steps_are_counted_and_the_last_one_has_an_age(checkpoint: Path) -> None:
    async def work(status: AgentStatus, get: Get) -> None:
        status.report(A0, {"afd_steps_total{phase=eager}": 3.0, "afd_steps_total{phase=profile}": 1.0})
        body = (await get("/status"))[1]
        assert body["steps"] == 4
        age = body["last_step_age_s"]
        assert 0 <= age < 5
        await asyncio.sleep(0.05)
        status.report(A0, {"afd_steps_total{phase=eager}": 3.0})  # nothing new
        assert (await get("/status"))[1]["last_step_age_s"] > age
        assert 'afd_steps_total{phase="eager",rank="A0",role="attention"} 3.0' in (await get("/metrics"))[1]

    serving(checkpoint, work)


def test_peers_and_epoch_come_from_the_group_and_without_the_peer_nothing_is_ready(checkpoint: Path) -> None:
    async def work(status: AgentStatus, get: Get) -> None:
        async with Agents() as agents:
            ffn, attention = await agents.pair()
            status.waiting_for = ("F0",)
            status.joined(attention)
            status.enter("ready")
            ffn.set_state("ready")
            await asyncio.sleep(0.3)
            body = (await get("/status"))[1]
            assert body["epoch"] == ffn.epoch
            assert body["waiting_for"] == []
            (peer,) = body["peers"]
            assert (peer["role"], peer["rank"], peer["host"]) == ("ffn", "F0", "host-ffn")
            assert peer["state"] == "ready" and peer["last_seen_s"] < 5
            assert (await get("/readyz"))[0] == 200
            await ffn.close("as the test asked")
            await asyncio.sleep(0.3)
            assert await get("/readyz") == (503, {"state": "ready", "reason": "F0 on host-ffn is left"})

    serving(checkpoint, work)
