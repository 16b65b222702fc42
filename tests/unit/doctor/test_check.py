# SPDX-License-Identifier: Apache-2.0
"""A check gives a result whatever happens in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from afd.doctor.check import FAIL, OK, SKIP, WARN, Check, Finding, Group, Need, check, fail, judged, ok
from afd.doctor.subject import Subject
from tests.unit.doctor.roots import Root


def made(result: object, needs: tuple[Need, ...] = (), slow: bool = False) -> Check:
    """A check that returns ``result``, or raises it."""

    @check(
        "AFD-X-001", "x", Group.HOST, about="x is read", expected="an x", fix="do x", needs=needs, slow=slow
    )
    def function(_: Subject) -> Finding:
        if isinstance(result, BaseException):
            raise result
        return result  # type: ignore[return-value]

    return function


@pytest.mark.parametrize(
    "error", [KeyError("x"), OSError(5, "no disk"), ZeroDivisionError(), AssertionError()], ids=repr
)
def test_a_check_that_raises_has_failed_with_its_error(error: Exception) -> None:
    found = made(error).run(Subject())
    assert found.status == FAIL and found.remedy and found.expected == "an x"
    assert found.found.startswith(f"the check itself broke: {type(error).__name__}: {error}")


@pytest.mark.parametrize("result", [None, "ok", Finding("fine", "x"), Finding("", "x")], ids=repr)
def test_a_check_without_a_proper_result_has_failed(result: object) -> None:
    found = made(result).run(Subject())
    assert found.status == FAIL and "the check itself broke" in found.found


def test_a_file_that_is_closed_to_this_user_is_a_failure_with_its_name() -> None:
    found = made(PermissionError(13, "Permission denied", "/etc/hccn.conf")).run(Subject(uid=7))
    assert found.status == FAIL and found.remedy.startswith("let uid 7 read /etc/hccn.conf")


def test_an_interrupt_is_no_result_of_a_check() -> None:
    with pytest.raises(KeyboardInterrupt):
        made(KeyboardInterrupt()).run(Subject())


def test_a_complaint_without_a_remedy_takes_the_general_one() -> None:
    assert made(fail("y", "")).run(Subject()) == Finding(FAIL, "y", "do x", "an x")
    assert made(fail("y", "do y", "a y")).run(Subject()) == Finding(FAIL, "y", "do y", "a y")
    assert made(ok("y")).run(Subject()) == Finding(OK, "y", "", "an x")
    assert made(Finding(SKIP, "y")).run(Subject()) == Finding(SKIP, "y")


@pytest.mark.parametrize(
    ("need", "soc", "done"),
    [
        (Need.NPU, "cpu", False),
        (Need.NPU, "a3", True),
        (Need.CPU, "cpu", True),
        (Need.CPU, "a5", False),
        (Need.IMAGE, "a2", True),
        (Need.RUNNING, "a2", False),
        (Need.CHILD, "cpu", False),
    ],
)
def test_a_check_is_skipped_with_a_reason_where_it_says_nothing(
    tmp_path: Path, need: Need, soc: str, done: bool
) -> None:
    found = made(ok("y"), (need,)).run(Root(tmp_path, soc).subject())
    assert (found.status == OK) is done and found.found
    assert done or found.status == SKIP


def test_outside_an_image_what_asks_for_one_is_skipped(tmp_path: Path) -> None:
    found = made(ok("y"), (Need.IMAGE,)).run(Subject(root=tmp_path, env={}))
    assert found.status == SKIP and "/etc/afd/image.json" in found.found


def test_a_slow_check_is_done_only_when_it_is_wanted() -> None:
    assert made(ok("y"), slow=True).run(Subject(), slow=False).status == SKIP
    assert made(ok("y"), slow=True).run(Subject(), slow=True).status == OK
    assert made(ok("y")).run(Subject(), slow=False).status == OK


@pytest.mark.parametrize(("value", "status"), [(10, OK), (9, WARN), (5, WARN), (4, FAIL)])
def test_a_value_is_judged_by_two_bounds(value: int, status: str) -> None:
    found = judged("found", value, 10, 5, "do")
    assert (found.status, found.remedy) == (status, "" if status == OK else "do")
