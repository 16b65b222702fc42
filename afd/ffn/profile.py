# SPDX-License-Identifier: Apache-2.0
"""Profiles an FFN rank when its agent says so, with the settings of vLLM's ``--profiler-config``.

The keys that say how many of Attention's iterations to wait for, to skip and to record are not heeded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from torch.profiler import ProfilerActivity, profile, tensorboard_trace_handler
from vllm.config import ProfilerConfig

from afd.control.messages import PROFILE_START, PROFILE_STOP, Command, Step
from afd.control.session import RankSession
from afd.topology import Rank

log = logging.getLogger(__name__)

POLL_S = 0.25
"""How often a rank without a step looks for a command. Only one that can be profiled does."""
Steps = Mapping[Rank, Step]


class Profiling:
    """A rank's profiler. All of it runs in the thread that computes: the profiler records the thread that starts it."""

    def __init__(self, config: ProfilerConfig, session: RankSession, rank: Rank) -> None:
        self._config, self._session, self._rank = config, session, rank
        self._directory = Path(config.torch_profiler_dir)
        self._running: profile | None = None

    @property
    def configured(self) -> bool:
        """Whether ``--profiler-config`` asks for torch's profiler, the only one that FFN has."""
        return bool(self._config.profiler == "torch")

    def between(self, following: Callable[[float | None], Steps | None]) -> Callable[[], Steps | None]:
        """``following`` (it waits for the next step, at most that many seconds), with commands obeyed between steps."""

        def steps() -> Steps | None:
            if not self.configured:
                return following(None)
            while True:
                while (command := self._session.next_command()) is not None:
                    self._obey(command)
                found = following(POLL_S)
                if found is None or found:
                    return found

        return steps

    def close(self) -> None:
        """End a profile that runs; its trace is written. Twice is fine."""
        if self._running is not None:
            log.info("%s", self._stop())

    def _obey(self, command: Command) -> None:
        try:
            done, text = True, {PROFILE_START: self._start, PROFILE_STOP: self._stop}[command.name]()
        except Exception as error:  # a profile is not worth the epoch; the operator hears of it
            log.exception("%s: %s", self._rank, command.name)
            done, text = False, repr(error)
        self._session.answer(command, done, text)

    def _start(self) -> str:
        if self._running is not None:
            return "runs already"
        config = self._config
        handler = tensorboard_trace_handler(
            str(self._directory), worker_name=self._worker, use_gzip=config.torch_profiler_use_gzip
        )
        running = profile(
            activities=[ProfilerActivity.CPU],
            record_shapes=config.torch_profiler_record_shapes,
            profile_memory=config.torch_profiler_with_memory,
            with_stack=config.torch_profiler_with_stack,
            with_flops=config.torch_profiler_with_flops,
            on_trace_ready=handler,
        )
        running.start()
        self._running = running
        return f"its trace will be in {self._directory}"

    def _stop(self) -> str:
        if self._running is None:
            return "was not running"
        before = self._traces()
        running, self._running = self._running, None
        running.stop()
        written = sorted(self._traces() - before)
        return ", ".join(map(str, written)) or f"no trace in {self._directory}"

    @property
    def _worker(self) -> str:
        return f"afd-{self._rank}"

    def _traces(self) -> set[Path]:
        return set(self._directory.glob(f"{self._worker}.*"))
