# SPDX-License-Identifier: Apache-2.0
"""The table of checks: stable ids, and how some of them are chosen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from afd.doctor.check import FAIL, OK, SKIP, WARN, Group
from afd.doctor.subject import Subject
from afd.doctor.table import CHECKS, chosen, examine
from afd.errors import ConfigError
from tests.unit.doctor.roots import Root


def test_ids_and_names_are_unique_and_well_formed() -> None:
    assert len({check.id for check in CHECKS}) == len({check.name for check in CHECKS}) == len(CHECKS)
    for check in CHECKS:
        assert re.fullmatch(r"AFD-(IMG|PKG|OPS|LIB|HOST|NET|DEV)-\d{3}", check.id)
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", check.name)
        assert check.name not in {group.value for group in Group}


def test_every_check_says_what_it_reads_expects_and_advises() -> None:
    for check in CHECKS:
        assert check.about and check.expected and check.fix, check
        assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", one) for one in check.prevents), check


def test_numbers_that_were_given_once_are_not_moved() -> None:
    # Whoever has written an id into a script relies on it. Add to this list, never change a line of it.
    given = {
        "AFD-IMG-001": "manifest",
        "AFD-IMG-007": "build-record",
        "AFD-PKG-010": "conflicts",
        "AFD-OPS-003": "kernels-a2e",
        "AFD-LIB-003": "driver-library",
        "AFD-LIB-010": "entry-points",
        "AFD-HOST-004": "shm",
        "AFD-HOST-014": "device-nodes",
        "AFD-HOST-022": "role-devices",
        "AFD-NET-005": "interfaces",
        "AFD-DEV-006": "triton-kernel",
    }
    assert {check.id: check.name for check in CHECKS if check.id in given} == given


def test_checks_are_chosen_by_id_name_and_group() -> None:
    assert chosen([]) == CHECKS
    assert [check.name for check in chosen(["shm", "afd-img-001"])] == ["manifest", "shm"]
    assert {check.group for check in chosen(["device"])} == {Group.DEVICE}
    assert len(chosen(["offline", "host", "device"])) == len(CHECKS)


def test_a_word_that_is_no_check_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="no check 'drivr'; did you mean 'driver'"):
        chosen(["drivr"])


def test_slow_checks_are_done_in_an_image_and_when_they_are_asked_for(tmp_path: Path) -> None:
    checks = chosen(["import-torch"])
    (result,) = examine(Subject(root=tmp_path, env={}), checks, slow=False)
    assert result.finding.status == SKIP and "--only" in result.finding.found
    image = Root(tmp_path, "cpu")
    image.loads = True
    image.write("/fake/torch.py", "__version__ = '1.2'\n")
    image.env["PYTHONPATH"] = str(image.path("/fake"))
    (result,) = examine(image.subject(), checks, slow=False)
    assert (result.finding.status, result.finding.found) == (OK, "torch 1.2")


def test_every_check_gives_a_result_on_an_empty_tree(tmp_path: Path) -> None:
    for env in ({}, {"SOC_VERSION": "ascend910_9391"}):
        results = list(examine(Subject(root=tmp_path, env=env, loads=False), CHECKS, slow=True))
        assert len(results) == len(CHECKS)
        for result in results:
            assert result.finding.status in (OK, WARN, FAIL, SKIP)
            assert "the check itself broke" not in result.finding.found, result
            assert result.finding.status in (OK, SKIP) or result.finding.remedy
