# SPDX-License-Identifier: Apache-2.0
"""A few experiments of the chaos driver. ``make chaos`` does all of them, and keeps what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from afd.testing.completions import Answer
from afd.testing.records import commits
from tests.chaos.cells import Cell
from tests.chaos.experiment import run
from tests.chaos.stand import ROOT, RUNNER, Stand, native_answers

PAIRWISE = ("stop.f0.decode.1a1f.exit", "kill.ffn-launcher.warmup.1a1f.exit")
MORE = (
    "kill.attention-agent.rendezvous.1a1f.exit",
    "close.attention-agent.prefill.1a1f.exit",
    "kill.a0.drain.1a1f.exit",
    "stop.ffn-agent.idle.1a1f.exit",
    "kill.dp-coordinator.drain.2a2f.exit",
    "kill.a1.decode.2a2f.exit",
    "close.a0.decode.1a1f.rejoin",
)

pytestmark = pytest.mark.timeout(200)


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory, launchers: Callable[[str], str]) -> dict[str, Answer]:
    return native_answers(tmp_path_factory.mktemp("native"), launchers(RUNNER))


@pytest.fixture
def stand(tmp_path: Path, native: dict[str, Answer], launchers: Callable[[str], str]) -> Iterator[Stand]:
    stand = Stand(tmp_path, native, launcher=launchers(RUNNER))
    try:
        yield stand
        stand.rest()
    finally:
        stand.close()


@pytest.mark.parametrize(
    "name", [*(pytest.param(name, marks=pytest.mark.pairwise) for name in PAIRWISE), *MORE]
)
def test_a_fault_ends_in_one_named_cause_and_the_next_request_is_right(name: str, stand: Stand) -> None:
    result = run(Cell.parse(name), stand, commits(ROOT))
    print(f"\n{result}")
    assert result.proof
    assert result.problems == ()
    assert result.outcome == "passed"
