# SPDX-License-Identifier: Apache-2.0
"""The table of model families. What it names in vLLM is compared with vLLM in tests/unit/vllm."""

from __future__ import annotations

from collections import Counter

import pytest
from safetensors import safe_open

from afd.errors import UnsupportedError
from afd.families import FAMILIES, family_of
from afd.testing.tiny import resolve_builtin
from afd.topology import Role


@pytest.mark.parametrize("architecture", ["DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"])
def test_an_architecture_finds_its_family(architecture: str) -> None:
    assert family_of(architecture).name == "deepseek"


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "deepseekv2forcausallm", ""])
def test_an_architecture_without_a_row_is_refused_with_those_that_have_one(architecture: str) -> None:
    with pytest.raises(UnsupportedError, match="use one of DeepseekV2ForCausalLM or DeepseekV3ForCausalLM"):
        family_of(architecture)


def test_no_architecture_is_in_two_rows() -> None:
    names = Counter(name for family in FAMILIES for name in family.architectures)
    assert max(names.values()) == 1


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("model.layers.0.mlp.gate_proj.weight", Role.FFN),
        ("model.layers.11.mlp.gate.weight", Role.FFN),
        ("model.layers.11.mlp.gate.e_score_correction_bias", Role.FFN),
        ("model.layers.3.mlp.experts.7.down_proj.weight", Role.FFN),
        ("model.layers.3.mlp.shared_experts.up_proj.weight", Role.FFN),
        ("model.layers.3.post_attention_layernorm.weight", Role.ATTENTION),
        ("model.layers.3.self_attn.q_proj.weight", Role.ATTENTION),
        ("model.embed_tokens.weight", Role.ATTENTION),
        ("model.norm.weight", Role.ATTENTION),
        ("lm_head.weight", Role.ATTENTION),
        ("other.model.layers.0.mlp.x", Role.ATTENTION),
    ],
)
def test_each_tensor_belongs_to_the_role_that_computes_with_it(name: str, role: Role) -> None:
    assert family_of("DeepseekV2ForCausalLM").owner(name) is role


def test_every_tensor_of_the_builtin_model_has_an_owner_and_both_own_some() -> None:
    files = resolve_builtin("builtin:tiny-deepseek-v2").glob("*.safetensors")
    names = [name for path in files for name in safe_open(path, framework="numpy").keys()]  # noqa: SIM118 (it is no dict)
    family = family_of("DeepseekV2ForCausalLM")
    owned = Counter(family.owner(name) for name in names)
    layers = {name.split(".")[2] for name in names if family.owner(name) is Role.FFN}
    assert layers == {"0", "1", "2", "3"}
    assert owned[Role.FFN] > owned[Role.ATTENTION] > 0
