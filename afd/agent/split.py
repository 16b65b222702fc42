# SPDX-License-Identifier: Apache-2.0
"""Whether a model can be split over FFN ranks: experts are dealt out, dense layers and shared experts cut by width.

vLLM would find out in the middle of its start. Its own rules for a group apply, whatever the group computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from afd.errors import UnsupportedError
from afd.topology import Topology

_PACKED = "VLLM_CPU_SGL_KERNEL"


def check(config: Mapping[str, Any], topology: Topology, environment: Mapping[str, str]) -> None:
    """Raise UnsupportedError unless each FFN rank gets an equal share. ``config`` is the model's ``config.json``."""
    ranks = topology.num_ffn
    if ranks == 1:
        return
    nested = config.get("text_config")
    sizes = dict(_sizes(nested if isinstance(nested, dict) else config))
    for what, size in sizes.items():
        if size % ranks:
            fits = next(
                f
                for f in range(ranks - 1, 0, -1)
                if topology.num_attention % f == 0 and not any(size % f for size in sizes.values())
            )
            raise UnsupportedError(
                f"{topology}: {size} {what} cannot be dealt out to {ranks} FFN ranks in equal shares; use "
                f"--afd-num-ffn-ranks {fits}"
            )
    if environment.get(_PACKED, "0") != "0":
        raise UnsupportedError(
            f"{_PACKED}={environment[_PACKED]}: that kernel knows nothing of experts on other ranks; unset it, or use "
            "--afd-num-ffn-ranks 1"
        )


def _sizes(config: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """What is split, and how much of it there is."""

    def number(*keys: str) -> int:
        return next((config[key] for key in keys if isinstance(config.get(key), int)), 0)

    yield "experts", number("n_routed_experts", "num_experts", "num_local_experts")
    yield "attention heads, which vLLM counts in every group,", number("num_attention_heads")
    if number("first_k_dense_replace") or config.get("mlp_only_layers") or number("decoder_sparse_step") > 1:
        yield "columns of the dense layers", number("intermediate_size")
    if shared := number("n_shared_experts"):
        yield "columns of the shared expert", shared * number("moe_intermediate_size")
