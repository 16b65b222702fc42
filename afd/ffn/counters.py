# SPDX-License-Identifier: Apache-2.0
"""What an FFN rank counts besides what every rank does."""

from __future__ import annotations

from collections.abc import Collection

from afd.connectors.base import LinkCounters
from afd.connectors.step_counters import StepCounters
from afd.control.messages import Step
from afd.topology import Role


class FFNCounters(StepCounters):
    """Counted by the loop's thread."""

    def __init__(self) -> None:
        super().__init__(Role.ATTENTION)
        self._computed = self._all.counter("afd_ffn_tokens_total")
        self.layer_seconds = self._all.histogram("afd_ffn_seconds")

    def add_steps(self, steps: Collection[Step], computed: int, seconds: float, link: LinkCounters) -> None:
        """Count one step of all Attention ranks; its phase is that of the first. ``seconds`` is its duration,
        ``computed`` the rows that layers computed."""
        real = sum(sum(step.real) for step in steps)
        padded = sum(sum(step.padded) for step in steps)
        self.add(next(iter(steps)).phase, real, padded, seconds, link)
        self._computed.add(computed)
