# SPDX-License-Identifier: Apache-2.0
"""With ``on_loss=rejoin`` a group that lost a process forms again: same agents, another epoch, native tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from afd.testing.completions import Answer, Question
from afd.testing.stack import Group, Layout, status
from afd.topology import Role
from tests.system.conftest import layout
from tests.system.rig import READY_S, Client, Traces, decoding, deed, differences, start, until

Proofs = Callable[[str], tuple[list[Question], list[Answer]]]
Groups = Callable[..., Group]

REJOIN = ("--afd-on-loss", "rejoin")
FAST = ("--afd-rejoin-backoff-s", "0.2")


def rejoining(*more: str, runner: str = "v2") -> Layout:
    return layout(runner, afd_args=(*REJOIN, *FAST, *more))


def said(group: Group) -> dict[Role, dict[str, Any]]:
    """The status of each role."""
    return {role: asyncio.run(status(process.agent_url)) for role, process in group.roles.items()}


def again(group: Group, before: dict[Role, dict[str, Any]]) -> dict[Role, dict[str, Any]]:
    """Wait until the group is ready in another epoch than ``before``."""
    old = before[Role.FFN]["epoch"]

    def formed() -> bool:
        now = said(group)
        epochs = {body["epoch"] for body in now.values()}
        return (
            all(body["state"] == "ready" for body in now.values()) and len(epochs) == 1 and old not in epochs
        )

    until(formed, READY_S, "a new epoch")
    return said(group)


@pytest.mark.parametrize("victim", ["rank F0", "API server", "EngineCore", "Worker"])
def test_a_group_that_lost_a_process_forms_again_around_the_same_agents(
    groups: Groups, proofs: Proofs, victim: str
) -> None:
    group = groups(rejoining())
    start(group)
    before = said(group)
    agents = {role: process.process.pid for role, process in group.roles.items()}
    client = Client(group.attention.api_url).start()
    decoding(group.attention)
    traces = Traces.of(group)
    rank, restarted = traces.pids["rank F0"], Role.FFN if victim == "rank F0" else Role.ATTENTION
    deed(traces.pids[victim])
    now = again(group, before)
    client.join(5)
    assert all(isinstance(end, Exception) for end in client.ends.values()), client.ends
    for role, process in group.roles.items():
        assert process.exit_code is None and process.process.pid == agents[role]
        body = now[role]
        print(f"{victim}: {role} ready {body['last_restart_s']:.1f} s after the loss; {body['last_error']}")
        assert body["restarts"] == 1 and 0 < body["last_restart_s"] < READY_S
        assert (
            victim in body["last_error"]
            and f"(process {traces.pids[victim]}) was killed" in body["last_error"]
        )
    assert (Traces.of(group).pids["rank F0"] == rank) is (restarted is Role.ATTENTION)
    assert differences(group.attention.api_url, *proofs("v2")) == []
    gone = {name for name in traces.processes if name.endswith("agent") or name.endswith("launcher")}
    kept = gone | ({"rank F0"} if restarted is Role.ATTENTION else set())
    for name in kept:
        traces.processes.pop(name)
    assert traces.left() == []
    assert group.stop() == {Role.FFN: 0, Role.ATTENTION: 0}
