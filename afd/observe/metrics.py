# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics of one agent, built at scrape time from its status and the reports of its ranks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from afd.errors import MisuseError
from afd.observe.counters import FAMILIES, Family, parse
from afd.observe.state import State
from afd.observe.status import Status
from afd.topology import Rank

log = logging.getLogger(__name__)

CONTENT_TYPE = CONTENT_TYPE_LATEST


class Metrics(Collector):
    """All ``afd_*`` metrics of an agent. Belongs to the agent's event loop."""

    def __init__(self, status: Callable[[], Status]) -> None:
        self._status = status
        self._reports: dict[Rank, dict[str, float]] = {}
        self._before: dict[Rank, dict[str, float]] = {}
        self._restarts: dict[str, int] = {}
        self._refusals: dict[str, int] = {}
        self._unknown: set[str] = set()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def report(self, rank: Rank, counters: Mapping[str, float]) -> None:
        """Take over absolute values of this epoch from ``rank``; keys that it does not mention keep theirs."""
        self._reports.setdefault(rank, {}).update(counters)

    def next_epoch(self) -> None:
        """Ranks count from nothing again: what they have reported so far is added to what they will report."""
        self._before = {rank: self._values(rank) for rank in self._reports.keys() | self._before.keys()}
        self._reports.clear()

    def _values(self, rank: Rank) -> dict[str, float]:
        """What a rank has counted over all epochs. Everything that ranks report is a counter, or a part of one."""
        now, before = self._reports.get(rank, {}), self._before.get(rank, {})
        return {text: now.get(text, 0.0) + before.get(text, 0.0) for text in {**before, **now}}

    def total(self, name: str) -> float:
        """The sum of a counter over all ranks and labels of this agent."""
        return sum(
            value
            for reported in (self._reports, self._before)
            for values in reported.values()
            for text, value in values.items()
            if text == name or text.startswith(name + "{")
        )

    def restarted(self, cause: str) -> None:
        """Count one restart of this role's processes; ``cause`` is the name of an error class."""
        self._restarts[cause] = self._restarts.get(cause, 0) + 1

    def handshake_failed(self, field: str) -> None:
        """Count one refused handshake; ``field`` is the name of the field that differs."""
        self._refusals[field] = self._refusals.get(field, 0) + 1

    def render(self) -> bytes:
        """The body of ``/metrics``."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        status = self._status()
        agent = [(state.value, float(state == status.state)) for state in State]
        peers = [(peer.rank, peer.last_seen_s) for peer in status.peers]
        yield _gauge("afd_state", status.role, agent)
        yield _gauge("afd_epoch_info", status.role, [(status.epoch, 1.0)] if status.epoch else [])
        yield _gauge("afd_peer_last_seen_seconds", status.role, peers)
        yield _agent_counter("afd_restarts_total", status.role, self._restarts)
        yield _agent_counter("afd_handshake_failures_total", status.role, self._refusals)
        samples = self._samples()
        for family in FAMILIES.values():
            if family.source == "rank":
                yield _counter(family, samples) if family.kind == "counter" else _histogram(family, samples)

    def _samples(self) -> dict[str, list[tuple[Rank, dict[str, str], float]]]:
        """Reported values by sample name."""
        found: dict[str, list[tuple[Rank, dict[str, str], float]]] = {}
        for rank in sorted(self._reports.keys() | self._before.keys()):
            for text, value in self._values(rank).items():
                try:
                    name, labels = parse(text)
                    _check_sample(name, labels)
                except MisuseError as error:
                    if text not in self._unknown:
                        self._unknown.add(text)
                        log.warning("%s reports an unknown counter: %s", rank, error)
                    continue
                found.setdefault(name, []).append((rank, labels, value))
        return found


def _check_sample(sample: str, labels: Mapping[str, str]) -> None:
    """Raise :class:`MisuseError` unless a rank may report ``sample`` with these labels."""
    for suffix in ("", "_bucket", "_sum"):
        family = FAMILIES.get(sample.removesuffix(suffix)) if sample.endswith(suffix) else None
        if family is not None and family.source == "rank" and (family.kind == "histogram") == bool(suffix):
            expected = {*family.labels, "le"} if suffix == "_bucket" else set(family.labels)
            if expected == set(labels):
                return
    raise MisuseError(f"{sample} with labels {sorted(labels)} is not in the table of metrics")


def _gauge(name: str, role: str, values: list[tuple[str, float]]) -> Metric:
    family = FAMILIES[name]
    metric = GaugeMetricFamily(name, family.doc, labels=("role", *family.labels))
    for label, value in values:
        metric.add_metric((role, label), value)
    return metric


def _agent_counter(name: str, role: str, values: Mapping[str, int]) -> Metric:
    family = FAMILIES[name]
    metric = CounterMetricFamily(name, family.doc, labels=("role", *family.labels))
    for label, value in values.items():
        metric.add_metric((role, label), value)
    return metric


def _who(rank: Rank) -> tuple[str, str]:
    return (rank.role.value, str(rank))


def _counter(family: Family, samples: Mapping[str, list[tuple[Rank, dict[str, str], float]]]) -> Metric:
    metric = CounterMetricFamily(family.name, family.doc, labels=("role", "rank", *family.labels))
    for rank, labels, value in samples.get(family.name, ()):
        metric.add_metric((*_who(rank), *(labels[label] for label in family.labels)), value)
    return metric


def _histogram(family: Family, samples: Mapping[str, list[tuple[Rank, dict[str, str], float]]]) -> Metric:
    metric = HistogramMetricFamily(family.name, family.doc, labels=("role", "rank", *family.labels))
    buckets: dict[tuple[str, ...], list[tuple[str, float]]] = {}
    for rank, labels, value in samples.get(family.name + "_bucket", ()):
        who = (*_who(rank), *(labels[label] for label in family.labels))
        buckets.setdefault(who, []).append((labels["le"], value))
    for rank, labels, value in samples.get(family.name + "_sum", ()):
        who = (*_who(rank), *(labels[label] for label in family.labels))
        if who in buckets:
            metric.add_metric(who, buckets[who], value)
    return metric
