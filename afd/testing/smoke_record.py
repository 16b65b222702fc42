# SPDX-License-Identifier: Apache-2.0
"""The record of a run that compared tokens with native vLLM, written from its outcome, failures included."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Literal

from afd.agent.model_files import inspect, resolve
from afd.config import AFDConfig
from afd.families import family_of
from afd.images.manifest import Manifest
from afd.support.records import (
    Cleanup,
    Comparison,
    Counts,
    Model,
    Reason,
    Record,
    Setup,
    Ubatch,
    write,
)
from afd.support.records import Layout as RecordLayout
from afd.testing.records import commits, commits_of, cpu_devices, now, scrub, stack, stack_of
from afd.testing.smoke import Outcome
from afd.testing.stack import Layout


def write_record(
    layout: Layout,
    outcome: Outcome,
    started: float,
    directory: Path,
    *,
    kind: Literal["smoke", "system", "image"] = "smoke",
    suffix: str = "",
    image: Manifest | None = None,
) -> Path:
    """Write the record of a run that began at ``started`` (monotonic seconds) and return its path.

    ``suffix`` is added to its name. ``image`` is the image that the roles ran in, for whoever watched from outside.
    """
    found = inspect(resolve(layout.model))
    config = AFDConfig()
    verdicts = outcome.comparison.verdicts
    dtype = layout.vllm_args[layout.vllm_args.index("--dtype") + 1]
    reasons = [
        Reason(test=verdict.name, outcome="failed", reason=scrub(verdict.reason))
        for verdict in outcome.comparison.failures
    ]
    reasons += [
        Reason(test=f"problem {number}", outcome="failed", reason=scrub(text))
        for number, text in enumerate(outcome.problems, 1)
    ]
    record = Record(
        kind=kind,
        name="-".join(filter(None, (_name(layout, dtype, outcome.transport), suffix))),
        date=now(),
        duration_s=round(time.monotonic() - started, 1),
        commits=commits(Path(__file__).resolve().parents[2]) if image is None else commits_of(image),
        stack=stack() if image is None else stack_of(image),
        model=Model(
            name=layout.model if layout.model.startswith("builtin:") else Path(layout.model).name,
            family=family_of(found.architecture).name,
            architecture=found.architecture,
            dtype=dtype,
            quantisation=found.quantisation,
            config_digest=found.config_digest,
        ),
        layout=RecordLayout(
            num_attention=layout.topology.num_attention, num_ffn=layout.topology.num_ffn, tp=layout.tp
        ),
        devices=cpu_devices(),
        setup=Setup(
            platform="cpu",
            connector=config.connector,
            transport=outcome.transport or config.transport,
            runner="v1" if layout.runner == "v1" else "v2",
            mode="eager",
            gate="ffn",
            on_loss="exit",
            ubatch=Ubatch(
                num_ubatches=config.ubatch.num_ubatches,
                decode_token_threshold=config.ubatch.decode_token_threshold,
                prefill_token_threshold=config.ubatch.prefill_token_threshold,
            ),
        ),
        counts=Counts(
            passed=sum(verdict.agrees for verdict in verdicts) + len(outcome.held),
            failed=len(reasons),
            errors=0,
            skipped=0,
        ),
        reasons=tuple(reasons),
        cleanup=Cleanup(processes=outcome.left_processes, segments=outcome.left_segments),
        comparisons=(
            Comparison(
                subject="tokens",
                reference="native",
                tokens=outcome.comparison.tokens,
                equal=sum(
                    verdict.tokens if verdict.agrees and not verdict.tie else verdict.position
                    for verdict in verdicts
                ),
                near_ties=outcome.comparison.ties,
                max_logprob_difference=outcome.comparison.max_logprob_error,
                passed=outcome.comparison.agrees,
            ),
        )
        if verdicts
        else (),
    )
    return write(record, directory)


def _name(layout: Layout, dtype: str, transport: str) -> str:
    model = Path(layout.model.rpartition(":")[2]).name
    words = f"{model[:80]} {layout} {layout.runner} {dtype}"
    if transport not in ("", "shm"):
        words += f" {transport}"
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")
