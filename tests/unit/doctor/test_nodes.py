# SPDX-License-Identifier: Apache-2.0
"""What a container gets from the host of its NPUs; most of it is in test_public_reports.py."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from afd.doctor import nodes
from afd.doctor.check import FAIL, OK, SKIP
from tests.unit.doctor.roots import DRIVER, Root


def test_versions_of_drivers_are_ordered_as_they_came_out() -> None:
    order = [
        "23.0.7",
        "24.1.rc1",
        "24.1.rc3",
        "24.1.0",
        "24.1.0.1",
        "24.1.1",
        "25.0.rc1.1",
        "25.0.0",
        "25.10.0",
    ]
    for older, newer in pairwise(order):
        assert nodes.version_key(older) < nodes.version_key(newer)


def test_a_driver_is_not_called_ok_when_nobody_knows_which_is_old(tmp_path: Path) -> None:
    root = Root(tmp_path, "a2")
    root.manifest(driver_min="unverified")
    found = nodes.driver.run(root.subject())
    assert found.status == SKIP and "25.2.3" in found.found


def test_a_version_file_without_a_version_fails(tmp_path: Path) -> None:
    root = Root(tmp_path, "a2")
    root.write(f"{DRIVER}/version.info", "nothing\n")
    assert nodes.driver.run(root.subject()).status == FAIL


@pytest.mark.parametrize(("soc", "version"), [("a2", "1.0"), ("a3", "1.2"), ("a5", "2.0")])
def test_a_rank_table_must_have_the_version_of_the_hardware(tmp_path: Path, soc: str, version: str) -> None:
    root = Root(tmp_path, soc)
    for found in ("1.0", "1.2", "2.0"):
        root.write("/etc/hccl_rootinfo.json", f'{{"version": "{found}"}}')
        assert nodes.ranktable.run(root.subject()).status == (OK if found == version else FAIL)
    root.write("/etc/hccl_rootinfo.json", "[]")
    assert nodes.ranktable.run(root.subject()).status == FAIL


def test_a_rank_table_that_is_named_must_be_there(tmp_path: Path) -> None:
    root = Root(tmp_path, "a2")
    root.env["RANK_TABLE_FILE"] = "/ranks.json"
    assert nodes.ranktable.run(root.subject()).status == FAIL
    root.write("/ranks.json", '{"version": "1.0"}')
    assert nodes.ranktable.run(root.subject()).status == OK


def test_one_card_needs_no_addresses(tmp_path: Path) -> None:
    root = Root(tmp_path, "a2")
    root.remove("/dev/davinci1")
    root.remove("/etc/hccn.conf")
    assert nodes.hccn.run(root.subject()).status == SKIP


def test_without_an_image_the_nodes_are_those_of_the_soc(tmp_path: Path) -> None:
    root = Root(tmp_path, "a5")
    root.remove("/etc/afd/image.json")
    assert nodes.device_nodes.run(root.subject()).status == OK
    root.env["SOC_VERSION"] = "ascend910b1"
    found = nodes.device_nodes.run(root.subject())
    assert found.status == FAIL and "--device /dev/devmm_svm" in found.remedy
