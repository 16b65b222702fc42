# SPDX-License-Identifier: Apache-2.0
"""What the log of an agent says about times, states and causes."""

from __future__ import annotations

import time

from tests.chaos.saying import Said

LOG = """\
{0} afd ffn INFO agent port: 127.0.0.1:9300
{0} afd ffn INFO state: rendezvous
(F0) INFO 11-30 10:01:41 [default_loader.py:430] state: ready
{1} afd ffn INFO state: loading
{2} afd ffn ERROR epoch a1b2 ends: A0: its agent (pid 7 on h) gave no sign of life for 2.0 s
{2} afd ffn INFO state: failed
"""


def said(now: float, *ages: float) -> Said:
    def stamp(age: float) -> str:
        at = now - age
        return time.strftime("%H:%M:%S", time.localtime(at)) + f".{int(at % 1 * 1000):03d}"

    return Said.of(LOG.format(*map(stamp, ages)), now)


def test_states_and_causes_have_the_times_of_their_lines() -> None:
    now = time.time()
    found = said(now, 9.0, 5.0, 2.0)
    assert abs((found.state("loading") or 0) - (now - 5.0)) < 0.002
    assert found.state("ready") is None
    at, words = found.cause(now - 3.0) or (0.0, "")
    assert words == "A0: its agent (pid 7 on h) gave no sign of life for 2.0 s"
    assert abs(at - (now - 2.0)) < 0.002


def test_a_state_lasts_until_the_next_one() -> None:
    now = time.time()
    found = said(now, 9.0, 5.0, 2.0)
    assert [found.state_at(now - age) for age in (10.0, 6.0, 3.0, 1.0)] == [
        *("starting", "rendezvous", "loading", "failed"),
    ]


def test_a_cause_from_before_the_fault_is_not_taken_for_its_effect() -> None:
    now = time.time()
    assert said(now, 9.0, 5.0, 2.0).cause(now - 1.0) is None


def test_lines_from_before_midnight_are_of_the_day_before() -> None:
    midnight = time.mktime((2026, 11, 30, 0, 0, 0, 0, 0, -1))
    found = said(midnight + 1.0, 9.0, 5.0, 0.5)
    assert abs((found.state("loading") or 0) - (midnight - 4.0)) < 0.002
    assert abs((found.state("failed") or 0) - (midnight + 0.5)) < 0.002
