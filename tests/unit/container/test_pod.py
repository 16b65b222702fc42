# SPDX-License-Identifier: Apache-2.0
"""Role and replicas from the pod: explicit words win where they say the same or nothing, and are refused where not."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from afd.agent import vllm_arguments
from afd.container import pod
from afd.container.pod import Pod
from afd.errors import ConfigError
from afd.topology import Role, Topology, WorldOrder

A, F = Role.ATTENTION, Role.FFN
LWS = {"LWS_GROUP_SIZE": "3", "LWS_LEADER_ADDRESS": "afd-0.afd.ns"}
LEADER = "afd-0.afd.ns"


def find(
    role: Role | None, environment: Mapping[str, str], hostname: str = "box", order: WorldOrder | None = None
) -> Pod:
    return pod.find(role, environment, hostname, Topology(2, 1, order or WorldOrder.FFN_FIRST))


@pytest.mark.parametrize(
    ("role", "environment", "hostname", "expected"),
    [
        (A, {}, "node-7", Pod(A)),
        (None, {"AFD_ROLE": "ffn"}, "box", Pod(F)),
        (F, {"AFD_ROLE": "ffn"}, "box", Pod(F)),
        (A, {"AFD_POD_COUNT": "4"}, "attention-3", Pod(A, 3, 4)),
        (A, {"AFD_POD_COUNT": "4", "AFD_POD_INDEX": "1"}, "attention-3", Pod(A, 1, 4)),
        (None, {"AFD_ROLE": "attention", "AFD_POD_COUNT": "2"}, "a-0", Pod(A, 0, 2)),
        (F, {"AFD_POD_COUNT": "1"}, "box", Pod(F, 0, 1)),
    ],
)
def test_a_pod_of_a_stateful_set_is_known_by_its_ordinal(
    role: Role | None, environment: dict[str, str], hostname: str, expected: Pod
) -> None:
    assert find(role, environment, hostname) == expected


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        ("0", Pod(F, 0, 1, LEADER, "afd-0-1.afd.ns")),
        ("1", Pod(A, 0, 2, LEADER, "afd-0-1.afd.ns")),
        ("2", Pod(A, 1, 2, LEADER, "afd-0-1.afd.ns")),
    ],
)
def test_the_leader_of_a_worker_set_has_ffn_and_the_others_attention(index: str, expected: Pod) -> None:
    assert find(None, {**LWS, "LWS_WORKER_INDEX": index}) == expected
    assert find(expected.role, {**LWS, "LWS_WORKER_INDEX": index}) == expected


def test_where_attention_is_world_rank_0_the_leader_has_it() -> None:
    found = [
        find(None, {**LWS, "LWS_WORKER_INDEX": str(index)}, order=WorldOrder.ATTENTION_FIRST)
        for index in range(3)
    ]
    assert [(one.role, one.index, one.count) for one in found] == [(A, 0, 2), (A, 1, 2), (F, 0, 1)]
    assert {one.head for one in found} == {one.rendezvous for one in found} == {LEADER}


@pytest.mark.parametrize(
    ("role", "environment", "hostname", "says"),
    [
        (None, {}, "box", "no role"),
        (None, {"AFD_ROLE": "atention"}, "box", "'atention' is neither"),
        (A, {"AFD_ROLE": "ffn"}, "box", "AFD_ROLE: ffn, but the command is attention"),
        (A, {"AFD_POD_INDEX": "1"}, "box", "means nothing without AFD_POD_COUNT"),
        (A, {"AFD_POD_COUNT": "2"}, "box", "ends with no ordinal"),
        (A, {"AFD_POD_COUNT": "two"}, "a-0", "AFD_POD_COUNT"),
        (A, {"AFD_POD_COUNT": "0"}, "a-0", "AFD_POD_COUNT"),
        (A, {"AFD_POD_COUNT": "2"}, "a-2", "no pod 2 among 2"),
        (A, {"AFD_POD_COUNT": "2", "AFD_POD_INDEX": "-1"}, "a-0", "AFD_POD_INDEX"),
        (F, {"AFD_POD_COUNT": "2"}, "f-0", "one agent has all FFN ranks"),
        (None, {"AFD_POD_COUNT": "2"}, "a-0", "of which role"),
        (A, {**LWS, "LWS_WORKER_INDEX": "0"}, "box", "has ffn: one FFN pod, first"),
        (F, {**LWS, "LWS_WORKER_INDEX": "1"}, "box", "has attention"),
        (None, {**LWS, "LWS_WORKER_INDEX": "3"}, "box", "3, but the group has 3 pods"),
        (None, {"LWS_WORKER_INDEX": "0", "LWS_GROUP_SIZE": "2"}, "box", "LWS_LEADER_ADDRESS: not set"),
        (None, {"LWS_WORKER_INDEX": "0", "LWS_LEADER_ADDRESS": "a"}, "box", "LWS_GROUP_SIZE"),
        (None, {**LWS, "LWS_WORKER_INDEX": "0", "LWS_GROUP_SIZE": "1"}, "box", "LWS_GROUP_SIZE"),
    ],
)
def test_a_pod_that_contradicts_itself_is_refused(
    role: Role | None, environment: dict[str, str], hostname: str, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        find(role, environment, hostname)


def arguments(index: int, *given: str, count: int = 2, head: str = "head") -> list[str]:
    return pod.arguments_of(Pod(A, index, count, "", head), vllm_arguments.parse(given))


def test_replicas_are_dealt_out_evenly_and_only_the_first_pod_has_the_api_server() -> None:
    size = ("--data-parallel-size", "4")
    shared = ["--data-parallel-size-local", "2"]
    headless = ["--data-parallel-start-rank", "2", "--headless"]
    assert arguments(0, *size) == [*shared, "--data-parallel-address", "head"]
    assert arguments(1, *size) == [*shared, *headless, "--data-parallel-address", "head"]
    assert arguments(1, *size, *shared, *headless, "-dpa", "x") == []
    assert pod.arguments_of(Pod(F), vllm_arguments.parse(())) == []


@pytest.mark.parametrize(
    ("index", "given", "says"),
    [
        (0, ("--data-parallel-size", "3"), "multiple of 2"),
        (0, (), "multiple of 2"),
        (0, ("--data-parallel-size", "4", "--headless"), "needs no --headless"),
        (
            1,
            ("--data-parallel-size", "4", "--data-parallel-size-local", "1"),
            "needs --data-parallel-size-local 2",
        ),
        (
            1,
            ("--data-parallel-size", "4", "--data-parallel-start-rank", "1"),
            "needs --data-parallel-start-rank 2",
        ),
    ],
)
def test_arguments_that_say_something_else_than_the_pod_are_refused(
    index: int, given: tuple[str, ...], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        arguments(index, *given)


def test_several_pods_of_a_stateful_set_must_be_told_where_the_first_one_is() -> None:
    with pytest.raises(ConfigError, match="--data-parallel-address must name the pod with index 0"):
        arguments(1, "--data-parallel-size", "2", head="")
