# SPDX-License-Identifier: Apache-2.0
"""Experts split over FFN ranks on CPU.

vLLM's layers, told of expert parallelism, keep each rank's experts and give every expert a local number
(``layer.expert_map``), but vLLM 0.26's CPU kernels do not look at it: they take the router's numbers for local ones and
read beyond the weights. Here the kernel gets only the pairs of row and expert that are this rank's, each as a row of
its own with one expert. Nothing is computed for experts of other ranks; measured on 8 of 64 experts of DeepSeek-V2-Lite
that is up to four times faster than to give foreign pairs the weight zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.layers.fused_moe import cpu_fused_moe

from afd.errors import MisuseError
from afd.rebind import rebind

Kernel = Callable[..., Tensor]


def on_local_experts(
    kernel: Kernel,
    layer: Any,
    hidden: Tensor,
    weights: Tensor,
    ids: Tensor,
    activation: Any,
    global_num_experts: int,
    skip_weighted: bool,
) -> Tensor:
    """This rank's part of the routed output, [rows, hidden] in the type of ``hidden``; the ranks' parts add up to all.

    ``weights`` and ``ids`` [rows, top_k] are the router's, ids counting all experts of the model. ``kernel`` is vLLM's,
    called with rows that have one local expert each, or not at all when there are none. The sum over a row's experts
    is taken in float32 and rounded once. Raises MisuseError for weights on the input with several experts a row, which
    vLLM does not have either.
    """
    expert_map = layer.expert_map
    if expert_map is None:  # experts are not split: the width of each may be
        return kernel(layer, hidden, weights, ids, activation, global_num_experts, skip_weighted)
    if skip_weighted and ids.shape[1] != 1:
        raise MisuseError("router weights on the input of an expert are for one expert per token")
    local = expert_map[ids]
    rows, places = torch.nonzero(local >= 0, as_tuple=True)
    out = torch.zeros(hidden.shape, dtype=torch.float32)
    if rows.shape[0]:
        parts = kernel(
            layer,
            hidden[rows],
            weights[rows, places].unsqueeze(1),
            local[rows, places].unsqueeze(1),
            activation,
            layer.local_num_experts,
            skip_weighted,
        )
        out.index_add_(0, rows, parts.float())
    return out.to(hidden.dtype)


class LocalExperts(cpu_fused_moe.CPUFusedMOE):
    """vLLM's CPU kernel, for the experts that this rank has: whichever of its methods it has chosen for the layer."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__(layer)
        chosen: Kernel = vars(self)["forward_method"]
        self.forward_method = partial(on_local_experts, chosen)


@contextmanager
def split_experts() -> Iterator[None]:
    """Inside the block vLLM builds MoE layers that compute only the experts of this rank. Its other CPU kernel, of
    VLLM_CPU_SGL_KERNEL, is refused in validation."""
    with rebind(cpu_fused_moe, CPUFusedMOE=LocalExperts):
        yield
