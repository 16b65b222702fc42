# SPDX-License-Identifier: Apache-2.0
"""What a forked process does about cores."""

from __future__ import annotations

import os

import pytest

from afd.launch.children import core_list, keep_to


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("0", {0}),
        ("0,2,5", {0, 2, 5}),
        ("0 2 5", {0, 2, 5}),
        ("{0,2}", {0, 2}),
        ("5,2-4", {2, 3, 4, 5}),
        ("0-3", {0, 1, 2, 3}),
        ("", set()),
        ("nobind", set()),
        ("auto", set()),
        ("cores(4)", set()),
        ("{0:4}", set()),
        ("{0}:4", set()),
        ("{0},{1}", set()),
    ],
)
def test_a_list_of_cores_is_read_and_nothing_else_is_guessed(text: str, cores: set[int]) -> None:
    assert core_list(text) == cores


def test_a_process_keeps_to_the_cores_it_may_use() -> None:
    before = os.sched_getaffinity(0)
    try:
        keep_to({min(before), 4095})
        assert os.sched_getaffinity(0) == {min(before)}
        keep_to({4095})
        assert os.sched_getaffinity(0) == {min(before)}
    finally:
        os.sched_setaffinity(0, before)
