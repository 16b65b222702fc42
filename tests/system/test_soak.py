# SPDX-License-Identifier: Apache-2.0
"""Many requests with random arrivals, lengths and departures; then a long silence; then right at once.

``--soak-layout``, ``--soak-requests`` and ``--soak-idle`` choose how much; the full run is 2A2F, 2000 requests and 600
seconds. ``--soak-figures FILE`` keeps the figures.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path

import pytest

from afd.testing.compare import compare_all
from afd.testing.completions import ask_all
from afd.testing.stack import metrics
from afd.topology import Topology
from tests.system.conftest import Groups, Natives, layout
from tests.system.interview import Script, crossed, reasons, report, start, stop
from tests.system.rig import SERVED, Traces
from tests.system.soak import Visitors, Watch, busy_seconds, probes, quiet

LAYERS = 4
ROUNDS = 10
"""How often the group is looked at. The second half begins with the middle one."""
RSS_BYTES = 16 << 20
"""How much more memory a process may have at any later look than in the middle. Allocators keep arenas of some MiB and
vLLM's metrics and caches of Python objects still grow a little; a row of hidden states (1 KiB) that is kept for each
token and layer would be ten times that after a thousand requests, a kilobyte per request would not be seen."""
ANSWER_S = 20.0
"""How long the first answer after the silence may take, on a machine that does other work, too."""


def topology_of(text: str) -> Topology:
    """ "2A1F" as two counts."""
    found = re.fullmatch(r"(\d+)A(\d+)F", text)
    assert found is not None, f"--soak-layout is a text such as 2A1F, not {text!r}"
    return Topology(int(found[1]), int(found[2]))


@pytest.mark.timeout(4 * 3600)
def test_thousands_of_random_requests_leave_nothing_behind_and_a_group_that_was_idle_answers_at_once(
    request: pytest.FixtureRequest, groups: Groups, natives: Natives
) -> None:
    option = request.config.getoption
    requests, idle_s = int(option("--soak-requests")), float(option("--soak-idle"))
    chosen = layout(topology=topology_of(option("--soak-layout")))
    known = probes()
    native = {a.name: a for a in natives(chosen, Script(tuple(known))).answers}

    group = start(groups(chosen))
    visitors, watch = Visitors(group.attention.api_url, known), Watch(group)
    traces = Traces.of(group)
    begun = time.monotonic()
    for number in range(ROUNDS):
        share = requests * (number + 1) // ROUNDS - requests * number // ROUNDS
        asyncio.run(visitors.come(share))
        asyncio.run(quiet(group.attention.api_url))
        watch.look()
    lasted = time.monotonic() - begun
    traffic = visitors.traffic
    generated = int(asyncio.run(metrics(group.attention.api_url))["vllm:generation_tokens_total"])

    busy = busy_seconds(group)
    time.sleep(idle_s)
    idle_cpu = (busy_seconds(group) - busy) / idle_s if idle_s else 0.0
    asked = time.monotonic()
    (first,) = asyncio.run(
        ask_all(group.attention.api_url, SERVED, known[:1], concurrency=1, timeout_s=ANSWER_S)
    )
    waited = time.monotonic() - asked
    rest = asyncio.run(ask_all(group.attention.api_url, SERVED, known[1:], concurrency=8, timeout_s=60))
    asyncio.run(quiet(group.attention.api_url))
    watch.look()
    tokens = crossed(group, LAYERS)
    stop(group)

    questions, answers = [q for q, _ in traffic.pairs], [a for _, a in traffic.pairs]
    during = compare_all(questions, [native[q.name] for q in questions], answers)
    after = compare_all(known, [native[q.name] for q in known], [first, *rest])
    figures = {
        "layout": str(chosen),
        "requests": traffic.asked,
        "answered": traffic.answered,
        "clients that left": traffic.left,
        "seconds": round(lasted, 1),
        "generated tokens": generated,
        "compared with native": len(during.verdicts) + len(after.verdicts),
        "failures": len(during.failures) + len(after.failures),
        "idle seconds": idle_s,
        "cores used while idle": round(idle_cpu, 3),
        "seconds to the first answer after it": round(waited, 3),
        "tokens sent": tokens.sent,
        "rows computed": tokens.computed,
        "largest growth in the second half, MiB": round(watch.growth(), 1),
    }
    report(f"soak, {chosen}", during)
    print("\n".join(f"  {name}: {value}" for name, value in figures.items()))
    print(watch.table())
    if (path := option("--soak-figures")) is not None:
        held = [{name: vars(found) for name, found in sample.items()} for sample in watch.samples]
        Path(path).write_text(json.dumps({**figures, "samples": held}, indent=1) + "\n", encoding="utf-8")

    assert traffic.asked == requests == traffic.answered + traffic.left
    assert traffic.wrong == []
    assert traffic.left > 0, "no client left early"
    assert during.agrees, reasons(during)
    assert after.agrees, reasons(after)
    assert watch.grown(RSS_BYTES) == []
    assert tokens.computed == tokens.sent * LAYERS > 0
    assert waited < ANSWER_S
    assert traces.left_after(3.0) == []
