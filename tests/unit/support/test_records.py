# SPDX-License-Identifier: Apache-2.0
"""Run records: one schema, checked on write and on read, and nothing that passes as evidence by accident."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from afd.errors import ConfigError, MisuseError, ResourceError
from afd.support import records
from afd.support.records import Cleanup, Comparison, Counts, Reason
from tests.unit.record_examples import record

COMMITTED = Path(__file__).parents[2] / "records"


def test_a_record_reads_back_as_it_was_written(tmp_path: Path) -> None:
    path = records.write(record(), tmp_path)
    assert path.name == "smoke-cpu-v2-1a1f.json"
    assert records.load(tmp_path) == (record(),)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_newer_run_replaces_the_older_one(tmp_path: Path) -> None:
    records.write(record(), tmp_path)
    records.write(record(duration_s=1.0), tmp_path)
    assert [found.duration_s for found in records.load(tmp_path)] == [1.0]


def test_a_run_that_passed_from_a_committed_tree_is_evidence() -> None:
    assert record().is_evidence


@pytest.mark.parametrize(
    "changes",
    [
        {"counts": Counts(passed=0, failed=0, errors=0, skipped=0)},
        {"counts": Counts(passed=1, failed=1, errors=0, skipped=0)},
        {"counts": Counts(passed=1, failed=0, errors=1, skipped=0)},
        {"cleanup": Cleanup(segments=1)},
        {"comparisons": (Comparison(subject="afd", reference="native", tokens=2, equal=1, passed=False),)},
        {"commits": records.Commits(afd="0" * 40, dirty=True, vllm="1" * 40, vllm_ascend="2" * 40)},
        {"commits": records.Commits(afd="unknown", dirty=False, vllm="1" * 40, vllm_ascend="2" * 40)},
    ],
)
def test_a_run_that_failed_left_something_or_cannot_be_traced_is_no_evidence(changes: dict[str, Any]) -> None:
    assert not record(**changes).is_evidence


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "Has Spaces"}, r"\$\.name"),
        ({"date": "yesterday"}, r"\$\.date"),
        ({"date": "2026-13-01T00:00:00Z"}, "is not a date"),
        ({"kind": "guess"}, r"\$\.kind"),
        ({"duration_s": -1.0}, r"\$\.duration_s"),
        ({"counts": Counts(passed=1, failed=1, errors=0, skipped=0)}, "1 tests failed, but 0 reasons"),
        ({"reasons": (Reason(test="t", outcome="skipped", reason="r"),)}, "0 tests skipped, but 1 reasons"),
        (
            {"comparisons": (Comparison(subject="a", reference="b", tokens=1, equal=2, passed=True),)},
            "2 of 1 tokens are equal",
        ),
    ],
)
def test_a_wrong_record_is_never_written(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(MisuseError, match=message):
        records.write(record(**changes), tmp_path)
    assert not list(tmp_path.iterdir())


def drop_date(content: dict[str, Any]) -> None:
    del content["date"]


def add_key(content: dict[str, Any]) -> None:
    content["model"]["extra"] = 1


@pytest.mark.parametrize(("change", "message"), [(drop_date, "date"), (add_key, "extra")])
def test_a_record_with_missing_or_unknown_fields_is_not_read(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    path = records.write(record(), tmp_path)
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(MisuseError, match=f"{path.name}.*{message}"):
        records.load(tmp_path)


def test_a_record_under_another_name_is_not_read(tmp_path: Path) -> None:
    records.write(record(), tmp_path).rename(tmp_path / "other.json")
    with pytest.raises(MisuseError, match="holds the record smoke-cpu-v2-1a1f"):
        records.load(tmp_path)


def test_files_that_cannot_be_written_or_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match="cannot write"):
        records.write(record(), tmp_path / "file")
    (tmp_path / "broken.json").symlink_to("absent")
    with pytest.raises(ConfigError, match=r"broken\.json: No such file"):
        records.load(tmp_path)


def test_every_committed_record_obeys_the_schema() -> None:
    records.load(COMMITTED)


def test_the_schema_names_every_field() -> None:
    schema = records.json_schema()
    assert set(schema["$defs"]["Record"]["properties"]) >= {
        "commits",
        "counts",
        "cleanup",
        "comparisons",
        "setup",
    }
