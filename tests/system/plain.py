# SPDX-License-Identifier: Apache-2.0
"""The feed-forward layers of DeepSeek-V2, V3 and Qwen3-MoE in plain PyTorch, for any part of the experts and width.

From the formulas of the papers (arXiv 2405.04434 section 2.2, 2412.19437 section 2.1.2, 2505.09388 section 2) and a
checkpoint's tensors.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import silu


class PlainFFN:
    """All layers of one checkpoint, in float64."""

    def __init__(self, directory: Path) -> None:
        self.config: dict[str, Any] = json.loads((directory / "config.json").read_text())
        self.tensors: dict[str, Tensor] = {}
        for path in sorted(directory.glob("*.safetensors")):
            self.tensors.update(load_file(path))

    @property
    def num_experts(self) -> int:
        """Routed experts of a sparse layer."""
        found: int = self.config.get("n_routed_experts") or self.config["num_experts"]
        return found

    def is_sparse(self, layer: int) -> bool:
        """Whether ``layer`` has experts."""
        return f"model.layers.{layer}.mlp.gate.weight" in self.tensors

    def routing(self, layer: int, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Experts and weights [rows, top_k] that the router of ``layer`` chooses for ``hidden`` [rows, hidden]."""
        config = self.config
        logits = hidden.double() @ self._of(layer, "gate.weight").T
        if config.get("scoring_func") == "sigmoid":
            scores = logits.sigmoid()
            biased = scores + self._of(layer, "gate.e_score_correction_bias")
        else:
            scores = biased = logits.softmax(-1)
        groups = biased.view(len(hidden), config.get("n_group", 1), -1)
        if groups.shape[1] > 1:
            best = groups.topk(2).values.sum(-1).topk(config["topk_group"]).indices
            kept = torch.zeros(groups.shape[:2], dtype=torch.bool).scatter_(1, best, True)
            groups = groups.masked_fill(~kept.unsqueeze(-1), float("-inf"))
        ids = groups.flatten(1).topk(config["num_experts_per_tok"]).indices
        weights = scores.gather(1, ids)
        if config["norm_topk_prob"]:
            weights = weights / weights.sum(-1, keepdim=True)
        return ids, weights * config.get("routed_scaling_factor", 1.0)

    def part(self, layer: int, hidden: Tensor, experts: Collection[int], share: int, shares: int) -> Tensor:
        """The output of ``experts`` for ``hidden`` [rows, hidden], plus part ``share`` of ``shares`` of what all tokens
        pass: the width of the shared expert, or of the dense layer."""
        if not self.is_sparse(layer):
            return self._mlp(f"model.layers.{layer}.mlp", hidden, share, shares)
        out = torch.zeros(hidden.shape, dtype=torch.float64)
        ids, weights = self.routing(layer, hidden)
        for expert in experts:
            scale = (weights * (ids == expert)).sum(-1, keepdim=True)
            out += scale * self._mlp(f"model.layers.{layer}.mlp.experts.{expert}", hidden, 0, 1)
        if self.config.get("n_shared_experts"):
            out += self._mlp(f"model.layers.{layer}.mlp.shared_experts", hidden, share, shares)
        return out

    def _of(self, layer: int, name: str) -> Tensor:
        return self.tensors[f"model.layers.{layer}.mlp.{name}"].double()

    def _mlp(self, at: str, hidden: Tensor, share: int, shares: int) -> Tensor:
        gate, up, down = (
            self.tensors[f"{at}.{name}_proj.weight"].double() for name in ("gate", "up", "down")
        )
        width = gate.shape[0] // shares
        mine = slice(share * width, (share + 1) * width)
        x = hidden.double()
        return (silu(x @ gate[mine].T) * (x @ up[mine].T)) @ down[:, mine].T
