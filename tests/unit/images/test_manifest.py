# SPDX-License-Identifier: Apache-2.0
"""afd/images/manifest.py: the file is strict, complete and the same bytes every time."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from afd.errors import ConfigError
from afd.images import manifest
from tests.unit.manifest_examples import EXAMPLE


def test_a_manifest_comes_back_from_its_file_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "etc/afd/image.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(manifest.encode(EXAMPLE))
    assert manifest.read(tmp_path) == EXAMPLE
    assert manifest.encode(EXAMPLE) == path.read_bytes()


def test_outside_an_image_there_is_no_manifest(tmp_path: Path) -> None:
    assert manifest.read(tmp_path) is None


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("schema", 2, "$.schema"),
        ("soc", "910", "$.soc"),
        ("arch", "aarch64", "$.arch"),
        ("vllm_ascend", "80d8", "$.vllm_ascend"),
        ("lock_sha256", "", "$.lock_sha256"),
        ("driver_min", "new enough", "$.driver_min"),
        ("transports", [], "$.transports"),
        ("mounts", ["relative"], "$.mounts[0]"),
        ("created", "yesterday", "$.created"),
        ("extra", 1, "extra"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(key: str, value: object, says: str) -> None:
    document = {**msgspec.to_builtins(EXAMPLE), key: value}
    with pytest.raises(ConfigError) as caught:
        manifest.decode(json.dumps(document).encode(), "the file")
    assert says in str(caught.value)
    assert str(caught.value).startswith("the file: ")


def test_a_missing_value_is_refused() -> None:
    document = msgspec.to_builtins(EXAMPLE)
    del document["operators"]
    with pytest.raises(ConfigError, match="operators"):
        manifest.decode(json.dumps(document).encode())


def test_what_cannot_be_read_back_is_not_written() -> None:
    with pytest.raises(ConfigError, match="driver_min"):
        manifest.encode(msgspec.structs.replace(EXAMPLE, driver_min="soon"))
