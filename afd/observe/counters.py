# SPDX-License-Identifier: Apache-2.0
"""What AFD counts, and how a rank process counts it.

:data:`FAMILIES` is the one table of metric names. A rank process binds what it counts once and then only adds::

    counters = Counters()
    eager = counters.counter("afd_steps_total", phase="eager")
    eager.add()
    session.report(counters.snapshot())

A report carries absolute values under keys like ``afd_steps_total{phase=eager}``, so that a lost report loses nothing.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from afd.errors import MisuseError


@dataclass(frozen=True)
class Family:
    """One metric. ``source`` says who knows its values: rank processes report, the agent itself, or its peers."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    source: Literal["rank", "agent"]
    doc: str


FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        Family(
            "afd_state", "gauge", ("state",), "agent", "1 for the state the role is in, 0 for the others."
        ),
        Family(
            "afd_epoch_info", "gauge", ("epoch",), "agent", "Always 1; the label is the epoch of the group."
        ),
        Family("afd_steps_total", "counter", ("phase",), "rank", "Steps that are complete, by phase."),
        Family(
            "afd_step_seconds", "histogram", (), "rank", "Time of one step, from announcement to last reply."
        ),
        Family(
            "afd_wait_seconds",
            "histogram",
            ("peer",),
            "rank",
            "Time spent waiting for a peer's data, per step.",
        ),
        Family(
            "afd_ffn_seconds",
            "histogram",
            (),
            "rank",
            "Time that an FFN rank computes, per layer and ubatch.",
        ),
        Family(
            "afd_hop_bytes_total", "counter", ("direction",), "rank", "Payload bytes moved between the roles."
        ),
        Family(
            "afd_tokens_total",
            "counter",
            ("kind",),
            "rank",
            "Tokens in steps: real, or padded (with padding). An FFN rank counts those that it serves.",
        ),
        Family(
            "afd_ffn_tokens_total",
            "counter",
            (),
            "rank",
            "Rows that FFN layers computed: a token counts once for each layer, at the rank that serves its Attention "
            "rank, whichever ranks have its experts.",
        ),
        Family("afd_graph_replays_total", "counter", (), "rank", "Steps that replayed a graph."),
        Family("afd_ubatched_steps_total", "counter", (), "rank", "Steps that ran as two ubatches."),
        Family(
            "afd_peer_last_seen_seconds", "gauge", ("peer",), "agent", "Age of a peer's last sign of life."
        ),
        Family("afd_restarts_total", "counter", ("cause",), "agent", "Restarts of this role's processes."),
        Family(
            "afd_handshake_failures_total", "counter", ("field",), "agent", "Handshakes refused, by field."
        ),
    )
}

BUCKETS = (
    1e-4,
    2.5e-4,
    5e-4,
    1e-3,
    2.5e-3,
    5e-3,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    60.0,
)
"""Upper bounds of all histograms, in seconds; one more bucket holds the rest."""

_KEY = re.compile(r"([a-z_]+)(?:\{(.*)\})?")


def key(name: str, labels: Mapping[str, str]) -> str:
    """The key of one value in a report: ``afd_tokens_total{kind=real}``."""
    inside = ",".join(f"{label}={value}" for label, value in sorted(labels.items()))
    return f"{name}{{{inside}}}" if inside else name


def parse(text: str) -> tuple[str, dict[str, str]]:
    """The inverse of :func:`key`. Raises :class:`MisuseError` for anything else."""
    match = _KEY.fullmatch(text)
    if match is None:
        raise MisuseError(f"{text!r} is no key of a counter")
    labels = {}
    for part in match[2].split(",") if match[2] else ():
        label, equals, value = part.partition("=")
        if not equals:
            raise MisuseError(f"{text!r} is no key of a counter")
        labels[label] = value
    return match[1], labels


class Counter:
    """One growing value."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, amount: float = 1.0) -> None:
        self.value += amount


class Histogram:
    """A distribution of durations."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.sum += seconds


class Counters:
    """All values of one rank process. One thread counts; any thread may take a snapshot."""

    def __init__(self) -> None:
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[tuple[str, str], Histogram] = {}

    def counter(self, name: str, **labels: str) -> Counter:
        """The counter ``name`` with exactly these labels. Raises :class:`MisuseError` unless the table has it."""
        _check(name, "counter", labels)
        return self._counters.setdefault(key(name, labels), Counter())

    def histogram(self, name: str, **labels: str) -> Histogram:
        """The histogram ``name`` with exactly these labels. Raises :class:`MisuseError` unless the table has it."""
        _check(name, "histogram", labels)
        return self._histograms.setdefault(
            (name, ",".join(f"{k}={v}" for k, v in sorted(labels.items()))), Histogram()
        )

    def snapshot(self) -> dict[str, float]:
        """All values under the keys of a report; the buckets of a histogram are cumulative."""
        values = {name: counter.value for name, counter in list(self._counters.items())}
        for (name, inside), histogram in list(self._histograms.items()):
            total = 0
            for bound, count in zip((*map(repr, BUCKETS), "+Inf"), list(histogram.counts), strict=True):
                total += count
                values[f"{name}_bucket{{{inside}{',' if inside else ''}le={bound}}}"] = total
            values[f"{name}_sum{{{inside}}}" if inside else f"{name}_sum"] = histogram.sum
        return values


def _check(name: str, kind: str, labels: Mapping[str, str]) -> None:
    family = FAMILIES.get(name)
    if family is None or family.kind != kind or family.source != "rank" or set(family.labels) != set(labels):
        raise MisuseError(
            f"no rank counts a {kind} {key(name, labels)}: see FAMILIES in afd/observe/counters.py"
        )
    if any(char in value for value in labels.values() for char in ",={}"):
        raise MisuseError(f"label values of {key(name, labels)} may not contain , = {{ or }}")
