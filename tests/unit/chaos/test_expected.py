# SPDX-License-Identifier: Apache-2.0
"""What is right after a fault: a role that names the wrong one has not passed."""

from __future__ import annotations

import re

import pytest

from afd.topology import Role
from tests.chaos.cells import Cell
from tests.chaos.expected import expected

GONE = "is gone: its connection closed without a goodbye"
SILENT = "gave no sign of life for 2.0 s"


def right(name: str, role: Role, cause: str) -> bool:
    return re.search(expected(Cell.parse(name)).words[role].format(pid=7), cause) is not None


@pytest.mark.parametrize("first", ["F0", "A0"])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cut.network.decode.1a1f.exit", f"its agent (pid 8 on h) {SILENT}"),
        ("cut.network.idle.2a2f.exit", f"the agent of {{0}}0, {{0}}1 (pid 8 on h) {SILENT}"),
        ("close.attention-agent.idle.1a1f.exit", f"its agent (pid 8 on h) {GONE}"),
        ("close.ffn-agent.load.2a2f.rejoin", f"the agent of {{0}}0, {{0}}1 (pid 8 on h) {GONE}"),
    ],
)
def test_when_roles_lose_each_other_none_may_name_its_own_agent(name: str, words: str, first: str) -> None:
    cause = f"{first}: {words.format(first[0])}"
    assert right(name, Role.ATTENTION, cause) is (first == "F0")
    assert right(name, Role.FFN, cause) is (first == "A0")


@pytest.mark.parametrize(
    ("target", "cause", "match"),
    [
        ("a0", "A0 closed its step connection to F1 without a goodbye", True),
        ("f1", "A0 closed its step connection to F1 without a goodbye", True),
        ("f1", "F1 closed its step connection to A0 without a goodbye", True),
        ("f1", "F1 closed the connection while this side was sending ([Errno 32] Broken pipe)", True),
        ("f0", "A0 closed its step connection to F1 without a goodbye", False),
        ("a1", "A0 closed its step connection to F1 without a goodbye", False),
        ("f0", "F1 did not bring its rows of layer 0, ubatch 0 of step 3 to F0 within 4.5 s", False),
        ("a0", "A1: VLLM::Worker_DP1 (process 7) was killed by SIGKILL while A0 waited", False),
        ("a0", "A1 closed its step connection to F0 without a goodbye; A0 did not", False),
    ],
)
def test_a_closed_connection_of_a_rank_is_named_by_its_ends(target: str, cause: str, match: bool) -> None:
    for role in Role:
        assert right(f"close.{target}.decode.2a2f.exit", role, cause) is match


def test_a_rank_that_was_in_time_is_not_to_blame_for_a_load() -> None:
    late = "A0, A1 did not offer 'ready' within 28 s; F0, F1 did"
    assert right("stop.enginecore.load.2a2f.exit", Role.FFN, late)
    assert not right("stop.f0.load.2a2f.exit", Role.FFN, late)
