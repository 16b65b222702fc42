# SPDX-License-Identifier: Apache-2.0
"""A record for tests to start from."""

from __future__ import annotations

from typing import Any

import msgspec

from afd.support import records
from afd.support.records import Cleanup, Comparison, Counts, Record


def record(**changes: Any) -> Record:
    """A record of a run that passed."""
    return msgspec.structs.replace(
        Record(
            kind="smoke",
            name="cpu-v2-1a1f",
            date="2026-01-02T03:04:05Z",
            duration_s=12.5,
            commits=records.Commits(afd="0" * 40, dirty=False, vllm="1" * 40, vllm_ascend="2" * 40),
            stack=records.Stack(versions={"torch": "1"}, digest="0" * 16),
            model=records.Model(
                name="builtin:tiny-deepseek-v2",
                family="deepseek",
                architecture="DeepseekV2ForCausalLM",
                dtype="float32",
                quantisation="none",
                config_digest="0" * 16,
            ),
            layout=records.Layout(num_attention=1, num_ffn=1),
            devices=records.Devices(kind="cpu", count=2, architecture="x86_64", memory_bytes=1),
            setup=records.Setup(
                platform="cpu",
                connector="CAMP2pAFDConnector",
                transport="shm",
                runner="v2",
                mode="eager",
                gate="ffn",
                on_loss="exit",
                ubatch=records.Ubatch(num_ubatches=1, decode_token_threshold=32, prefill_token_threshold=512),
            ),
            counts=Counts(passed=3, failed=0, errors=0, skipped=0),
            cleanup=Cleanup(processes=0, segments=0),
            comparisons=(Comparison(subject="afd", reference="native", tokens=10, equal=10, passed=True),),
        ),
        **changes,
    )
