# SPDX-License-Identifier: Apache-2.0
"""A stopped process of several: requests wait, nothing is computed, and the role ends with the name of the right rank.

Stopped while nothing is announced, so that no rank waits for another yet.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from afd.testing.stack import Group
from afd.topology import Role, Topology
from tests.system.conftest import VLLM_ARGS, layout
from tests.system.rig import Client, Traces, decoding, deed, ends, start, until

STEP_S = 4.0
LAYOUTS = {"DP2": (Topology(2, 1), 1), "TP2": (Topology(2, 1), 2)}


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("name", "victim", "rank"),
    [
        ("DP2", "API server", "A0"),
        ("DP2", "EngineCore_DP1", "A1"),
        ("DP2", "Worker_DP1", "A1"),
        ("TP2", "EngineCore", "A0"),
        ("TP2", "Worker_TP1", "A1"),
    ],
)
def test_requests_for_which_nothing_is_computed_end_a_role_of_several_ranks(
    groups: Callable[..., Group], name: str, victim: str, rank: str
) -> None:
    topology, tp = LAYOUTS[name]
    chosen = layout("v1", topology=topology, tp=tp, afd_args=("--afd-timeouts-step-s", str(STEP_S)))
    group = groups(chosen)
    start(group)
    traces = Traces.of(group)
    at = deed(traces.pids[victim], signal.SIGSTOP)
    client = Client(group.attention.api_url).start()
    found = ends(group, at, timeout_s=40)
    print(f"{name}, {victim} stopped: {found}; {group.attention.error()}")
    assert found.codes == {Role.FFN: 70, Role.ATTENTION: 71}
    assert found.seconds[Role.FFN] < 3 * STEP_S + 3
    assert group.ffn.error() == group.attention.error()
    assert group.attention.error().startswith(rank)
    client.join(5)
    assert traces.left_after(1.0) == []


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("victim", "rank"), [("Worker_DP1", "A1"), ("EngineCore_DP0", "A0")])
def test_a_stopped_process_ends_a_drain_long_before_its_budget(
    groups: Callable[..., Group], victim: str, rank: str
) -> None:
    chosen = layout(
        "v2",
        vllm_args=(*VLLM_ARGS, "--shutdown-timeout", "60"),
        topology=Topology(2, 1),
        afd_args=("--afd-timeouts-step-s", str(STEP_S)),
    )
    group = groups(chosen)
    start(group)
    traces = Traces.of(group)
    client = Client(group.attention.api_url).start()
    decoding(group.attention)
    group.attention.signal(signal.SIGTERM)
    until(lambda: "state: draining" in group.attention.text(), 5, "the drain")
    at = deed(traces.pids[victim], signal.SIGSTOP)
    found = ends(group, at, timeout_s=40)
    print(f"{victim} stopped in a drain: {found}; {group.attention.error()}")
    assert found.codes == {Role.FFN: 70, Role.ATTENTION: 71}
    assert found.seconds[Role.ATTENTION] < 3 * STEP_S + 3
    assert group.ffn.error() == group.attention.error()
    assert group.attention.error().startswith(rank)
    client.join(5)
    assert traces.left_after(1.0) == []
