# SPDX-License-Identifier: Apache-2.0
"""With ``on_loss=rejoin`` a group that lost a process forms again: same agents, another epoch, native tokens."""

from __future__ import annotations

import asyncio
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import aiohttp
import psutil
import pytest

from afd.agent.leftovers import mapped_by, tree
from afd.testing.completions import Answer, Question
from afd.testing.stack import Group, Layout, status
from afd.topology import Role, Topology
from tests.system.conftest import Groups, layout
from tests.system.rig import READY_S, Client, Traces, decoding, deed, differences, ends, start, until

Proofs = Callable[[str], tuple[list[Question], list[Answer]]]

REJOIN = ("--afd-on-loss", "rejoin")
FAST = ("--afd-rejoin-backoff-s", "0.2")


def rejoining(*more: str, runner: str = "v2", **changes: Any) -> Layout:
    return layout(runner, afd_args=(*REJOIN, *FAST, *more), **changes)


def said(group: Group) -> dict[Role, dict[str, Any]]:
    """The status of each role."""
    return {role: asyncio.run(status(process.agent_url)) for role, process in group.roles.items()}


def again(
    group: Group, before: dict[Role, dict[str, Any]], timeout_s: float = READY_S
) -> dict[Role, dict[str, Any]]:
    """Wait until the group is ready in another epoch than ``before``."""
    old = before[Role.FFN]["epoch"]

    def formed() -> bool:
        try:
            now = said(group)
        except aiohttp.ClientError:  # an agent that was started a moment ago
            return False
        epochs = {body["epoch"] for body in now.values()}
        return (
            all(body["state"] == "ready" for body in now.values()) and len(epochs) == 1 and old not in epochs
        )

    until(formed, timeout_s, "a new epoch")
    return said(group)


def died(traces: Traces, *kept: str) -> list[str]:
    """What is left of the epoch that was lost, apart from the agents, the launchers, and what belongs to ``kept``."""
    agents = [name for name in traces.processes if name.endswith(("agent", "launcher"))]
    for name in agents:
        traces.processes.pop(name)
    for name in kept:
        for process in tree(traces.pids[name]):
            traces.shm -= mapped_by(process.pid)
            traces.processes = {name: one for name, one in traces.processes.items() if one != process}
    return traces.left_after(1.0)


def refused_at_once(url: str) -> float:
    """Ask while nobody can answer; the seconds until the error came."""
    began = time.monotonic()
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        urllib.request.urlopen(f"{url}/v1/models", timeout=30).close()
    return time.monotonic() - began


@pytest.mark.parametrize(
    ("victim", "runner"),
    [
        pytest.param("rank F0", "v2", marks=pytest.mark.pairwise),
        ("API server", "v2"),
        ("EngineCore", "v2"),
        pytest.param("Worker", "v2", marks=pytest.mark.pairwise),
        ("Worker", "v1"),
    ],
)
def test_a_group_that_lost_a_process_forms_again_around_the_same_agents(
    groups: Groups, proofs: Proofs, victim: str, runner: str
) -> None:
    group = groups(rejoining(runner=runner))
    start(group)
    before = said(group)
    agents = {role: process.process.pid for role, process in group.roles.items()}
    client = Client(group.attention.api_url).start()
    decoding(group.attention)
    traces = Traces.of(group)
    kept = () if victim == "rank F0" else ("rank F0",)
    deed(traces.pids[victim])
    client.join(5)
    assert all(isinstance(end, Exception) for end in client.ends.values()), client.ends
    now = again(group, before)
    for role, process in group.roles.items():
        assert process.exit_code is None and process.process.pid == agents[role]
        body = now[role]
        print(f"{victim}, {runner}: {role} ready {body['last_restart_s']:.1f} s after the loss")
        assert body["restarts"] == 1 and 0 < body["last_restart_s"] < READY_S
        assert victim in body["last_error"]
        assert f"(process {traces.pids[victim]}) was killed" in body["last_error"]
    assert (Traces.of(group).pids["rank F0"] == traces.pids["rank F0"]) is (kept != ())
    assert differences(group.attention.api_url, *proofs(runner)) == []
    assert died(traces, *kept) == []
    assert group.stop() == {Role.FFN: 0, Role.ATTENTION: 0}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("victim", ["rank F1", "EngineCore_DP1"])
def test_ffn_ranks_form_one_group_that_stays_whole_or_starts_again_whole(
    groups: Groups, proofs: Proofs, victim: str
) -> None:
    group = groups(rejoining(topology=Topology(2, 2)))
    start(group)
    before, traces = said(group), Traces.of(group)
    client = Client(group.attention.api_url).start()
    decoding(group.attention)
    ranks = {name: traces.pids[name] for name in ("rank F0", "rank F1")}
    deed(traces.pids[victim])
    client.join(5)
    now = again(group, before)
    blamed = "F1" if victim == "rank F1" else "A1"
    for role, body in now.items():
        print(f"{victim}: {role} ready {body['last_restart_s']:.1f} s after the loss; {body['last_error']}")
        assert body["last_error"].startswith(f"{blamed}: ")
    after = Traces.of(group).pids
    kept = [name for name, pid in ranks.items() if after[name] == pid]
    assert kept == ([] if victim == "rank F1" else list(ranks))
    assert differences(group.attention.api_url, *proofs("v2")) == []
    assert died(traces, *kept) == []
    assert group.stop() == {Role.FFN: 0, Role.ATTENTION: 0}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("killed", list(Role), ids=str)
