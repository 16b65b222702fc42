# SPDX-License-Identifier: Apache-2.0
"""Committed pages that are made from code equal what the code makes now."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from afd.config import EXTRA_OPTIONS, options, reference

ROOT = Path(__file__).parents[2]


def test_committed_pages_are_up_to_date() -> None:
    run = subprocess.run(
        [sys.executable, str(ROOT / "scripts/generate_docs.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_reference_has_every_name_of_every_setting() -> None:
    page = reference.render()
    for option in options():
        assert all(f"`{name}`" in page for name in (option.key, option.flag, option.env, *option.aliases))
    assert all(f"`{extra.path}`" in page for extras in EXTRA_OPTIONS.values() for extra in extras)
