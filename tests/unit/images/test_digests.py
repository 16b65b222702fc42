# SPDX-License-Identifier: Apache-2.0
"""afd/images/digests.py: the file of digests is complete or refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from afd.errors import ConfigError
from afd.images import digests

DIGEST = f"sha256:{'a' * 64}"


def written(checkout: Path, text: str) -> Path:
    path = checkout / digests.FILE
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return checkout


def test_a_tag_without_a_digest_is_built_from_the_tag(tmp_path: Path) -> None:
    known = digests.read(
        written(tmp_path, digests.text({"r/b:1": None, "r/a:1": DIGEST})), ("r/a:1", "r/b:1")
    )
    assert digests.pinned("r/a:1", known) == f"r/a:1@{DIGEST}"
    assert digests.pinned("r/b:1", known) == "r/b:1"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is not JSON"),
        ("[]", "does not list the base images"),
        (json.dumps({"r/a:1": None}), "does not list the base images"),
        (json.dumps({"r/a:1": None, "r/b:1": "sha256:12"}), "r/b:1 has 'sha256:12' for a digest"),
        (json.dumps({"r/a:1": None, "r/b:1": 5}), "r/b:1 has 5 for a digest"),
    ],
)
def test_a_file_of_other_content_is_refused_with_what_to_do(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        digests.read(written(tmp_path, text), ("r/a:1", "r/b:1"))
    assert says in str(caught.value)
    assert "make digests" in str(caught.value)


def test_a_missing_file_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="make digests"):
        digests.read(tmp_path, ())
