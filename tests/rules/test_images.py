# SPDX-License-Identifier: Apache-2.0
"""What comes from the rows of images is what they would give today."""

from __future__ import annotations

import subprocess

import pytest

from scripts import render_images
from tests.rules.sources import ROOT, clean

FILES = render_images.files()


@pytest.mark.parametrize("path", sorted(FILES))
def test_a_rendered_file_is_what_the_pins_say(path: str) -> None:
    written = (ROOT / path).read_text(encoding="utf-8") if (ROOT / path).exists() else ""
    assert written == FILES[path], "run make docs"


def test_no_snapshot_is_left_of_a_cell_that_is_gone() -> None:
    found = {p.relative_to(ROOT).as_posix() for p in (ROOT / render_images.SNAPSHOTS).glob("*")}
    clean(sorted(found - FILES.keys()))


def test_what_ci_runs_needs_no_container_engine() -> None:
    words = ["make", "--dry-run", "--always-make", "lint", "test"]
    shown = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert "tests/unit" in shown.stdout, shown.stderr
    assert "tests/image" not in shown.stdout
    with_engine = subprocess.run([*words, "test-image"], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert "tests/image" in with_engine.stdout
