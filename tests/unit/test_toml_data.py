# SPDX-License-Identifier: Apache-2.0
"""The TOML files of the package, read by one reader on every Python."""

from __future__ import annotations

from pathlib import Path

import pytest

from afd import toml_data
from afd.errors import ConfigError


def test_a_file_of_a_package_is_read_whatever_the_working_directory_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert toml_data.load("afd", "pins.toml")["vllm"].keys() == {"version", "commit"}
    assert "--model" in toml_data.load("afd.agent", "vllm_policy.toml")["refused"]


def test_a_text_that_is_not_toml_is_an_error_with_the_file_and_the_place() -> None:
    with pytest.raises(ConfigError, match=r"^some\.toml is not valid TOML: .*line 2"):
        toml_data.parse("a = 1\nb = \n", "some.toml")
