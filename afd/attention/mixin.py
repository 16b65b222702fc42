# SPDX-License-Identifier: Apache-2.0
"""The Attention role as a mixin over a vLLM model runner.

Charter: this file stays a composition root. It announces a step, counts it, and nothing else; features live
beside it. Three seams are used, and no upstream body is copied:

* ``load_model``: built inside the role scope, then connected to FFN, then ``model.forward`` is wrapped on the
  instance (every eager step passes there: real, dummy and profile);
* ``afd_step``: what a runner tells the mixin about the forward that comes next;
* ``shutdown``: say good-bye before the native shutdown.

What it does not do: schedule, sample, or know a transport. One class serves V1 and V2; what differs is how a
runner says "dummy" and "profile" (``afd.attention.runners``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from vllm.config import VllmConfig

from afd.attention.peer import Peer
from afd.control.messages import Phase
from afd.models.proxies import Hop
from afd.models.resolved import resolve
from afd.models.role import model_family, remote_layers, role_scope
from afd.topology import Role


class AttentionMixin:
    """Put in front of a vLLM runner class. ``afd_*`` attributes are ours, the rest is the runner's."""

    vllm_config: VllmConfig
    model: torch.nn.Module
    afd_peer_class: type[Peer] = Peer
    afd_peer: Peer | None = None
    afd_phase: Phase = "eager"
    afd_dummy_phase: Phase = "eager"
    """What a step without requests is announced as; a dummy step of a replica that idles is an ordinary one."""
    afd_real_tokens = 0

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Build and load Attention's half, connect to FFN (blocks until it is there), wrap the forward."""
        hop, resolved = Hop(), resolve(self.vllm_config)
        with role_scope(model_family(self.vllm_config), Role.ATTENTION, hop):
            super().load_model(*args, **kwargs)  # type: ignore[misc]
        layers = remote_layers(self.model)
        self.afd_peer = peer = self.afd_peer_class.connect(self.vllm_config, layers, resolved)
        hop.link, hop.last_layer, hop.group = peer.link, layers[-1], peer.row_group()
        self.model.forward = self._afd_forward(self.model.forward, hop, peer)

    def _afd_forward(self, native: Any, hop: Hop, peer: Peer) -> Any:
        def forward(input_ids: torch.Tensor, positions: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            hop.token_ids = input_ids if peer.ids else None
            with peer.step(self.afd_phase, self.afd_real_tokens, positions.shape[-1]):
                return native(input_ids, positions, *args, **kwargs)

        return forward

    @contextmanager
    def afd_step(self, phase: Phase, real_tokens: int) -> Iterator[None]:
        """Describe the forwards inside the block: their phase, and how many of their rows are real tokens."""
        before = self.afd_phase, self.afd_real_tokens
        self.afd_phase, self.afd_real_tokens = phase, real_tokens
        try:
            yield
        finally:
            self.afd_phase, self.afd_real_tokens = before

    def afd_warm_up(self) -> None:
        """One dummy step of every size that serving will announce, before the first request: with no graphs, one."""
        self.afd_dummy_phase = "warmup"
        try:
            self._dummy_run(1, uniform_decode=True)  # type: ignore[attr-defined]
        finally:
            self.afd_dummy_phase = "eager"

    def shutdown(self) -> None:
        """Leave the group on purpose, then shut the runner down."""
        try:
            if self.afd_peer is not None:  # None when the device or the model failed to start
                self.afd_peer.close("shutdown")
        finally:
            super().shutdown()  # type: ignore[misc]
