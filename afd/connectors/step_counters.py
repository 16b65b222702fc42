# SPDX-License-Identifier: Apache-2.0
"""What a rank of either role counts in every step, bound once so that a step only adds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from afd.connectors.base import LinkCounters
from afd.control.messages import Phase
from afd.observe.counters import Counter, Counters
from afd.topology import Role


class StepCounters:
    """Counted by the thread that steps; :meth:`snapshot` may be called from another."""

    def __init__(self, peer: Role) -> None:
        """``peer`` is the role that this rank waits for."""
        self._all = Counters()
        self._steps: dict[str, Counter] = {}
        self._real = self._all.counter("afd_tokens_total", kind="real")
        self._padded = self._all.counter("afd_tokens_total", kind="padded")
        self._sent = self._all.counter("afd_hop_bytes_total", direction="sent")
        self._received = self._all.counter("afd_hop_bytes_total", direction="received")
        self._step_seconds = self._all.histogram("afd_step_seconds")
        self._wait_seconds = self._all.histogram("afd_wait_seconds", peer=str(peer))
        self._waited = 0.0
        self._link: Callable[[], LinkCounters] = LinkCounters

    def follow(self, link: Callable[[], LinkCounters]) -> None:
        """Count what crosses ``link`` as it crosses, and not only when the step is over."""
        self._link = link

    def add(self, phase: Phase, real: int, padded: int, seconds: float, link: LinkCounters) -> None:
        """Count one step of ``seconds``: ``padded`` rows, of which ``real`` are tokens.

        ``link`` counts since it was opened.
        """
        if phase not in self._steps:
            self._steps[phase] = self._all.counter("afd_steps_total", phase=phase)
        self._steps[phase].add()
        self._real.add(real)
        self._padded.add(padded)
        self._step_seconds.observe(seconds)
        self._wait_seconds.observe(link.wait_s - self._waited)
        self._waited = link.wait_s

    def snapshot(self) -> Mapping[str, float]:
        """All values, for a report. For one thread, which may be another than the one that steps."""
        link = self._link()
        self._sent.value, self._received.value = link.sent_bytes, link.received_bytes
        return self._all.snapshot()
