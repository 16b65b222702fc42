# SPDX-License-Identifier: Apache-2.0
"""Roles whose link overwrites transport memory as soon as a view of it has become invalid.

Attention also keeps what the last layer and the model returned, and looks at it again after the next forward: the
output of a model, which may be that of its last layer, must outlive its step.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from vllm.config import VllmConfig

from afd.attention.mixin import AttentionMixin
from afd.attention.peer import Peer
from afd.attention.runners import AttentionRunnerV1, AttentionRunnerV2
from afd.attention.worker import AttentionWorker
from afd.connectors.base import AttentionLink
from afd.ffn.process import RankProcess
from afd.ffn.process import main as ffn_main
from afd.launch.api_server import main as server_main
from afd.models.crossing import Crossing
from afd.models.proxies import RemoteFFN
from tests.system.variants import ALIASING


def poisoned(crossing: Crossing) -> Crossing:
    return replace(crossing, spec=replace(crossing.spec, poison=True))


class PoisonedProcess(RankProcess):
    def __init__(self, config: VllmConfig, crossing: Crossing, layers: dict[int, torch.nn.Module]) -> None:
        super().__init__(config, poisoned(crossing), layers)


class PoisonedPeer(Peer):
    @classmethod
    def open_link(cls, crossing: Crossing) -> AttentionLink:
        return super().open_link(poisoned(crossing))


class Outliving(AttentionMixin):
    """Raises when what a forward returned has changed after the next one.

    With the variable ALIASING set, the last layer hands out its view of transport memory as all others do.
    """

    afd_peer_class = PoisonedPeer

    def load_model(self, *args: Any, **options: Any) -> None:
        super().load_model(*args, **options)
        layers = [module for module in self.model.modules() if isinstance(module, RemoteFFN)]
        if os.environ.get(ALIASING):
            layers[-1]._hop.last_layer = -1
        forward = self.model.forward
        kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        returned: list[torch.Tensor] = []
        layers[-1].register_forward_hook(lambda _layer, _arguments, output: returned.append(output))

        def checked(*args: Any, **options: Any) -> Any:
            returned.append(forward(*args, **options))
            for tensor, copy in kept:
                # As bits: a dummy step may return numbers that are no numbers, which never equal themselves.
                now = tensor.view(torch.int32)
                if not torch.equal(now, copy.view(torch.int32)):
                    what = "poison" if (now == -1).all() else "something else"
                    raise AssertionError(f"what the last step returned was overwritten with {what}")
            kept[:] = [(tensor, tensor.clone()) for tensor in returned]
            returned.clear()
            return kept[-1][0]

        self.model.forward = checked


class PoisonedRunnerV1(Outliving, AttentionRunnerV1):
    pass


class PoisonedRunnerV2(Outliving, AttentionRunnerV2):
    pass


class PoisonedWorker(AttentionWorker):
    afd_runner_v1 = PoisonedRunnerV1
    afd_runner_v2 = PoisonedRunnerV2


def ffn(argv: Sequence[str]) -> None:
    """The FFN rank."""
    ffn_main(argv, PoisonedProcess)


def attention(argv: Sequence[str]) -> None:
    """Attention's API server; the worker class is ours."""
    changed = list(argv)
    changed[changed.index("--worker-cls") + 1] = f"{__name__}.{PoisonedWorker.__name__}"
    server_main(changed)
