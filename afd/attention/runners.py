# SPDX-License-Identifier: Apache-2.0
"""The two CPU runners with Attention's mixin in front: what differs is only how a dummy step is recognised."""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.worker.cpu.model_runner import CPUModelRunner as CPUModelRunnerV2
from vllm.v1.worker.cpu_model_runner import CPUModelRunner as CPUModelRunnerV1

from afd.attention.mixin import AttentionMixin
from afd.control.messages import Phase


class AttentionRunnerV2(AttentionMixin, CPUModelRunnerV2):
    """ModelRunner V2: every forward, dummy or real, passes ``execute_model``."""

    def execute_model(
        self,
        scheduler_output: SchedulerOutput,
        intermediate_tensors: Any = None,
        dummy_run: bool = False,
        skip_attn_for_dummy_run: bool = False,
        is_profile: bool = False,
    ) -> Any:
        phase: Phase = "profile" if is_profile else self.afd_dummy_phase if dummy_run else "eager"
        real = 0 if dummy_run else scheduler_output.total_num_scheduled_tokens
        with self.afd_step(phase, real):
            return super().execute_model(
                scheduler_output, intermediate_tensors, dummy_run, skip_attn_for_dummy_run, is_profile
            )


class AttentionRunnerV1(AttentionMixin, CPUModelRunnerV1):
    """ModelRunner V1: dummy forwards have a method of their own."""

    def execute_model(self, scheduler_output: SchedulerOutput, intermediate_tensors: Any = None) -> Any:
        with self.afd_step("eager", scheduler_output.total_num_scheduled_tokens):
            return super().execute_model(scheduler_output, intermediate_tensors)

    def _dummy_run(self, num_tokens: int, *args: Any, is_profile: bool = False, **kwargs: Any) -> Any:
        with self.afd_step("profile" if is_profile else self.afd_dummy_phase, 0):
            return super()._dummy_run(num_tokens, *args, is_profile=is_profile, **kwargs)
