# SPDX-License-Identifier: Apache-2.0
"""One cause: who sees it as what, and who is woken."""

from __future__ import annotations

import pickle
import threading

import pytest

from afd import errors
from afd.control.abort import Abort, Cause


def test_only_the_first_cause_counts_and_everyone_is_woken_once() -> None:
    abort, woken = Abort(), threading.Event()
    abort.subscribe(woken.set)
    assert abort.trigger(Cause("PeerLostError", "first", rank="A0"))
    assert not abort.trigger(Cause("PeerLostError", "second"))
    assert woken.is_set()
    with pytest.raises(errors.PeerLostError, match="A0: first"):
        abort.check()


def test_who_subscribes_too_late_is_woken_at_once_and_who_left_is_not() -> None:
    abort, early, late = Abort(), threading.Event(), threading.Event()
    abort.subscribe(early.set)()
    abort.trigger(Cause("RoleFailedError", "x"))
    abort.subscribe(late.set)
    assert late.is_set()
    assert not early.is_set()


def test_a_failure_of_a_role_is_a_lost_peer_for_the_others_with_the_same_text() -> None:
    cause = Cause("ConfigError", "no such checkpoint", rank="A0")
    own, other = cause.seen_by(["A0", "A1"]).error(), cause.seen_by(["F0"]).error()
    assert (type(own), type(other)) == (errors.ConfigError, errors.PeerLostError)
    assert str(own) == str(other) == "A0: no such checkpoint"


def test_a_loss_that_others_saw_is_a_failure_of_the_role_that_was_lost() -> None:
    cause = Cause("PeerLostError", "fell silent", rank="A0")
    assert cause.seen_by(["A0"]).error().exit_code == 71
    assert cause.seen_by(["F0"]).error().exit_code == 70


@pytest.mark.parametrize("kind", ["MismatchError", "PeerAbsentError"])
def test_what_concerns_the_group_is_the_same_for_all(kind: str) -> None:
    cause = Cause(kind, "text", rank="A0")
    assert cause.seen_by(["A0"]) == cause.seen_by(["F0"]) == cause


def test_a_cause_keeps_the_differences_of_a_mismatch() -> None:
    difference = errors.Difference("dtype", {"A0": "x", "F0": "y"})
    error = Cause.of(errors.MismatchError("dtype differs", (difference,)), "A0").error()
    assert isinstance(error, errors.MismatchError)
    assert error.differences == (difference,)


def test_what_a_rank_says_about_a_lost_peer_is_hearsay_and_blames_the_peer() -> None:
    cause = Cause.of(errors.PeerLostError("F0: closed", "F0"), "A0")
    assert (cause.rank, cause.hearsay, str(cause)) == ("F0", True, "F0: closed")


def test_any_other_exception_blames_the_rank_that_raised_it_in_one_line() -> None:
    cause = Cause.of(ValueError("bad\nshape"), "F0")
    assert cause == Cause("RoleFailedError", "ValueError('bad\\nshape')", rank="F0")


def test_a_lost_peer_error_survives_pickling_between_processes() -> None:
    error = pickle.loads(pickle.dumps(errors.PeerLostError("gone", "A0")))  # noqa: S301
    assert (str(error), error.rank) == ("gone", "A0")


def test_a_cause_that_a_peer_gave_no_words_still_says_something() -> None:
    assert str(Cause("RoleFailedError", "", rank="F0")) == "F0: RoleFailedError without a word"
    assert str(Cause("", "")) == "a failure without a word"
