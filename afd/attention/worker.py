# SPDX-License-Identifier: Apache-2.0
"""vLLM's CPU worker with Attention's runners. Named by ``--worker-cls``; nothing else points here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import vllm.v1.worker.cpu.model_runner as native_v2
from vllm.v1.core.sched.output import SchedulerOutput
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

    def execute_model(self, scheduler_output: SchedulerOutput) -> Any:
        with self._afd_blame():
            return super().execute_model(scheduler_output)

    def sample_tokens(self, grammar_output: Any) -> Any:
        with self._afd_blame():
            return super().sample_tokens(grammar_output)

    @contextmanager
    def _afd_blame(self) -> Iterator[None]:
        """What a step raises outside the forward, while it prepares or samples, ends the epoch as its cause, too."""
        try:
            yield
        except BaseException as error:
            runner: AttentionRunnerV1 | AttentionRunnerV2 = self.model_runner
            if runner.afd_peer is not None:
                runner.afd_peer.blame(error)
            raise
