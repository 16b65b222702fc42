# SPDX-License-Identifier: Apache-2.0
"""The container's exit code, from how both roles ended."""

from __future__ import annotations

import pytest

from afd.container.verdict import End, judge


def ends(**codes: int | None) -> list[End]:
    return [End(role, code) for role, code in codes.items()]


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (ends(ffn=64), 64),
        (ends(attention=69, ffn=64), 64),
        (ends(ffn=65, attention=65), 65),
        (ends(ffn=69), 69),
        (ends(ffn=70, attention=71), 71),
        (ends(attention=71), 71),
        (ends(ffn=-1, attention=70), 70),
        (ends(attention=-1), 70),
        (ends(attention=70), 70),
        (ends(attention=0), 70),
        (ends(ffn=3), 70),
        (ends(ffn=None), 71),
        (ends(attention=0, ffn=0), 0),
        ([], 71),
    ],
)
def test_the_role_that_knows_most_decides(found: list[End], code: int) -> None:
    assert judge(found, asked=False, supervisor=0).code == code


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (ends(attention=0, ffn=0), 0),
        ([], 0),
        (ends(attention=71, ffn=70), 71),
        (ends(attention=-1, ffn=0), 70),
    ],
)
def test_a_stop_is_0_only_when_both_roles_were_drained(found: list[End], code: int) -> None:
    assert judge(found, asked=True, supervisor=0).code == code


def test_a_supervisor_that_was_killed_is_a_failure_of_this_container() -> None:
    verdict = judge([], asked=False, supervisor=-9)
    assert verdict.code == 71 and "supervisord ended with -9" in verdict.words


def test_the_verdict_names_each_role_and_its_end_in_order() -> None:
    verdict = judge(ends(ffn=-1, attention=70), asked=False, supervisor=0)
    assert verdict.words == "a role was lost: ffn was killed; attention lost the other role (70)"
