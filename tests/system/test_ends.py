# SPDX-License-Identifier: Apache-2.0
"""A group that ends in other ways than by a kill in decode: while it loads, while it is idle, when it is told to."""

from __future__ import annotations

import signal
import time
from dataclasses import replace

import pytest

from afd.testing.stack import Group
from afd.topology import Role
from tests.system.conftest import VLLM_ARGS, Groups, layout
from tests.system.rig import (
    PLAIN,
    STREAMED,
    Client,
    Ends,
    Traces,
    decoding,
    deed,
    ends,
    start,
    tree,
    until,
)

LIMIT_S = 2.0
"""From the kill to the exit of the other role."""


SIGNALS = pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: signal.Signals(number).name
)
ROLES = pytest.mark.parametrize("told", list(Role), ids=str)


def _kill(group: Group, name: str) -> None:
    """Kill a process of a group and check who says what, how fast, and what is left."""
    own, other = (
        (Role.FFN, Role.ATTENTION) if name in ("rank F0", "ffn agent") else (Role.ATTENTION, Role.FFN)
    )
    traces = Traces.of(group)
    killed = deed(traces.pids[name])
    found = ends(group, killed)
    words = group.roles[other].error()
    print(f"{name}: {found}; {words}")
    agent = name.endswith("agent")
    assert found.codes == {own: -9 if agent else 71, other: 70}
    assert found.seconds[other] < LIMIT_S
    assert f"{'pid' if agent else 'process'} {traces.pids[name]}" in words
    assert agent or group.roles[own].error() == words
    assert traces.left_after(1.0 if agent else 0.0) == []


@pytest.mark.parametrize(
    "name", ["rank F0", "API server", "EngineCore", "Worker", "ffn agent", "attention agent"]
)
def test_a_process_killed_while_it_loads_ends_both_roles_with_its_name(groups: Groups, name: str) -> None:
    group = groups()
    group.start()
    until(lambda: name in tree(group) and "rank F0" in tree(group), 30, f"the start of {name}")
    time.sleep(0.5)  # its agent has seen it by then
    _kill(group, name)


@pytest.mark.parametrize("name", ["rank F0", "Worker", "ffn agent"])
def test_a_process_killed_while_idle_ends_both_roles_with_its_name(groups: Groups, name: str) -> None:
    group = groups()
    start(group)
    _kill(group, name)


def _stop(group: Group, number: int, *told: Role) -> Ends:
    """Signal these roles; both must end with 0, without an error, and leave nothing."""
    traces = Traces.of(group)
    for role in told:
        signalled = deed(group.roles[role].process.pid, number)
    found = ends(group, signalled)
    print(f"{signal.Signals(number).name} to {', '.join(map(str, told))}: {found}")
    assert found.codes == {Role.FFN: 0, Role.ATTENTION: 0}
    assert [role.error() for role in group.roles.values()] == ["", ""]
    assert traces.left() == []
    return found


@SIGNALS
@ROLES
def test_a_signal_to_either_role_lets_short_requests_finish_and_ends_both_with_0(
    groups: Groups, told: Role, number: signal.Signals
) -> None:
    group = groups()
    start(group)
    questions = [replace(STREAMED, max_tokens=60), replace(PLAIN, max_tokens=60)]
    client = Client(group.attention.api_url, questions).start()
    decoding(group.attention, 4)
    found = _stop(group, number, told)
    assert [len(answer.tokens) for answer in client.answers(1)] == [60, 60]
    assert max(found.seconds.values()) < 6


@ROLES
def test_requests_too_long_for_the_drain_are_cut_off_and_both_roles_say_so(
    groups: Groups, told: Role
) -> None:
    group = groups(layout(vllm_args=(*VLLM_ARGS, "--shutdown-timeout", "1")))
    start(group)
    client = Client(group.attention.api_url).start()
    decoding(group.attention)
    traces = Traces.of(group)
    found = ends(group, deed(group.roles[told].process.pid, signal.SIGTERM))
    client.join(1)
    print(f"SIGTERM to {told}: {found}; {group.attention.error()}; {list(client.ends.values())}")
    assert found.codes == {Role.FFN: 70, Role.ATTENTION: 71}
    # vLLM's own drain, the errors of the requests, and the end itself
    assert max(found.seconds.values()) < 1 + 4
    for role in group.roles.values():
        assert "in flight" in role.error()
    assert all(isinstance(end, Exception) for end in client.ends.values())
    assert traces.left() == []


@pytest.mark.parametrize("apart_s", [pytest.param(0.0, marks=pytest.mark.pairwise), 0.05, 0.3])
def test_signals_to_both_roles_are_a_first_signal_to_each_and_end_both_with_0(
    groups: Groups, apart_s: float
) -> None:
    """Whoever hears that the other one drains before its own signal comes must not take that for a second one."""
    group = groups()
    start(group)
    client = Client(group.attention.api_url, (replace(STREAMED, max_tokens=100),)).start()
    decoding(group.attention)
    group.ffn.signal(signal.SIGTERM)
    time.sleep(apart_s)
    group.attention.signal(signal.SIGTERM)
    assert [process.wait(30) for process in group.roles.values()] == [0, 0]
    assert len(client.answers(5)[0].tokens) == 100
    assert not any("ending at once" in process.text() for process in group.roles.values())


@pytest.mark.parametrize("name", ["rank F0", "API server", "EngineCore", "Worker"])
def test_a_process_killed_while_requests_are_finished_ends_both_roles_with_its_name(
    groups: Groups, name: str
) -> None:
    group = groups()
    start(group)
    client = Client(group.attention.api_url).start()
    decoding(group.attention)
    group.ffn.signal(signal.SIGTERM)
    until(lambda: "a peer is stopping" in group.attention.text(), 5, "the stop")
    time.sleep(0.3)
    _kill(group, name)
    client.join(5)
    assert all(isinstance(end, Exception) for end in client.ends.values())


@ROLES
def test_a_signal_while_the_group_loads_ends_both_with_0(groups: Groups, told: Role) -> None:
    group = groups()
    group.start()
    until(lambda: "Worker" in tree(group), 30, "the start of the worker")
    found = _stop(group, signal.SIGTERM, told)
    assert max(found.seconds.values()) < LIMIT_S


@ROLES
def test_a_second_signal_ends_a_role_at_once(groups: Groups, told: Role) -> None:
    group = groups()
    start(group)
    client = Client(group.attention.api_url).start()
    decoding(group.attention)
    traces = Traces.of(group)
    deed(group.roles[told].process.pid, signal.SIGINT)
    time.sleep(0.3)
    again = deed(group.roles[told].process.pid, signal.SIGINT)
    found = ends(group, again)
    print(f"twice SIGINT to {told}: {found}")
    assert found.codes[told] == 71
    assert "a second signal ended the role before it was drained" in group.roles[told].error()
    assert max(found.seconds.values()) < LIMIT_S
    client.join(1)
    assert traces.left() == []
