# SPDX-License-Identifier: Apache-2.0
"""What every rank counts."""

from __future__ import annotations

from afd.connectors.base import LinkCounters
from afd.connectors.step_counters import StepCounters
from afd.topology import Role


def test_steps_tokens_bytes_and_waits_are_counted() -> None:
    counters, link = StepCounters(Role.FFN), LinkCounters()
    counters.follow(lambda: link)
    link.sent_bytes, link.received_bytes, link.wait_s = 100, 90, 0.02
    counters.add("profile", 0, 64, 0.5, link)
    link.sent_bytes, link.received_bytes, link.wait_s = 150, 140, 0.05
    counters.add("eager", 3, 4, 0.1, link)
    found = counters.snapshot()
    assert found["afd_steps_total{phase=profile}"] == found["afd_steps_total{phase=eager}"] == 1
    assert (found["afd_tokens_total{kind=real}"], found["afd_tokens_total{kind=padded}"]) == (3, 68)
    assert found["afd_hop_bytes_total{direction=sent}"] == 150
    assert found["afd_hop_bytes_total{direction=received}"] == 140
    assert found["afd_step_seconds_sum"] == 0.6
    assert round(found["afd_wait_seconds_sum{peer=ffn}"], 9) == 0.05


def test_a_rank_that_has_done_nothing_reports_zeros() -> None:
    assert set(StepCounters(Role.FFN).snapshot().values()) == {0}


def test_what_crosses_is_seen_while_the_step_goes_on() -> None:
    counters, link = StepCounters(Role.FFN), LinkCounters()
    counters.follow(lambda: link)
    link.sent_bytes = 10
    assert counters.snapshot()["afd_hop_bytes_total{direction=sent}"] == 10
    assert counters.snapshot()["afd_step_seconds_sum"] == 0
