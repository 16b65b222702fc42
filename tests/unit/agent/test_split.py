# SPDX-License-Identifier: Apache-2.0
"""A model that does not split over the FFN ranks is refused with the numbers, before anything is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from afd.errors import UnsupportedError
from afd.topology import Role
from tests.unit.agent.plans import FLOAT32, planned

HEADS = {"num_attention_heads": 12}


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize(
    ("overrides", "ranks", "says"),
    [
        ({}, 3, r"3A3F: 4 experts cannot be dealt out to 3 FFN ranks .*; use --afd-num-ffn-ranks 1$"),
        ({}, 8, r"8A8F: 4 experts cannot .* 8 FFN ranks .*; use --afd-num-ffn-ranks 4$"),
        ({"n_routed_experts": 6}, 4, r"6 experts .*-ranks 2$"),
        (
            {"n_routed_experts": 6, "num_attention_heads": 4},
            3,
            r"4 attention heads, which vLLM counts .*-ranks 1$",
        ),
        ({"n_routed_experts": 6, **HEADS}, 3, r"32 columns of the dense layers .*-ranks 1$"),
        ({"n_routed_experts": 6, "intermediate_size": 48, **HEADS}, 3, r"16 columns of the shared expert"),
    ],
)
def test_a_model_that_gives_unequal_shares_is_refused_with_a_number_that_fits(
    checkpoint: Path, role: Role, overrides: dict[str, Any], ranks: int, says: str
) -> None:
    argv = [*FLOAT32]
    for key, value in overrides.items():
        argv += [f"--hf-overrides.{key}", str(value)]
    argv += ["-dp", str(ranks)] if role is Role.ATTENTION else []
    with pytest.raises(UnsupportedError, match=says):
        planned(checkpoint, role, argv, num_attention_ranks=ranks, num_ffn_ranks=ranks)


def test_a_kernel_that_cannot_split_experts_is_refused_for_several_ranks_only(checkpoint: Path) -> None:
    packed = {"VLLM_CPU_SGL_KERNEL": "1"}
    planned(checkpoint, Role.FFN, environment=packed)
    with pytest.raises(UnsupportedError, match=r"^VLLM_CPU_SGL_KERNEL=1: .*; unset it, or use --afd-num"):
        planned(checkpoint, Role.FFN, environment=packed, num_attention_ranks=2, num_ffn_ranks=2)
