# SPDX-License-Identifier: Apache-2.0
"""The record of a smoke run, of one that passed and of one that did not."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest

from afd.support.records import Record, load
from afd.testing.compare import Comparison, Verdict
from afd.testing.smoke import Outcome
from afd.testing.smoke_record import write_record
from afd.testing.stack import Layout
from afd.topology import Topology
from tests.unit.agent.plans import small_model


def written(outcome: Outcome, directory: Path, model: str = "builtin:tiny-deepseek-v2") -> Record:
    layout = Layout(
        model=model,
        runner="v2",
        topology=Topology(1, 1),
        vllm_args=("--dtype", "float32", "--max-num-seqs", "4"),
    )
    write_record(layout, outcome, time.monotonic() - 2, directory / "records")
    (record,) = load(directory / "records")
    return record


def verdict(name: str, *, agrees: bool = True, tie: bool = False, error: float = 0.0) -> Verdict:
    reason = "" if agrees else "token 1 is 9 instead of 7"
    return Verdict(name, agrees, tie, 8, 8 if agrees and not tie else 1, 0.5, error, reason)


def test_a_run_that_passed_has_its_counts_and_is_traceable(tmp_path: Path) -> None:
    outcome = Outcome(
        comparison=Comparison((verdict("a", error=2e-5), verdict("b", tie=True))),
        transport="shm",
        left_segments=0,
        left_processes=0,
    )
    record = written(outcome, tmp_path)
    assert record.name == "tiny-deepseek-v2-1a1f-v2-float32"
    assert (record.counts.passed, record.counts.failed) == (2, 0)
    (compared,) = record.comparisons
    assert (compared.tokens, compared.equal, compared.near_ties, compared.passed) == (16, 9, 1, True)
    assert compared.max_logprob_difference == pytest.approx(2e-5)
    assert (record.model.family, record.model.dtype, record.setup.transport) == ("deepseek", "float32", "shm")
    assert (record.cleanup.processes, record.cleanup.segments) == (0, 0)
    assert 2 <= record.duration_s < 60


def test_a_run_that_failed_is_recorded_with_its_reasons(tmp_path: Path) -> None:
    outcome = Outcome(
        comparison=Comparison((verdict("a", agrees=False, error=math.nan),)),
        problems=["ffn ended with code 71"],
    )
    record = written(outcome, tmp_path)
    assert (record.counts.passed, record.counts.failed) == (0, 2)
    assert [reason.reason for reason in record.reasons] == [
        "token 1 is 9 instead of 7",
        "ffn ended with code 71",
    ]
    assert not record.comparisons[0].passed
    assert record.comparisons[0].max_logprob_difference is None
    assert not record.is_evidence
    assert (record.cleanup.processes, record.cleanup.segments) == (None, None)


def test_a_model_in_a_directory_is_named_without_its_path(tmp_path: Path) -> None:
    (tmp_path / "My Models.v2").mkdir()
    model = small_model(tmp_path / "My Models.v2").rename(tmp_path / "My_Model.v2 (copy)")
    record = written(Outcome(), tmp_path, str(model))
    assert record.name == "my-model-v2-copy-1a1f-v2-float32"
    assert record.model.name == "My_Model.v2 (copy)"
    assert str(tmp_path) not in (tmp_path / "records" / f"smoke-{record.name}.json").read_text()
