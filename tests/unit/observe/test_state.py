# SPDX-License-Identifier: Apache-2.0
"""The life of a role."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest

from afd.errors import MisuseError
from afd.observe.state import TRANSITIONS, State, StateMachine

LIFE = ["rendezvous", "loading", "capturing", "ready-to-warm", "warming", "ready", "draining", "stopped"]


def test_a_whole_life_with_the_time_of_each_state() -> None:
    ticks = itertools.count(100.0)
    seen: list[State] = []
    machine = StateMachine(clock=lambda: next(ticks), on_change=seen.append)
    for name in LIFE:
        machine.to(State(name))
    assert [str(state) for state in seen] == LIFE
    assert machine.since == 108.0
    assert machine.entered[State.READY] == 106.0
    assert machine.state.final


def test_a_role_without_graphs_skips_capturing() -> None:
    machine = StateMachine()
    for state in (State.RENDEZVOUS, State.LOADING, State.READY_TO_WARM):
        machine.to(state)
    assert State.CAPTURING not in machine.entered


@pytest.mark.parametrize("start", State)
@pytest.mark.parametrize("target", State)
def test_only_the_steps_of_the_table_are_possible(start: State, target: State) -> None:
    machine = StateMachine()
    machine._enter(start, "")
    if start is target or target in TRANSITIONS[start]:
        machine.to(target)
        assert machine.state is target
    else:
        with pytest.raises(MisuseError, match=f"cannot go from {start} to {target}"):
            machine.to(target)
        assert machine.state is start


def test_what_has_ended_stays_ended_and_everything_else_may_fail() -> None:
    for state in State:
        machine = StateMachine()
        machine._enter(state, "")
        assert machine.fail("boom") is not state.final
        assert (machine.reason == "boom") is not state.final


def test_the_first_failure_is_kept() -> None:
    machine = StateMachine()
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda n: (machine.fail(f"reason {n}"), n), range(32)))
    winners = [n for won, n in results if won]
    assert len(winners) == 1
    assert machine.reason == f"reason {winners[0]}"


def test_going_where_one_is_changes_nothing() -> None:
    ticks = itertools.count(1.0)
    machine = StateMachine(clock=lambda: next(ticks))
    machine.to(State.STARTING)
    assert machine.since == 1.0
