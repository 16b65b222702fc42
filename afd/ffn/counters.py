# SPDX-License-Identifier: Apache-2.0
"""What an FFN rank counts, bound once so that the loop only adds."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from afd.connectors.base import LinkCounters
from afd.control.messages import Step
from afd.observe.counters import Counter, Counters


class FFNCounters:
    """Counted by the loop's thread; :meth:`snapshot` may be called from another."""

    def __init__(self) -> None:
        self._all = Counters()
        self._steps: dict[str, Counter] = {}
        self._real = self._all.counter("afd_tokens_total", kind="real")
        self._padded = self._all.counter("afd_tokens_total", kind="padded")
        self._computed = self._all.counter("afd_ffn_tokens_total")
        self._sent = self._all.counter("afd_hop_bytes_total", direction="sent")
        self._received = self._all.counter("afd_hop_bytes_total", direction="received")
        self._step_seconds = self._all.histogram("afd_step_seconds")
        self._wait_seconds = self._all.histogram("afd_wait_seconds", peer="attention")
        self.layer_seconds = self._all.histogram("afd_ffn_seconds")
        self._waited = 0.0

    def add_step(self, steps: Collection[Step], computed: int, seconds: float, link: LinkCounters) -> None:
        """Count one step of all Attention ranks; its phase is that of the first. ``seconds`` is its duration,
        ``computed`` the rows that layers computed."""
        phase = next(iter(steps)).phase
        if phase not in self._steps:
            self._steps[phase] = self._all.counter("afd_steps_total", phase=phase)
        self._steps[phase].add()
        self._real.add(sum(sum(step.real) for step in steps))
        self._padded.add(sum(sum(step.padded) for step in steps))
        self._computed.add(computed)
        self._step_seconds.observe(seconds)
        self._wait_seconds.observe(link.wait_s - self._waited)
        self._waited = link.wait_s
        self._sent.value = link.sent_bytes
        self._received.value = link.received_bytes

    def snapshot(self) -> Mapping[str, float]:
        """All values, for a report."""
        return self._all.snapshot()
