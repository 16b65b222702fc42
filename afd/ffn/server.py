# SPDX-License-Identifier: Apache-2.0
"""FFN's loop: announcement → works → replies.

Charter: this file knows no transport, no process and no vLLM start-up; it runs layers. The loop's order of
events is the protocol: a step message first, then for each work the transfer, then its forward context (token
ids belong in it), compute, reply.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from afd.connectors.base import FFNLink, Work
from afd.control.messages import Step
from afd.ffn.counters import FFNCounters
from afd.ffn.rows import GroupRows
from afd.topology import Rank

ForwardContext = Callable[[Work], AbstractContextManager[None]]
"""Opens the platform's forward context for one work."""


class FFNServer:
    """Serves steps over one link. ``layers`` maps layer index to the native FFN block of that layer; ``rows`` brings
    the rows of all FFN ranks together for it."""

    def __init__(
        self,
        layers: Mapping[int, nn.Module],
        link: FFNLink,
        forward_context: ForwardContext,
        counters: FFNCounters,
        rows: GroupRows,
    ) -> None:
        self._layers = layers
        self._link = link
        self._forward_context = forward_context
        self._counters = counters
        self._rows = rows

    def serve(self, next_steps: Callable[[], Mapping[Rank, Step] | None]) -> None:
        """Serve until ``next_steps`` returns None (every Attention rank said good-bye).

        Raises what the link, the control channel or a layer raises.
        """
        while (steps := next_steps()) is not None:
            if steps:
                self.step(steps)

    @torch.inference_mode()
    def step(self, steps: Mapping[Rank, Step]) -> None:
        """Run one announced step: every layer and ubatch, in the order in which the link delivers them."""
        started = time.perf_counter()
        computed = 0
        self._rows.begin(steps)
        for work in self._link.works(steps):
            begun = time.perf_counter()
            out = self.compute(work)
            self._counters.layer_seconds.observe(time.perf_counter() - begun)
            computed += out.shape[0]
            self._link.reply(work, out)
        self._counters.add_steps(steps, computed, time.perf_counter() - started, self._link.counters)

    def compute(self, work: Work) -> Tensor:
        """One layer of one ubatch: [rows, hidden] → [rows, hidden]. All FFN ranks compute it together, those that bring
        no rows too; when nobody brings any, it costs nothing."""
        whole = self._rows.gather(work)
        if whole.hidden.shape[0] == 0:
            return work.hidden
        with self._forward_context(whole):
            out: Tensor = self._layers[work.slot.layer](whole.hidden)
        return self._rows.own(work, out)
