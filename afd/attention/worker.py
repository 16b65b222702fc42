# SPDX-License-Identifier: Apache-2.0
"""vLLM's CPU worker with Attention's runners. Named by ``--worker-cls``; nothing else points here."""

from __future__ import annotations

import vllm.v1.worker.cpu.model_runner as native_v2
from vllm.v1.worker import cpu_worker as native

from afd.attention.runners import AttentionRunnerV1, AttentionRunnerV2
from afd.rebind import rebind


class AttentionWorker(native.CPUWorker):
    """Both runner versions are bound for the moment in which the worker constructs its runner."""

    def init_device(self) -> None:
        with (
            rebind(native, CPUModelRunner=AttentionRunnerV1),
            rebind(native_v2, CPUModelRunner=AttentionRunnerV2),
        ):
            super().init_device()
