# SPDX-License-Identifier: Apache-2.0
"""Silence: three heartbeats, never one's own pauses."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from afd.control.liveness import Silence

BEAT = 0.5
TICK = BEAT / 5


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def silence() -> tuple[Silence[str], Clock]:
    clock = Clock()
    return Silence(TICK, clock), clock


def run(watched: Silence[str], clock: Clock, seconds: float, beats: tuple[str, ...] = ()) -> list[str]:
    """Tick on time for ``seconds``; ``beats`` give a sign of life every heartbeat. Returns who was silent, in order."""
    found: list[str] = []
    for number in range(round(seconds / TICK)):
        clock.now += TICK
        if number % 5 == 0:
            for peer in beats:
                watched.beat(peer)
        found += watched.tick()[0]
    return found


def test_a_silent_peer_is_found_within_three_heartbeats_and_not_before_the_last_can_arrive() -> None:
    watched, clock = silence()
    watched.watch("A0", BEAT)
    assert run(watched, clock, 2.5 * BEAT) == []
    assert "A0" in run(watched, clock, 0.5 * BEAT)


def test_a_beating_peer_is_never_silent() -> None:
    watched, clock = silence()
    watched.watch("A0", BEAT)
    watched.watch("A1", BEAT)
    assert set(run(watched, clock, 20.0, beats=("A0",))) == {"A1"}


def test_who_is_forgotten_or_unknown_is_not_missed() -> None:
    watched, clock = silence()
    watched.watch("A0", BEAT)
    watched.forget("A0")
    watched.forget("A0")
    watched.beat("A9")
    assert run(watched, clock, 10.0) == []
    assert watched.age("A0") == 0.0


@given(st.floats(0.3, 3600))
def test_a_pause_of_this_process_is_not_counted_against_a_peer(pause: float) -> None:
    watched, clock = silence()
    watched.watch("A0", BEAT)
    run(watched, clock, 1.0, beats=("A0",))
    clock.now += pause
    silent, stopped = watched.tick()
    assert silent == []
    assert abs(stopped - (pause - TICK)) < 1e-6
    # What the peer said during the pause is read after the tick; if it said nothing it is found soon.
    assert run(watched, clock, 3 * BEAT) != []


def test_a_process_that_always_runs_late_still_finds_a_dead_peer() -> None:
    watched, clock = silence()
    watched.watch("A0", BEAT)
    for _ in range(20):
        clock.now += 1.0
        if watched.tick()[0]:
            return
    raise AssertionError("the dead peer was never found")


def test_a_slower_peer_gets_its_own_limit() -> None:
    watched, clock = silence()
    watched.watch("slow", 4 * BEAT)
    assert run(watched, clock, 5.0) == []
    assert run(watched, clock, 2.0) != []
