# SPDX-License-Identifier: Apache-2.0
"""What a rank counts arrives in Prometheus' format under the names of the table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from afd.errors import MisuseError
from afd.observe.counters import BUCKETS, FAMILIES, Counters, key, parse
from afd.observe.metrics import Metrics
from afd.topology import Rank
from tests.unit.observe.samples import status

F0, F1 = Rank.parse("F0"), Rank.parse("F1")
DESIGN = {
    "afd_state": ("state",),
    "afd_epoch_info": ("epoch",),
    "afd_steps_total": ("phase",),
    "afd_step_seconds": (),
    "afd_wait_seconds": ("peer",),
    "afd_ffn_seconds": (),
    "afd_hop_bytes_total": ("direction",),
    "afd_tokens_total": ("kind",),
    "afd_ffn_tokens_total": (),
    "afd_graph_replays_total": (),
    "afd_ubatched_steps_total": (),
    "afd_peer_last_seen_seconds": ("peer",),
    "afd_restarts_total": ("cause",),
    "afd_handshake_failures_total": ("field",),
}


def scrape(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(metrics.render().decode())
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for f in families for s in f.samples}


def test_the_table_has_the_metrics_of_the_contract() -> None:
    assert {name: family.labels for name, family in FAMILIES.items()} == DESIGN


def test_every_metric_is_served_with_its_type_before_anything_happened() -> None:
    text = Metrics(status).render().decode()
    for family in FAMILIES.values():
        assert f"# TYPE {family.name} {family.kind}" in text


def test_what_two_ranks_count_is_served_with_their_names() -> None:
    metrics = Metrics(status)
    for rank, amount in ((F0, 3), (F1, 5)):
        counters = Counters()
        counters.counter("afd_tokens_total", kind="real").add(amount)
        counters.counter("afd_graph_replays_total").add()
        metrics.report(rank, counters.snapshot())
    found = scrape(metrics)
    assert found["afd_tokens_total", (("kind", "real"), ("rank", "F1"), ("role", "ffn"))] == 5
    assert found["afd_graph_replays_total", (("rank", "F0"), ("role", "ffn"))] == 1
    assert metrics.total("afd_tokens_total") == 8


def test_reports_are_absolute_so_a_lost_one_loses_nothing() -> None:
    metrics, counters = Metrics(status), Counters()
    steps = counters.counter("afd_steps_total", phase="eager")
    for _ in range(10):
        steps.add()
    metrics.report(F0, counters.snapshot())
    metrics.report(F0, counters.snapshot())
    assert metrics.total("afd_steps_total") == 10


@given(st.lists(st.floats(0, 100), max_size=30))
def test_a_histogram_has_cumulative_buckets_sum_and_count(seconds: list[float]) -> None:
    metrics, counters = Metrics(status), Counters()
    wait = counters.histogram("afd_wait_seconds", peer="A0")
    for value in seconds:
        wait.observe(value)
    metrics.report(F0, counters.snapshot())
    found = scrape(metrics)
    base = (("peer", "A0"), ("rank", "F0"), ("role", "ffn"))
    for bound in BUCKETS:
        labels = tuple(sorted((*base, ("le", repr(bound)))))
        assert found["afd_wait_seconds_bucket", labels] == sum(value <= bound for value in seconds)
    assert found["afd_wait_seconds_count", base] == len(seconds)
    assert found["afd_wait_seconds_sum", base] == pytest.approx(sum(seconds))


def test_state_epoch_peers_and_the_agents_own_counters_are_served() -> None:
    metrics = Metrics(status)
    metrics.restarted("PeerLostError")
    metrics.handshake_failed("dtype")
    metrics.handshake_failed("dtype")
    found = scrape(metrics)
    assert found["afd_state", (("role", "ffn"), ("state", "ready"))] == 1
    assert found["afd_state", (("role", "ffn"), ("state", "failed"))] == 0
    assert found["afd_epoch_info", (("epoch", "abc"), ("role", "ffn"))] == 1
    assert found["afd_peer_last_seen_seconds", (("peer", "A0"), ("role", "ffn"))] == 0.25
    assert found["afd_restarts_total", (("cause", "PeerLostError"), ("role", "ffn"))] == 1
    assert found["afd_handshake_failures_total", (("field", "dtype"), ("role", "ffn"))] == 2


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("afd_stesp_total", {"phase": "eager"}),
        ("afd_steps_total", {}),
        ("afd_steps_total", {"phase": "eager", "rank": "F0"}),
        ("afd_step_seconds", {}),
        ("afd_state", {"state": "ready"}),
        ("afd_restarts_total", {"cause": "x"}),
        ("afd_steps_total", {"phase": "a,b"}),
    ],
)
def test_a_rank_cannot_count_what_is_not_in_the_table(name: str, labels: dict[str, str]) -> None:
    with pytest.raises(MisuseError, match="afd_"):
        Counters().counter(name, **labels)


def test_unknown_keys_in_a_report_are_left_out_and_the_rest_is_served() -> None:
    metrics = Metrics(status)
    for text in ("afd_nonsense_total", "afd_state{state=ready}", "Not a key", "afd_steps_total{phase}"):
        metrics.report(F0, {text: 1.0})
    metrics.report(F0, {"afd_steps_total{phase=eager}": 2.0})
    assert ("afd_steps_total", (("phase", "eager"), ("rank", "F0"), ("role", "ffn"))) in scrape(metrics)
    assert b"nonsense" not in metrics.render()


@given(
    st.dictionaries(
        st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.from_regex(r"[^,={}\n]{0,8}", fullmatch=True)
    )
)
def test_keys_are_read_back(labels: dict[str, str]) -> None:
    assert parse(key("afd_x", labels)) == ("afd_x", labels)
