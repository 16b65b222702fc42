# SPDX-License-Identifier: Apache-2.0
"""Roles that import vLLM themselves, as outside of tests: each agent has a launcher, which dies with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from afd.testing.completions import Answer, Question
from afd.topology import Role
from tests.system.conftest import Groups
from tests.system.rig import Client, Traces, census, decoding, deed, differences, ends

LIMIT_S = 2.0
"""From the kill to the exit of the other role."""
READY_S = 240.0
"""How long two imports of vLLM at once may take on a busy machine."""

Proofs = Callable[[str], tuple[list[Question], list[Answer]]]


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("name", "own", "words"),
    [
        ("attention launcher", Role.ATTENTION, "A0: the launcher was killed or crashed, and the API server"),
        ("ffn agent", Role.FFN, "F0: its agent (pid {pid} on "),
    ],
)
def test_a_killed_launcher_or_agent_takes_its_processes_along_and_ends_the_other_role(
    groups: Groups, proofs: Proofs, name: str, own: Role, words: str
) -> None:
    group = groups(launcher=None)
    group.start()
    asyncio.run(group.ready(READY_S))
    assert differences(group.attention.api_url, *proofs("v2")) == []
    client = Client(group.attention.api_url).start()
    decoding(group.attention)
    traces = Traces.of(group)
    assert {"ffn launcher", "attention launcher"} <= set(traces.pids)
    found = ends(group, deed(traces.pids[name]))
    other = Role.FFN if own is Role.ATTENTION else Role.ATTENTION
    print(f"{name}: {found}; {group.roles[other].error()}")
    agent = name.endswith("agent")
    assert found.codes == {own: -9 if agent else 71, other: 70}
    assert found.seconds[other] < LIMIT_S
    assert words.format(pid=traces.pids[name]) in group.roles[other].error()
    client.join(5)
    assert all(isinstance(end, Exception) for end in client.ends.values())
    assert traces.left_after(1.0 if agent else 0.0) == []


@pytest.mark.timeout(400)
def test_no_role_imports_vllm_a_second_time_to_look_at_its_model(groups: Groups, tmp_path: Path) -> None:
    """With a fresh home vLLM knows nothing of the model's class yet, and would ask a process of its own."""
    group = groups(launcher=None, environment={"VLLM_CACHE_ROOT": str(tmp_path / "cache")})
    with census() as watch:
        group.start()
        asyncio.run(group.ready(READY_S))
    assert [title for title in watch.seen.values() if "vllm.model_executor.models.registry" in title] == []
    assert any("launch" in title for title in watch.seen.values())
    assert group.stop() == {Role.FFN: 0, Role.ATTENTION: 0}
