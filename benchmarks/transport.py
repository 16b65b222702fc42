# SPDX-License-Identifier: Apache-2.0
"""Round trips of a link between two processes, by transport and number of tokens.

One round trip is what one layer costs in transport: Attention sends its rows, FFN takes them and replies at once,
Attention has the reply. Links are used as the roles use them, in steps of 60 layers. All variants take turns inside one
run, so that their ratios mean something on a machine that others use too. "gloo" is the comparison: the same rows with
plain sends and receives of torch.distributed (a header tensor and the rows to FFN, the rows back), each process on all
cores.

    python benchmarks/transport.py [--tokens 1,32,256,2048] [--hidden 1024] [--rounds 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from afd.connectors.base import ConnectorSpec, Slot
from afd.connectors.camp2p import CAMP2pAFDConnector
from afd.connectors.collective.transport import CollectiveTransport
from afd.connectors.shm.transport import Helper, ShmTransport
from afd.control.messages import Step
from afd.launch.free_ports import free_port
from afd.testing.ranks import RankContext, run_ranks
from afd.topology import Rank, Role, Topology

A0 = Rank(Role.ATTENTION, 0)
TOPOLOGY = Topology(1, 1)
VARIANTS = ("c", "c, in place", "c, spin 20", "python", "collective", "collective, in place", "gloo")
LAYERS = tuple(range(60))
SECONDS = 0.5
"""Rough length of one measurement, after a warm-up."""

RunStep = Callable[[], list[float]]
"""Runs one step; on Attention it returns the time before its first and after each of its round trips."""


def connector(variant: str) -> CAMP2pAFDConnector:
    if variant.startswith("collective"):
        return CAMP2pAFDConnector(CollectiveTransport())
    helper: Helper = "python" if variant == "python" else "c"
    return CAMP2pAFDConnector(ShmTransport(helper))


def attention_end(
    spec: ConnectorSpec, context: RankContext, made: CAMP2pAFDConnector, tokens: int, in_place: bool
) -> Any:
    link = made.open_attention(spec, context.exchange)
    hidden = torch.randn(tokens, spec.hidden_size).to(spec.dtype)
    out = None if in_place else torch.empty_like(hidden)
    slots = [Slot(layer, 0) for layer in LAYERS]
    step = step_of(spec, tokens)

    def run_step() -> list[float]:
        times = [time.perf_counter()]
        link.begin(step)
        for slot in slots:
            link.send(slot, hidden)
            link.receive(slot, out)
            times.append(time.perf_counter())
        return times

    return link, run_step


def step_of(spec: ConnectorSpec, tokens: int) -> Step:
    return Step(epoch=spec.epoch, step=0, rank="A0", phase="eager", real=(tokens,), padded=(tokens,))


def ffn_end(spec: ConnectorSpec, context: RankContext, made: CAMP2pAFDConnector, tokens: int) -> Any:
    link = made.open_ffn(spec, context.exchange)
    reply = torch.randn(tokens, spec.hidden_size).to(spec.dtype)
    steps = {A0: step_of(spec, tokens)}

    def run_step() -> list[float]:
        for work in link.works(steps):
            link.reply(work, reply)
        return []

    return link, run_step


def gloo(context: RankContext, tokens: int, hidden_size: int, dtype: torch.dtype) -> Any:
    attention = context.rank == A0
    ports = context.exchange("port", free_port() if attention else 0)
    # Any: the stubs of torch.distributed leave out most of what is used here.
    dist: Any = torch.distributed
    store = dist.TCPStore("127.0.0.1", ports["A0"], 2, attention, timeout=datetime.timedelta(seconds=30))
    group = dist.ProcessGroupGloo(store, 1 if attention else 0, 2, datetime.timedelta(seconds=30))
    hidden, out = (torch.randn(tokens, hidden_size).to(dtype) for _ in range(2))
    header = torch.zeros(8, dtype=torch.int64)

    def attention_step() -> list[float]:
        times = [time.perf_counter()]
        for _ in LAYERS:
            group.send([header], 0, 0).wait()
            group.send([hidden], 0, 0).wait()
            group.recv([out], 0, 0).wait()
            times.append(time.perf_counter())
        return times

    def ffn_step() -> list[float]:
        for _ in LAYERS:
            group.recv([header], 1, 0).wait()
            group.recv([out], 1, 0).wait()
            group.send([hidden], 1, 0).wait()
        return []

    return (group, store), attention_step if attention else ffn_step


def measure(variant: str, tokens: int, hidden_size: int, result: str, context: RankContext) -> None:
    """One variant in one pair of processes. Attention writes its times in microseconds to ``result``."""
    torch.set_num_threads(1)
    dtype = torch.bfloat16
    attention = context.rank == A0
    kept, run_step = open_variant(variant, tokens, hidden_size, dtype, context)
    started = time.perf_counter()
    run_step()
    run_step()
    number = max(2, int(2 * SECONDS / (time.perf_counter() - started)))
    number = int(context.exchange("number", number)["A0"])
    trips: list[float] = []
    for _ in range(number):
        times = run_step()
        trips.extend(1e6 * (after - before) for before, after in itertools.pairwise(times))
    if attention:
        Path(result).write_text(json.dumps(trips))
    context.exchange("measured", None)
    del kept


def open_variant(
    variant: str, tokens: int, hidden_size: int, dtype: torch.dtype, context: RankContext
) -> tuple[Any, RunStep]:
    if variant == "gloo":
        pair: tuple[Any, RunStep] = gloo(context, tokens, hidden_size, dtype)
        return pair
    spec = ConnectorSpec(
        epoch=f"benchmark-{os.getppid():x}",
        topology=TOPOLOGY,
        rank=context.rank,
        hidden_size=hidden_size,
        dtype=dtype,
        max_tokens=tokens,
        layers=LAYERS,
        abort=context.abort,
        spin_us=20 if "spin" in variant else 0,
    )
    if context.rank == A0:
        pair = attention_end(spec, context, connector(variant), tokens, "in place" in variant)
    else:
        pair = ffn_end(spec, context, connector(variant), tokens)
    return pair


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def run(variants: Sequence[str], tokens: Sequence[int], hidden: int, rounds: int) -> list[dict[str, Any]]:
    times: dict[tuple[int, str], list[float]] = {}
    result = Path(f"/tmp/afd-transport-{os.getpid()}.json")
    for round_number in range(rounds):
        for count in tokens:
            for variant in variants:
                body = partial(measure, variant, count, hidden, str(result))
                run_ranks(TOPOLOGY, body, limit_s=60)
                times.setdefault((count, variant), []).extend(json.loads(result.read_text()))
                print(f"round {round_number + 1}/{rounds}: {count} tokens, {variant}", file=sys.stderr)
    result.unlink(missing_ok=True)
    return [
        {
            "tokens": count,
            "variant": variant,
            "round_trips": len(found),
            "p50_us": round(percentile(found, 0.50), 1),
            "p95_us": round(percentile(found, 0.95), 1),
            "gloo_over_this": round(percentile(times[count, "gloo"], 0.5) / percentile(found, 0.5), 1)
            if (count, "gloo") in times
            else None,
        }
        for (count, variant), found in times.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", default="1,32,256,2048")
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--variants", default=";".join(VARIANTS), help="separated by ;")
    parser.add_argument(
        "--json", metavar="FILE", help="write results here as well ('-': only JSON, to stdout)"
    )
    options = parser.parse_args()
    load = os.getloadavg()[0]
    rows = run(
        options.variants.split(";"),
        [int(count) for count in options.tokens.split(",")],
        options.hidden,
        options.rounds,
    )
    report = {
        "benchmark": "transport",
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load_before": round(load, 1),
        "hidden": options.hidden,
        "dtype": "bfloat16",
        "rows": rows,
    }
    if options.json:
        text = json.dumps(report, indent=2) + "\n"
        if options.json == "-":
            print(text, end="")
            return
        Path(options.json).write_text(text)
    print(
        f"{report['cores']} cores, load {report['load_before']} before, hidden {options.hidden} bfloat16, µs"
    )
    print(f"{'tokens':>7} {'variant':<21} {'p50':>9} {'p95':>9} {'gloo/this':>10}")
    for row in rows:
        print(
            f"{row['tokens']:>7} {row['variant']:<21} {row['p50_us']:>9} {row['p95_us']:>9} "
            f"{row['gloo_over_this'] or '':>10}"
        )


if __name__ == "__main__":
    main()
