# SPDX-License-Identifier: Apache-2.0
"""The reference of all settings."""

from __future__ import annotations

from afd.config import EXTRA_OPTIONS, options, reference


def test_the_reference_has_every_name_of_every_setting() -> None:
    page = reference.render()
    for option in options():
        assert all(f"`{name}`" in page for name in (option.key, option.flag, option.env, *option.aliases))
    assert all(f"`{extra.path}`" in page for extras in EXTRA_OPTIONS.values() for extra in extras)
