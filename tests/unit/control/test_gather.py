# SPDX-License-Identifier: Apache-2.0
"""What counts as a difference between values that must agree."""

from __future__ import annotations

from afd.control.gather import differing
from afd.errors import Difference


def test_a_rank_without_an_opinion_goes_along_with_the_others() -> None:
    values = {"F0": {"tokens": None, "dtype": "float32"}, "A0": {"tokens": 64, "dtype": "float32"}}
    assert differing("resolved", values) == ()
    values["A1"] = {"tokens": 96, "dtype": "float32"}
    assert differing("resolved", values) == (Difference("resolved.tokens", {"A0": "64", "A1": "96"}),)


def test_a_field_that_a_rank_does_not_have_is_a_difference() -> None:
    values = {"F0": {}, "A0": {"tokens": 64}}
    assert differing("resolved", values) == (Difference("resolved.tokens", {"F0": "none", "A0": "64"}),)
