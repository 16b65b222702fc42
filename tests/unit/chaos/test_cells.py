# SPDX-License-Identifier: Apache-2.0
"""Which experiments there are: nothing is dropped in silence."""

from __future__ import annotations

import itertools

import pytest

from tests.chaos import cells, page
from tests.chaos.cells import LAYOUTS, ON_LOSS, Cell, Fault, Phase, Target
from tests.chaos.expected import expected

EVERY = cells.product()
POSSIBLE = cells.possible(EVERY)


def test_every_combination_is_an_experiment_or_named_impossible_with_a_reason() -> None:
    assert len(EVERY) == len(Fault) * len(Target) * len(Phase) * len(LAYOUTS) * len(ON_LOSS)
    assert len(set(EVERY)) == len(EVERY)
    impossible = {cell: cells.impossible(cell) for cell in EVERY if cells.impossible(cell)}
    assert set(POSSIBLE) | impossible.keys() == set(EVERY)
    listed = page.render({})
    for reason in set(impossible.values()):
        assert len(reason.split()) >= 4 and reason in listed


def test_every_experiment_has_expectations_of_each_role_it_involves() -> None:
    for cell in POSSIBLE:
        right = expected(cell)
        assert right.codes.keys() == set(right.codes) and all(right.codes.values()), cell
        assert set(right.notices) <= right.codes.keys(), cell


def test_the_complete_selection_kills_each_process_of_1a1f_in_each_phase() -> None:
    chosen = cells.complete()
    assert {(cell.fault, cell.layout, cell.on_loss) for cell in chosen} == {(Fault.KILL, "1A1F", "exit")}
    assert {cell.phase for cell in chosen} == set(Phase)
    processes = set(Target) - {Target.A1, Target.F1, Target.COORDINATOR, Target.NETWORK, Target.SHM}
    for target in processes:
        phases = {cell.phase for cell in chosen if cell.target is target}
        assert phases == (set(Phase) if target.is_agent else set(Phase) - {Phase.RENDEZVOUS}), target


def test_in_the_pairwise_selection_any_two_values_meet_that_can_meet() -> None:
    chosen = cells.pairwise()
    assert set(chosen) <= set(POSSIBLE) and len(set(chosen)) == len(chosen)
    wanted = set(itertools.chain.from_iterable(map(cells.pairs, POSSIBLE)))
    assert wanted - set(itertools.chain.from_iterable(map(cells.pairs, chosen))) == set()
    assert len(chosen) < len(POSSIBLE) / 4


@pytest.mark.parametrize("cell", [EVERY[0], EVERY[-1], POSSIBLE[100]], ids=str)
def test_a_cell_is_found_by_its_name(cell: Cell) -> None:
    assert Cell.parse(str(cell)) == cell
