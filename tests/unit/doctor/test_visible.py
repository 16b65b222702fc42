# SPDX-License-Identifier: Apache-2.0
"""Lists of devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from afd.doctor import visible
from afd.doctor.check import FAIL, OK, WARN
from tests.unit.doctor.roots import Root


@pytest.mark.parametrize(
    ("env", "status"),
    [
        ({}, OK),
        ({"ASCEND_RT_VISIBLE_DEVICES": "1"}, OK),
        ({"ASCEND_RT_VISIBLE_DEVICES": "0,0"}, FAIL),
        ({"ASCEND_VISIBLE_DEVICES": "void"}, OK),
        ({"ASCEND_VISIBLE_DEVICES": "Ascend910-0,Ascend910-1"}, OK),
        ({"ASCEND_VISIBLE_DEVICES": "4,5", "ASCEND_DOCKER_RUNTIME": "True"}, OK),
        ({"ASCEND_VISIBLE_DEVICES": "4", "ASCEND_DOCKER_RUNTIME": "True"}, FAIL),
        ({"ASCEND_VISIBLE_DEVICES": "5-4", "ASCEND_DOCKER_RUNTIME": "True"}, FAIL),
    ],
)
def test_the_variables_of_both_layers_are_told_apart(
    tmp_path: Path, env: dict[str, str], status: str
) -> None:
    root = Root(tmp_path, "a3")
    root.env |= env
    found = visible.visible_devices.run(root.subject())
    assert found.status == status, found


@pytest.mark.parametrize(
    ("attention", "ffn", "status"),
    [
        ("0", "1", OK),
        ("0-1", "2-3", OK),
        ("0-2", "2-3", FAIL),
        ("0", "", WARN),
        ("", "1-3", WARN),
        ("x", "1", FAIL),
        ("x", "", FAIL),
        ("", "2-1", FAIL),
        ("9", "", FAIL),
        ("", "", OK),
    ],
)
def test_roles_share_no_core(tmp_path: Path, attention: str, ffn: str, status: str) -> None:
    root = Root(tmp_path, "cpu")
    root.env |= {"AFD_ATTENTION_DEVICES": attention, "AFD_FFN_DEVICES": ffn}
    assert visible.role_devices.run(root.subject()).status == status


@pytest.mark.parametrize(("soc", "status"), [("a3", FAIL), ("cpu", OK)])
def test_a_list_of_devices_that_cannot_be_read_is_named(tmp_path: Path, soc: str, status: str) -> None:
    root = Root(tmp_path, soc)
    root.env |= {
        "ASCEND_RT_VISIBLE_DEVICES": "0,x",
        "AFD_ATTENTION_DEVICES": "0",
        "AFD_FFN_DEVICES": "1",
    }
    found = visible.role_devices.run(root.subject())
    assert found.status == status
    assert status == OK or "ASCEND_RT_VISIBLE_DEVICES: 'x' in '0,x'" in found.found


@pytest.mark.parametrize(
    ("cpuset", "status", "told"),
    [
        ("\n", OK, ""),  # a cgroup that has no set of its own
        ("0-1\n", FAIL, "there is no 3, only 0,1"),
        ("nonsense\n", FAIL, "/sys/fs/cgroup/cpuset.cpus.effective: 'nonsense'"),
    ],
)
def test_cores_are_those_of_the_control_group_or_else_of_the_machine(
    tmp_path: Path, cpuset: str, status: str, told: str
) -> None:
    root = Root(tmp_path, "cpu")
    root.write("/sys/fs/cgroup/cpuset.cpus.effective", cpuset)
    root.env |= {"AFD_ATTENTION_DEVICES": "0", "AFD_FFN_DEVICES": "3"}
    found = visible.role_devices.run(root.subject())
    assert found.status == status and told in found.found, found


def test_one_card_cannot_be_dealt_out(tmp_path: Path) -> None:
    root = Root(tmp_path, "a2")
    root.remove("/dev/davinci1")
    root.env |= {"AFD_ATTENTION_DEVICES": "0", "AFD_FFN_DEVICES": "1"}
    found = visible.role_devices.run(root.subject())
    assert found.status == FAIL and "two devices" in found.remedy
