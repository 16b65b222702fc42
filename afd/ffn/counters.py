# SPDX-License-Identifier: Apache-2.0
"""What an FFN rank counts besides what every rank does."""

from __future__ import annotations

from collections.abc import Mapping

from afd.connectors.base import ConnectorSpec, LinkCounters
from afd.connectors.step_counters import StepCounters
from afd.control.messages import Step
from afd.ffn.rows import served_rows
from afd.topology import Rank, Role


class FFNCounters(StepCounters):
    """Counted by the loop's thread. A rank counts the rows of the Attention ranks that it serves, although it may
    compute parts of others, too: so each row counts once in the sum over FFN ranks."""

    def __init__(self, spec: ConnectorSpec) -> None:
        super().__init__(Role.ATTENTION)
        self._spec = spec
        self._computed = self._all.counter("afd_ffn_tokens_total")
        self.layer_seconds = self._all.histogram("afd_ffn_seconds")

    def add_steps(
        self, steps: Mapping[Rank, Step], computed: int, seconds: float, link: LinkCounters
    ) -> None:
        """Count one step; its phase is that of the first Attention rank. ``seconds`` is its duration, ``computed`` the
        rows that were replied to, over all layers."""
        padded, real = served_rows(self._spec, steps)
        self.add(next(iter(steps.values())).phase, real, padded, seconds, link)
        self._computed.add(computed)
