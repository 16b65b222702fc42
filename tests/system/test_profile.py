# SPDX-License-Identifier: Apache-2.0
"""POST /profile/start and /profile/stop on either agent: traces of both roles, or a refusal with the reason."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from afd.testing.completions import Answer, Question
from afd.topology import Role, Topology
from tests.system.conftest import VLLM_ARGS, Groups, layout
from tests.system.rig import differences, start
from tests.system.test_drain import http

Proofs = Callable[[str], tuple[list[Question], list[Answer]]]


def operators(path: Path) -> set[str]:
    """Names of the operators in a trace."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return {event.get("name", "") for event in json.load(file)["traceEvents"]}


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("topology", "told", "other"),
    [(Topology(1, 1), Role.FFN, Role.ATTENTION), (Topology(2, 2), Role.ATTENTION, Role.FFN)],
    ids=["1A1F", "2A2F"],
)
def test_a_profile_of_the_whole_group_is_started_at_one_agent_and_stopped_at_the_other(
    groups: Groups, proofs: Proofs, tmp_path: Path, topology: Topology, told: Role, other: Role
) -> None:
    traces = tmp_path / "traces"
    settings = {"profiler": "torch", "torch_profiler_dir": str(traces), "torch_profiler_with_stack": False}
    profiler = json.dumps(settings)
    group = groups(layout(topology=topology, vllm_args=(*VLLM_ARGS, "--profiler-config", profiler)))
    start(group)
    code, body = http(f"{group.roles[told].agent_url}/profile/start", timeout_s=90)
    assert code == 200, body
    assert set(body["ranks"]) == {str(rank) for rank in topology.ranks}
    assert differences(group.attention.api_url, *proofs("v2")) == []
    code, body = http(f"{group.roles[other].agent_url}/profile/stop", timeout_s=90)
    assert code == 200, body
    for index in range(topology.num_ffn):
        path = Path(body["ranks"][f"F{index}"])
        assert path.parent == traces and path.name.startswith(f"afd-F{index}.")
        assert any("moe" in name for name in operators(path)), operators(path)
    workers = [path for path in traces.iterdir() if "-rank-" in path.name and path.suffix == ".gz"]
    print(f"{topology}: {sorted(path.name for path in traces.iterdir())}")
    assert len(workers) == topology.num_attention
    for path in workers:
        assert any("attention" in name for name in operators(path)), operators(path)
    # Once more: the second profile is another file.
    assert http(f"{group.roles[told].agent_url}/profile/start", timeout_s=90)[0] == 200
    again = http(f"{group.roles[told].agent_url}/profile/stop", timeout_s=90)[1]["ranks"]["F0"]
    assert Path(again).exists() and again != body["ranks"]["F0"]
    assert group.stop(40) == {Role.FFN: 0, Role.ATTENTION: 0}


@pytest.mark.parametrize("lacking", list(Role), ids=str)
def test_a_profile_is_refused_when_a_role_was_not_started_for_it(
    groups: Groups, tmp_path: Path, lacking: Role
) -> None:
    flags = ("--profiler-config.profiler", "torch", "--profiler-config.torch_profiler_dir", str(tmp_path))
    with_profiler = Role.FFN if lacking is Role.ATTENTION else Role.ATTENTION
    group = groups(arguments={with_profiler: flags})
    start(group)
    for role in group.roles.values():
        code, body = http(f"{role.agent_url}/profile/start", timeout_s=90)
        who = "F0" if lacking is Role.FFN else "A0"
        assert (code, body["error"]) == (409, "not configured")
        assert body["reason"].startswith(f"{who} cannot be profiled: start both roles with --profiler-config")
        assert http(f"{role.agent_url}/readyz", method="GET")[0] == 200
    assert group.stop() == {Role.FFN: 0, Role.ATTENTION: 0}
