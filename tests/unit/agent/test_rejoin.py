# SPDX-License-Identifier: Apache-2.0
"""How often and how fast a role starts again."""

from __future__ import annotations

from typing import Any

import pytest

from afd import config as afd_config
from afd.agent.rejoin import Attempts
from afd.errors import (
    AFDError,
    ConfigError,
    MismatchError,
    PeerAbsentError,
    PeerLostError,
    RoleFailedError,
    UnsupportedError,
)

LOST = PeerLostError("F0 is gone", "F0")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def attempts(clock: Clock | None = None, on_loss: str = "rejoin", **settings: Any) -> Attempts:
    config = afd_config.resolve({}, {}, {"on_loss": on_loss, "rejoin": settings}).config
    return Attempts(config, clock or Clock())


def test_the_first_attempt_is_made_at_once_and_the_pauses_double_up_to_the_longest() -> None:
    made = attempts(attempts=6, backoff_s=2.0, backoff_max_s=10.0)
    assert [made.lost() for _ in range(6)] == [0.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert str(made) == "attempt 6 of 6"


def test_thousands_of_attempts_are_possible() -> None:
    made = attempts(attempts=5000)
    assert {made.lost() for _ in range(5000)} == {0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0}


def test_attempts_are_bounded() -> None:
    made = attempts(attempts=2)
    for _ in range(2):
        assert made.allows(LOST)
        made.lost()
    assert not made.allows(LOST)


def test_after_being_ready_for_long_enough_they_are_counted_from_the_start() -> None:
    clock = Clock()
    made = attempts(clock, attempts=2, reset_s=100.0)
    made.lost()
    made.lost()
    made.ready()
    clock.now = 99.0
    assert not made.allows(LOST)
    clock.now = 100.0
    assert made.allows(LOST)
    assert made.lost() == 0.0
    assert made.number == 1
    # It has not been ready since.
    clock.now = 1000.0
    made.lost()
    assert not made.allows(LOST)


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (LOST, True),
        (RoleFailedError("the worker was killed"), True),
        (PeerAbsentError("A0 did not connect"), True),
        (MismatchError("dtype"), False),
        (ConfigError("--port: nonsense"), False),
        (UnsupportedError("graphs"), False),
        (ValueError("a bug of the agent"), False),
        (None, False),
    ],
)
def test_what_another_attempt_would_not_change_is_final(error: AFDError | None, again: bool) -> None:
    assert attempts().allows(error) is again
    assert attempts(on_loss="exit").allows(error) is False
