# SPDX-License-Identifier: Apache-2.0
"""Before a group is ready, every rank has met every other one: in a dummy step, and in one request per replica."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from afd.testing.stack import Group, metrics
from afd.topology import Role, Topology
from tests.system.conftest import VLLM_ARGS, layout
from tests.system.rig import start

LAYOUTS = {"2A1F": (Topology(2, 1), 1, "v2"), "TP2+1F": (Topology(2, 1), 2, "v1")}


def answered(url: str) -> dict[str, float]:
    """Requests that each engine of vLLM has finished."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=5) as response:
        text = response.read().decode()
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "vllm:request_success_total":
                engine = sample.labels["engine"]
                found[engine] = found.get(engine, 0.0) + sample.value
    return found


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_ready_group_has_announced_a_warm_up_step_and_answered_a_request_on_each_replica(
    groups: Callable[..., Group], name: str
) -> None:
    topology, tp, runner = LAYOUTS[name]
    # Replicas go on together for up to 32 steps after their last request, and end only then.
    chosen = layout(runner, topology=topology, tp=tp, vllm_args=(*VLLM_ARGS, "--shutdown-timeout", "20"))
    group = groups(chosen)
    start(group)
    attention, ffn = (
        asyncio.run(metrics(group.roles[role].agent_url)) for role in (Role.ATTENTION, Role.FFN)
    )
    step = "afd_steps_total{phase=warmup}"
    print(f"{name}: warm-up steps {attention[step]:g} on Attention, {ffn[step]:g} on FFN")
    assert attention[step] == topology.num_attention  # each rank counts it
    assert ffn[step] == 1
    assert answered(group.attention.api_url) == {str(n): 1.0 for n in range(topology.num_attention // tp)}
    assert group.stop(40) == {Role.FFN: 0, Role.ATTENTION: 0}