def test_a_role_whose_agent_was_killed_is_started_again_from_outside(
    groups: Groups, proofs: Proofs, killed: Role
) -> None:
    """As a pod is. The other role stays, and its hello is an ordinary one."""
    group = groups(rejoining())
    start(group)
    before = said(group)
    other = Role.FFN if killed is Role.ATTENTION else Role.ATTENTION
    traces = Traces.of(group)
    at = deed(group.roles[killed].process.pid)
    until(lambda: asyncio.run(status(group.roles[other].agent_url))["state"] == "rendezvous", 5, "the wait")
    print(f"{killed} agent killed: {other} waits for it {time.monotonic() - at:.2f} s later")
    if killed is Role.FFN:
        assert refused_at_once(group.attention.api_url) < 1
    group.roles[killed].close()
    group.start(killed)
    now = again(group, before)
    assert {role: body["restarts"] for role, body in now.items()} == {killed: 0, other: 1}
    ffn = Traces.of(group).pids["rank F0"]
    assert (ffn == traces.pids["rank F0"]) is (killed is Role.ATTENTION)
    assert differences(group.attention.api_url, *proofs("v2")) == []
    assert died(traces, *(("rank F0",) if killed is Role.ATTENTION else ())) == []
    assert group.stop() == {Role.FFN: 0, Role.ATTENTION: 0}


@pytest.mark.timeout(500)
@pytest.mark.parametrize("killed", list(Role), ids=str)
def test_a_launcher_that_was_killed_is_replaced(groups: Groups, proofs: Proofs, killed: Role) -> None:
    """It takes the processes that were forked from it along. The next one imports vLLM again."""
    group = groups(rejoining(), launcher=None)
    group.start()
    asyncio.run(group.ready(240))
    before, traces = said(group), Traces.of(group)
    deed(traces.pids[f"{killed} launcher"])
    until(lambda: said(group)[Role.FFN]["restarts"] == 1, 10, "the loss")
    now = again(group, before, 240)
    assert "the launcher was killed or crashed" in now[killed]["last_error"]
    pids = Traces.of(group).pids
    other = Role.FFN if killed is Role.ATTENTION else Role.ATTENTION
    assert pids[f"{killed} launcher"] != traces.pids[f"{killed} launcher"]
    assert pids[f"{other} launcher"] == traces.pids[f"{other} launcher"]
    assert (pids["rank F0"] == traces.pids["rank F0"]) is (killed is Role.ATTENTION)
    assert differences(group.attention.api_url, *proofs("v2")) == []
    assert group.stop() == {Role.FFN: 0, Role.ATTENTION: 0}


@pytest.mark.parametrize("victim", ["rank F0", "Worker"])
def test_attempts_that_are_used_up_end_both_roles_with_the_last_cause(groups: Groups, victim: str) -> None:
    group = groups(rejoining("--afd-rejoin-attempts", "1"))
    start(group)
    before = said(group)
    deed(Traces.of(group).pids[victim])
    again(group, before)
    traces = Traces.of(group)
    found = ends(group, deed(traces.pids[victim]))
    own, other = (Role.FFN, Role.ATTENTION) if victim == "rank F0" else (Role.ATTENTION, Role.FFN)
    print(f"{victim}, for the second time: {found}")
    assert found.codes == {own: 71, other: 70}
    assert found.seconds[other] < 2
    for role in group.roles.values():
        assert f"(process {traces.pids[victim]}) was killed by SIGKILL" in role.error()
    assert traces.left() == []


def test_a_rank_that_is_stuck_is_replaced(groups: Groups, proofs: Proofs) -> None:
    group = groups(rejoining("--afd-timeouts-step-s", "2", "--afd-timeouts-grace-s", "1"))
    start(group)
    before = said(group)
    client = Client(group.attention.api_url).start()
    decoding(group.attention)
    traces = Traces.of(group)
    deed(traces.pids["rank F0"], signal.SIGSTOP)
    client.join(10)
    now = again(group, before)
    assert "F0 made no progress for 2 s" in now[Role.ATTENTION]["last_error"]
    assert Traces.of(group).pids["rank F0"] != traces.pids["rank F0"]
    assert died(traces) == []
    assert differences(group.attention.api_url, *proofs("v2")) == []
    assert group.stop() == {Role.FFN: 0, Role.ATTENTION: 0}


@pytest.mark.timeout(300)
def test_what_ffn_holds_does_not_grow_from_epoch_to_epoch(groups: Groups, proofs: Proofs) -> None:
    group = groups(rejoining("--afd-rejoin-attempts", "20"))
    start(group)
    held: list[tuple[int, int, int]] = []
    counted = 0
    for _ in range(5):
        before = said(group)
        client = Client(group.attention.api_url).start()
        decoding(group.attention)
        process = Traces.of(group).processes["rank F0"]
        held.append((process.num_fds(), process.num_threads(), len(mapped_by(process.pid))))
        deed(Traces.of(group).pids["Worker"])
        client.join(5)
        now = again(group, before)
        assert now[Role.FFN]["steps"] > counted
        counted = now[Role.FFN]["steps"]
        assert Traces.of(group).pids["rank F0"] == process.pid
    agent = psutil.Process(group.ffn.process.pid)
    print(f"fds, threads and segments of F0: {held}; its agent has {agent.num_fds()} fds")
    assert len(set(held[1:])) == 1, held
    assert differences(group.attention.api_url, *proofs("v2")) == []
    assert group.stop() == {Role.FFN: 0, Role.ATTENTION: 0}
