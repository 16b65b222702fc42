# SPDX-License-Identifier: Apache-2.0
"""What `afd serve` is told, from the command line and the pod."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from afd.container.entrypoint import plan
from afd.errors import ConfigError
from afd.topology import Role

MODEL = "builtin:tiny-deepseek-v2"
SPREAD = (MODEL, "--data-parallel-size", "2", "--afd-num-attention-ranks", "2")


def told(
    role: Role | None, argv: tuple[str, ...], environment: Mapping[str, str], host: str = "box"
) -> list[str]:
    """The role and what the pod adds to its arguments."""
    asked = plan(role, argv, environment, host).asked
    assert asked.argv[: len(argv)] == argv
    return [str(asked.role), *asked.argv[len(argv) :]]


def test_a_container_alone_gets_what_was_written() -> None:
    assert told(Role.ATTENTION, (MODEL,), {}) == ["attention"]
    assert told(None, (MODEL,), {"AFD_ROLE": "ffn"}) == ["ffn"]


def test_the_second_pod_of_a_stateful_set_is_headless() -> None:
    given = (*SPREAD, "--data-parallel-address", "a-0")
    environment = {"AFD_POD_COUNT": "2"}
    assert told(Role.ATTENTION, given, environment, "a-0") == ["attention", "--data-parallel-size-local", "1"]
    assert told(Role.ATTENTION, given, environment, "a-1") == [
        *("attention", "--data-parallel-size-local", "1", "--data-parallel-start-rank", "1", "--headless")
    ]


def test_a_worker_set_tells_role_rendezvous_and_head() -> None:
    group = {"LWS_GROUP_SIZE": "2", "LWS_LEADER_ADDRESS": "x-0.x.ns"}
    rendezvous = ["--afd-host", "x-0.x.ns"]
    assert told(None, (MODEL,), {**group, "LWS_WORKER_INDEX": "0"}) == ["ffn", *rendezvous]
    assert told(None, (MODEL,), {**group, "LWS_WORKER_INDEX": "1"}) == ["attention", *rendezvous]
    last = told(None, SPREAD, {**group, "LWS_GROUP_SIZE": "3", "LWS_WORKER_INDEX": "2"})
    assert last[-4:] == ["--data-parallel-address", "x-0-1.x.ns", *rendezvous]


@pytest.mark.parametrize("where", [{"AFD_HOST": "mine"}, {}])
def test_a_rendezvous_that_the_user_chose_stays(where: dict[str, str]) -> None:
    argv = (MODEL,) if where else (MODEL, "--afd-host", "mine")
    group = {"LWS_GROUP_SIZE": "2", "LWS_LEADER_ADDRESS": "x-0", "LWS_WORKER_INDEX": "1"}
    planned = plan(None, argv, {**group, **where}, "box")
    assert planned.asked.config.host == "mine"


def test_devices_count_the_ranks_that_run_here() -> None:
    cann = {"ASCEND_TOOLKIT_HOME": "/x", "AFD_POD_COUNT": "2", "AFD_ATTENTION_DEVICES": "3"}
    given = (*SPREAD, "--data-parallel-address", "a-0")
    assert plan(Role.ATTENTION, given, cann, "a-1").share.variables == {"ASCEND_RT_VISIBLE_DEVICES": "3"}
    with pytest.raises(ConfigError, match="1 devices for 2 attention ranks"):
        plan(Role.ATTENTION, SPREAD, {**cann, "AFD_POD_COUNT": ""}, "a-1")
