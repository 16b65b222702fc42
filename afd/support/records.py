# SPDX-License-Identifier: Apache-2.0
"""Records of runs: what was run, on what, and what came out, as one JSON file each under ``tests/records/``.

There is one schema, and one writer (:func:`write`; what it needs to know about the machine is collected by
:mod:`afd.testing.records`). The support matrix calls a combination validated only because a record
says so (:func:`afd.support.render`). A record of a tree with uncommitted changes is kept, but is no evidence.
"""

from __future__ import annotations

import datetime
import os
import tempfile
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from afd.errors import ConfigError, MisuseError, ResourceError

_Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]+([.-][a-z0-9]+)*$", max_length=100)]
_Word = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
_Date = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z$")]
_Commit = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{40}|unknown)$")]
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Positive = Annotated[int, msgspec.Meta(ge=1)]
_Amount = Annotated[float, msgspec.Meta(ge=0)]


class Commits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Sources. ``afd`` is "unknown" when the run used an installed package; ``dirty`` is whether the tree had
    changes outside the records and the pages made from them.
    """

    afd: _Commit
    dirty: bool
    vllm: _Commit
    vllm_ascend: _Commit


class Stack(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``versions`` of what matters by name; ``digest`` is over name and version of every installed
    distribution.
    """

    versions: dict[str, str]
    digest: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}$")]


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: _Word
    family: _Word
    architecture: _Word
    dtype: _Word
    quantisation: _Word
    config_digest: _Word


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Ranks of each role. ``tp`` and ``dp`` are those of Attention."""

    num_attention: _Positive
    num_ffn: _Positive
    tp: _Positive = 1
    dp: _Positive = 1


class Devices(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``kind`` is "cpu" or the name of a SOC, ``count`` cores or chips, ``memory_bytes`` their memory
    together.
    """

    kind: _Word
    count: _Positive
    architecture: _Word
    memory_bytes: _Count


class Ubatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    num_ubatches: _Positive
    decode_token_threshold: _Count
    prefill_token_threshold: _Count


class Setup(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What was run: the dimensions of the support matrix that are not in another part."""

    platform: _Word
    connector: _Word
    transport: _Word
    runner: Literal["v1", "v2"]
    mode: _Word
    gate: Literal["attention", "ffn"]
    on_loss: Literal["exit", "rejoin"]
    ubatch: Ubatch
    features: tuple[_Word, ...] = ()


class Counts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    passed: _Count
    failed: _Count
    errors: _Count
    skipped: _Count


class Reason(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Why one test did not pass."""

    test: _Word
    outcome: Literal["failed", "error", "skipped"]
    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=2000)]


class Cleanup(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the run left behind, counted; None where it was not looked for."""

    processes: _Count | None = None
    ports: _Count | None = None
    threads: _Count | None = None
    segments: _Count | None = None
    graphs: _Count | None = None

    @property
    def clean(self) -> bool:
        return not any((self.processes, self.ports, self.threads, self.segments, self.graphs))


class Comparison(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One comparison with a ``reference`` ("native", "v1", "eager"): tokens in all, equal ones, and those
    that differ only because the reference's first two candidates were as good as tied (``near_ties``).
    """

    subject: _Word
    reference: _Word
    tokens: _Count
    equal: _Count
    near_ties: _Count = 0
    max_logprob_difference: _Amount | None = None
    passed: bool


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One run. ``name`` tells runs of the same kind apart and never contains a date: a newer run replaces it."""

    schema: Literal[1] = 1
    kind: Literal["smoke", "system", "image", "cluster", "npusim", "bench"]
    name: _Name
    date: _Date
    duration_s: _Amount
    commits: Commits
    stack: Stack
    model: Model
    layout: Layout
    devices: Devices
    setup: Setup
    counts: Counts
    reasons: tuple[Reason, ...] = ()
    cleanup: Cleanup
    comparisons: tuple[Comparison, ...] = ()

    @property
    def passed(self) -> bool:
        """Something ran, nothing failed, every comparison held, and nothing was left behind."""
        counts = self.counts
        ran = counts.passed > 0 and not counts.failed and not counts.errors
        return ran and self.cleanup.clean and all(comparison.passed for comparison in self.comparisons)

    @property
    def is_evidence(self) -> bool:
        """Whether the support matrix may rest on it: it passed, and its source can be looked up."""
        return self.passed and not self.commits.dirty and self.commits.afd != "unknown"


def write(record: Record, directory: Path) -> Path:
    """Check ``record`` against the schema and write ``<kind>-<name>.json`` in ``directory`` in one step.

    Raises :class:`MisuseError` for a record that breaks the schema or contradicts itself.
    """
    content = msgspec.json.format(msgspec.json.encode(record, order="sorted"), indent=2) + b"\n"
    _check(parse(content, "the new record"), "the new record")
    path = directory / f"{record.kind}-{record.name}.json"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".record-", delete=False) as file:
            file.write(content)
        os.chmod(file.name, 0o644)
        os.replace(file.name, path)
    except OSError as error:
        raise ResourceError(f"cannot write {path}: {error.strerror or error}") from error
    return path


def parse(content: bytes, where: str) -> Record:
    """A record from JSON. Raises :class:`MisuseError` naming the field that breaks the schema."""
    try:
        return msgspec.json.decode(content, type=Record)
    except msgspec.DecodeError as error:
        raise MisuseError(f"{where}: {error}") from None


def load(directory: Path) -> tuple[Record, ...]:
    """All records of ``directory``, by file name. Raises :class:`ConfigError` or :class:`MisuseError`."""
    found: list[Record] = []
    for path in sorted(directory.glob("*.json")):
        try:
            record = parse(path.read_bytes(), path.name)
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror or error}") from None
        if path.name != f"{record.kind}-{record.name}.json":
            raise MisuseError(f"{path.name}: holds the record {record.kind}-{record.name}")
        _check(record, path.name)
        found.append(record)
    return tuple(found)


def _check(record: Record, where: str) -> None:
    """What a schema cannot say."""
    listed = [reason.outcome for reason in record.reasons]
    counts = record.counts
    expected: dict[Literal["failed", "error", "skipped"], int] = {
        "failed": counts.failed,
        "error": counts.errors,
        "skipped": counts.skipped,
    }
    for outcome, count in expected.items():
        if listed.count(outcome) != count:
            raise MisuseError(f"{where}: {count} tests {outcome}, but {listed.count(outcome)} reasons")
    for comparison in record.comparisons:
        if comparison.equal > comparison.tokens:
            raise MisuseError(f"{where}: {comparison.equal} of {comparison.tokens} tokens are equal")
    try:
        datetime.datetime.strptime(record.date, "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        raise MisuseError(f"{where}: {record.date} is not a date") from None


def json_schema() -> dict[str, Any]:
    """The JSON schema of a record, for readers in other languages."""
    return msgspec.json.schema(Record)
