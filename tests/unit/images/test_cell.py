# SPDX-License-Identifier: Apache-2.0
"""afd/images/cell.py: which images there are, how they are asked for, and what they are called."""

from __future__ import annotations

import platform

import pytest

from afd import pins
from afd.errors import ConfigError
from afd.images import cell as matrix

IMAGES = pins.load().images


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        (("a2", "", "arm64"), "a2-ubuntu22.04-arm64"),
        (("910b", "", "aarch64"), "a2-ubuntu22.04-arm64"),
        (("910c", "openeuler24.03", "arm64"), "a3-openeuler24.03-arm64"),
        (("950", "ubuntu22.04", "x86_64"), "a5-ubuntu22.04-amd64"),
        (("A3", "openEuler24.03", "amd64"), "a3-openeuler24.03-amd64"),
        (("cpu", "", "amd64"), "cpu-debian12-amd64"),
    ],
)
def test_a_cell_is_found_by_its_names_and_aliases(asked: tuple[str, str, str], name: str) -> None:
    assert matrix.choose(IMAGES, *asked).name == name


def test_without_a_word_the_architecture_is_that_of_this_machine() -> None:
    assert matrix.choose(IMAGES, "cpu").machine == platform.machine()


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (("", "", ""), "make image SOC=cpu|a2|a3|a5"),
        (("910", "", ""), "910b means a2, 910c means a3"),
        (("ascend910b1", "", ""), "a name for chips, not for an image; there is cpu, a2, a3, a5"),
        (("310p", "", ""), "a name for chips"),
        (("gpu", "", ""), "'gpu' is no SOC; there is cpu, a2, a3, a5"),
        (("a3", "debian12", ""), "for SOC=a3 there is ubuntu22.04, openeuler24.03"),
        (("a3", "", "riscv64"), "there is arm64 (aarch64) and amd64 (x86_64)"),
    ],
)
def test_what_does_not_exist_is_refused_with_what_does(asked: tuple[str, str, str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        matrix.choose(IMAGES, *asked)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_tag_is_version_soc_os_and_architecture() -> None:
    cell = matrix.choose(IMAGES, "a3", "openeuler24.03", "arm64")
    assert matrix.tag("1.2.3", cell) == "afd:1.2.3-a3-openeuler24.03-arm64"
    assert matrix.tag("1.2.3", cell, "registry.example/team/") == (
        "registry.example/team/afd:1.2.3-a3-openeuler24.03-arm64"
    )


def test_every_cell_has_another_name() -> None:
    names = [cell.name for cell in matrix.cells(IMAGES)]
    assert len(names) == len(set(names)) == 14


def test_the_cam_files_fit_one_cell_only() -> None:
    assert [c.name for c in matrix.cells(IMAGES) if matrix.cam_fits(IMAGES, c)] == ["a3-openeuler24.03-arm64"]
