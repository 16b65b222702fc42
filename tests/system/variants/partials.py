# SPDX-License-Identifier: Apache-2.0
"""FFN ranks without Attention and agent: each writes down the weights that it loaded, and, for given inputs, what each
layer of it computes alone and together with the other ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import set_current_vllm_config
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers import linear
from vllm.model_executor.layers.fused_moe.runner import moe_runner
from vllm.model_executor.model_loader import base_loader
from vllm.plugins import load_general_plugins

from afd.ffn.process import INDEX_VARIABLE, Resident, bind_cores, leave_group
from afd.rebind import rebind
from afd.topology import Rank, Role
from tests.system.variants import PARTIALS_DIRECTORY

_NATIVE_PROCESS = base_loader.process_weights_after_loading
EPOCH = "0123456789abcdef"


def rank(argv: Sequence[str]) -> None:
    """One rank; reads ``inputs.pt`` (name: [rows, hidden]) and writes ``F0.pt`` and so on."""
    load_general_plugins()
    me = Rank(Role.FFN, int(os.environ[INDEX_VARIABLE]))
    directory = Path(os.environ[PARTIALS_DIRECTORY])
    bind_cores(me.index)
    loaded: dict[str, Tensor] = {}

    def look(model: nn.Module, *args: Any) -> None:  # before vLLM packs them
        loaded.update({name: value.detach().clone() for name, value in model.named_parameters()})
        _NATIVE_PROCESS(model, *args)

    with rebind(base_loader, process_weights_after_loading=look):
        resident = Resident.make(argv, me, EPOCH)
    inputs: dict[str, Tensor] = torch.load(directory / "inputs.pt")

    def outputs(name: str) -> dict[int, Tensor]:
        found = {}
        for layer, block in resident.layers.items():
            hidden = inputs[name].clone()
            with set_forward_context(None, resident.config, num_tokens=hidden.shape[0]):
                found[layer] = block(hidden).clone()
        return found

    def every(run: Callable[[str], dict[int, Tensor]]) -> dict[str, dict[int, Tensor]]:
        return {name: run(name) for name in inputs}

    with set_current_vllm_config(resident.config), torch.inference_mode():
        with (
            rebind(moe_runner, tensor_model_parallel_all_reduce=_alone),
            rebind(linear, tensor_model_parallel_all_reduce=_alone),
        ):
            parts = every(outputs)
        sums = every(outputs)
    torch.save({"loaded": loaded, "parts": parts, "sums": sums}, directory / f"{me}.pt")
    leave_group()


def _alone(tensor: Tensor) -> Tensor:
    """In the place of the sum over ranks."""
    return tensor
