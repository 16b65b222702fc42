# SPDX-License-Identifier: Apache-2.0
"""Judging combinations by the tables and by the records of runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from afd.config import CAMP2P
from afd.errors import MisuseError, UnsupportedError
from afd.support.records import Record
from afd.support.tables import CONFLICTS, DIMENSIONS, FEATURES, LATER, Dimension


class Status(str, Enum):
    """What is known about a combination."""

    VALIDATED = "validated"
    UNVALIDATED = "unvalidated"
    UNSUPPORTED = "unsupported"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Combination:
    """Everything that decides whether a run is supported. ``features`` are names from :data:`FEATURES`.

    ``tp`` is Attention's tensor parallel size, ``num_attention`` counts its ranks (DP x TP).
    """

    platform: str = "cpu"
    connector: str = CAMP2P
    transport: str = "auto"
    runner: str = "v2"
    family: str = "deepseek"
    mode: str = "eager"
    num_ubatches: int = 1
    quantisation: str = "none"
    dtype: str = "float32"
    gate: str = "ffn"
    num_attention: int = 1
    num_ffn: int = 1
    tp: int = 1
    on_loss: str = "exit"
    features: frozenset[str] = frozenset()

    def values(self) -> dict[str, str]:
        """The value of every dimension of the matrix, as text."""
        return {
            "platform": self.platform,
            "connector": self.connector,
            "transport": self.transport,
            "runner": self.runner,
            "family": self.family,
            "mode": self.mode,
            "ubatches": str(self.num_ubatches),
            "quantisation": self.quantisation,
            "dtype": self.dtype,
            "gate": self.gate,
            "layout": f"{self.num_attention}A{self.num_ffn}F",
            "tp": str(self.tp),
            "on_loss": self.on_loss,
        }


def check(combination: Combination) -> None:
    """Raise :class:`UnsupportedError`, with the reason and what to do instead, unless AFD runs
    ``combination``.
    """
    found = problem(combination)
    if found:
        raise UnsupportedError(found)


def problem(combination: Combination, dimensions: Iterable[Dimension] = DIMENSIONS) -> str:
    """Why ``combination`` is not supported and what to do, everything in one line; empty when it is.

    ``dimensions`` are those of another release.
    """
    return "; besides, ".join(_problems(combination, tuple(dimensions)))


def _problems(combination: Combination, dimensions: Sequence[Dimension]) -> Iterator[str]:
    """All of them: whoever does what one says must not be refused for the next."""
    values = combination.values()
    fine = set()
    for dimension in dimensions:
        name = values[dimension.name]
        value = dimension.find(name)
        if value.reason:
            yield _refusal(f"{dimension.name} {name}", value.reason, value.instead)
        else:
            fine.add((dimension.name, name))
    for conflict in CONFLICTS:
        if fine.issuperset(conflict.values):
            yield _refusal(conflict.name, conflict.reason, conflict.instead)
    for feature_name in sorted(combination.features):
        if feature_name not in FEATURES:
            raise MisuseError(f"the support matrix has no feature {feature_name!r}")
        feature = FEATURES[feature_name]
        if all(values[dimension] == value for dimension, value in feature.only):
            yield _refusal(f"{feature_name} ({feature.flag})", feature.reason, feature.advice)


def _refusal(what: str, reason: str, instead: str) -> str:
    why = " yet" if reason == LATER else f": {reason}"
    return f"{what} is not supported{why}; {instead}"


def status(combination: Combination, records: Iterable[Record] = ()) -> Status:
    """What is known about ``combination``, given the records of all runs."""
    if problem(combination):
        return Status.UNSUPPORTED
    wanted = canonical(combination.values())
    for record in records:
        if (
            record.is_evidence
            and not record.setup.features
            and canonical(combination_of(record).values()) == wanted
        ):
            return Status.VALIDATED
    return Status.UNVALIDATED


def combination_of(record: Record) -> Combination:
    """The combination that a record is about."""
    setup = record.setup
    return Combination(
        platform=setup.platform,
        connector=setup.connector,
        transport=setup.transport,
        runner=setup.runner,
        family=record.model.family,
        mode=setup.mode,
        num_ubatches=setup.ubatch.num_ubatches,
        quantisation=record.model.quantisation,
        dtype=record.model.dtype,
        gate=setup.gate,
        num_attention=record.layout.num_attention,
        num_ffn=record.layout.num_ffn,
        tp=record.layout.tp,
        on_loss=setup.on_loss,
        features=frozenset(setup.features),
    )


def canonical(values: Mapping[str, str]) -> tuple[str, ...]:
    """The values in the order of the dimensions, with those that turn into others replaced."""
    found = ((values[dimension.name], dimension.find(values[dimension.name])) for dimension in DIMENSIONS)
    return tuple(value.same_as or name for name, value in found)
