# SPDX-License-Identifier: Apache-2.0
"""vLLM's CPU worker with Attention's runners. Named by ``--worker-cls``; nothing else points here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import vllm.v1.worker.cpu.model_runner as native_v2
from vllm.config import VllmConfig
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.worker import cpu_worker as native

from afd.attention.peer import Peer, attention_rank_of, report_failure
from afd.attention.runners import AttentionRunnerV1, AttentionRunnerV2
from afd.attention.unpinned import Unpinned
from afd.launch.streams import name_rank
from afd.rebind import rebind


class AttentionWorker(native.CPUWorker):
    """Both runner versions are bound for the moment in which the worker constructs its runner.

    What this process raises, from its first moment on, ends the epoch as its cause: later it would only be seen that
    vLLM's engine is gone.
    """

    afd_runner_v1: type[AttentionRunnerV1] = AttentionRunnerV1
    afd_runner_v2: type[AttentionRunnerV2] = AttentionRunnerV2
    afd_peer: Peer | None = None

    def __init__(
        self, vllm_config: VllmConfig, local_rank: int, rank: int, *args: Any, **kwargs: Any
    ) -> None:
        self.afd_rank = attention_rank_of(vllm_config, rank)
        name_rank(str(self.afd_rank))
        with self._afd_blame():
            super().__init__(vllm_config, local_rank, rank, *args, **kwargs)

    def init_device(self) -> None:
        with (
            self._afd_blame(),
            rebind(native, CPUModelRunner=self.afd_runner_v1),
            rebind(native_v2, CPUModelRunner=self.afd_runner_v2),
        ):
            super().init_device()

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        with self._afd_blame():
            super().load_model(*args, **kwargs)
        self.afd_peer = self.model_runner.afd_peer

    def compile_or_warm_up_model(self) -> Any:
        """Every rank of every role meets every other one in a step before a request does. vLLM seeds its generators
        after that."""
        with self._afd_blame():
            self.model_runner.afd_warm_up()
            return super().compile_or_warm_up_model()

    def execute_model(self, scheduler_output: SchedulerOutput) -> Any:
        with self._afd_blame():
            return super().execute_model(scheduler_output)

    def sample_tokens(self, grammar_output: Any) -> Any:
        with self._afd_blame(), Unpinned() if grammar_output is not None else nullcontext():
            return super().sample_tokens(grammar_output)

    @contextmanager
    def _afd_blame(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if self.afd_peer is not None:
                self.afd_peer.blame(error)
            else:
                report_failure(self.afd_rank, error)
            raise
