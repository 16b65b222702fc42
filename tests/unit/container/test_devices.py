# SPDX-License-Identifier: Apache-2.0
"""Who gets which devices, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from afd.container import devices
from afd.container.devices import Share, deal
from afd.errors import ConfigError
from afd.topology import Role

A, F = Role.ATTENTION, Role.FFN
BOTH = (A, F)
ONE_EACH = {A: 1, F: 1}
CANN = {"ASCEND_TOOLKIT_HOME": "/usr/local/Ascend/cann"}
FOUR = range(4)


def lists(attention: str, ffn: str) -> dict[str, str]:
    return {"AFD_ATTENTION_DEVICES": attention, "AFD_FFN_DEVICES": ffn}


def test_without_lists_agents_deal_out_cores_themselves(tmp_path: Path) -> None:
    assert deal(BOTH, ONE_EACH, {}, FOUR, tmp_path) == {A: Share(), F: Share()}


def test_each_role_is_kept_to_its_cores_and_its_ranks_share_them(tmp_path: Path) -> None:
    found = deal(BOTH, {A: 2, F: 1}, lists("0-1, 3", "2"), FOUR, tmp_path)
    assert found[A].affinity == (0, 1, 3) and found[F].affinity == (2,)
    assert found[A].variables == {"VLLM_CPU_OMP_THREADS_BIND": "0|1", "OMP_NUM_THREADS": "1"}
    assert found[F].variables == {"VLLM_CPU_OMP_THREADS_BIND": "2", "OMP_NUM_THREADS": "1"}


def test_a_number_of_threads_that_the_user_chose_stays(tmp_path: Path) -> None:
    found = deal([F], ONE_EACH, {"AFD_FFN_DEVICES": "0-3", "OMP_NUM_THREADS": "2"}, FOUR, tmp_path)
    assert "OMP_NUM_THREADS" not in found[F].variables


def test_on_ascend_lists_become_visible_devices(tmp_path: Path) -> None:
    environment = {**CANN, **lists("4,5", "6")}
    found = deal(BOTH, {A: 2, F: 1}, environment, (), tmp_path)
    assert [found[role].variables[devices.VISIBLE] for role in BOTH] == ["4,5", "6"]
    assert found[A].affinity == ()


def test_on_ascend_attention_gets_the_first_devices_without_lists() -> None:
    ranks = {A: 2, F: 1}
    assert deal(BOTH, ranks, CANN)[F].variables == {devices.VISIBLE: "2"}
    assert deal(BOTH, ranks, {**CANN, devices.VISIBLE: "8-10"})[A].variables == {devices.VISIBLE: "8,9"}
    assert (
        deal([A], ranks, {**CANN, devices.VISIBLE: "8-10"})[A] == Share()
    )  # one role: what is visible is its own


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        (lists("0", ""), "AFD_ATTENTION_DEVICES is set and AFD_FFN_DEVICES is not"),
        (lists("0-2", "2-3"), "2 in AFD_ATTENTION_DEVICES and in AFD_FFN_DEVICES"),
        (lists("a", "1"), "AFD_ATTENTION_DEVICES: 'a' in 'a' is no number"),
        (lists("3-1", "0"), "'3-1'"),
        (lists("1,1", "0"), "1 twice"),
        (lists(",", "0"), "names no device"),
        (lists("0", "9"), "core 9 is not one of this container's, which are 0,1,2,3"),
        ({**lists("0", "1"), "VLLM_CPU_OMP_THREADS_BIND": "0"}, "both choose cores"),
        ({**CANN, **lists("0,1", "2")}, "2 devices for 1 attention ranks"),
        (
            {**CANN, **lists("0", "7"), devices.VISIBLE: "0,1"},
            "7, but ASCEND_RT_VISIBLE_DEVICES is 0,1",
        ),
        ({**CANN, devices.VISIBLE: "0"}, "1 devices .0. for 2 ranks"),
    ],
)
def test_lists_that_are_wrong_or_do_not_fit_are_refused(
    environment: dict[str, str], says: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=says):
        deal(BOTH, ONE_EACH, environment, FOUR, tmp_path)
