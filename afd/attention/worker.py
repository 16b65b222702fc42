# SPDX-License-Identifier: Apache-2.0
"""vLLM's CPU worker with Attention's runners. Named by ``--worker-cls``; nothing else points here."""

from __future__ import annotations

import vllm.v1.worker.cpu.model_runner as native_v2
from vllm.v1.worker import cpu_worker as native

from afd.attention.runners import AttentionRunnerV1, AttentionRunnerV2
from afd.rebind import rebind


class AttentionWorker(native.CPUWorker):
    """Both runner versions are bound for the moment in which the worker constructs its runner."""

    afd_runner_v1: type[AttentionRunnerV1] = AttentionRunnerV1
    afd_runner_v2: type[AttentionRunnerV2] = AttentionRunnerV2

    def init_device(self) -> None:
        with (
            rebind(native, CPUModelRunner=self.afd_runner_v1),
            rebind(native_v2, CPUModelRunner=self.afd_runner_v2),
        ):
            super().init_device()
