# SPDX-License-Identifier: Apache-2.0
"""The table of model families. What it names in vLLM is compared with vLLM in tests/unit/vllm."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from safetensors import safe_open

from afd.errors import UnsupportedError
from afd.families import FAMILIES, Family, family_of
from afd.support import Combination, problem
from afd.testing.tiny import BUILTINS, resolve_builtin
from afd.topology import Role


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        ("DeepseekV2ForCausalLM", "deepseek"),
        ("DeepseekV3ForCausalLM", "deepseek"),
        ("DeepseekV32ForCausalLM", "deepseek_v32"),
        ("GlmMoeDsaForCausalLM", "glm_moe_dsa"),
        ("Qwen3MoeForCausalLM", "qwen3_moe"),
    ],
)
def test_an_architecture_finds_its_family(architecture: str, name: str) -> None:
    assert family_of(architecture).name == name


KNOWN = "use one of DeepseekV2ForCausalLM or DeepseekV3ForCausalLM or Qwen3MoeForCausalLM$"


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "deepseekv2forcausallm", ""])
def test_an_architecture_without_a_row_is_refused_with_those_that_have_one(architecture: str) -> None:
    with pytest.raises(UnsupportedError, match=KNOWN):
        family_of(architecture)


def test_a_family_that_needs_ascend_is_refused_on_cpu_with_that_reason_and_no_other_is() -> None:
    for family in FAMILIES:
        refusal = problem(Combination(family=family.name))
        assert ("needs Ascend" in refusal) is family.needs_ascend
        assert bool(refusal) is family.needs_ascend


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
        ("model.layers.3.self_attn.indexer.wq_b.weight", Role.ATTENTION),
        ("model.embed_tokens.weight", Role.ATTENTION),
        ("model.norm.weight", Role.ATTENTION),
        ("lm_head.weight", Role.ATTENTION),
        ("other.model.layers.0.mlp.x", Role.ATTENTION),
    ],
)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_each_tensor_belongs_to_the_role_that_computes_with_it(family: Family, name: str, role: Role) -> None:
    assert family.owner(name) is role


@pytest.mark.parametrize("builtin", sorted(BUILTINS))
def test_every_tensor_of_a_builtin_model_has_an_owner_and_both_own_some(builtin: str) -> None:
    directory = resolve_builtin(f"builtin:{builtin}")
    files = directory.glob("*.safetensors")
    names = [name for path in files for name in safe_open(path, framework="numpy").keys()]  # noqa: SIM118 (it is no dict)
    family = family_of(json.loads((directory / "config.json").read_text())["architectures"][0])
    owned = Counter(family.owner(name) for name in names)
    layers = {name.split(".")[2] for name in names if family.owner(name) is Role.FFN}
    assert layers == {str(layer) for layer in range(BUILTINS[builtin].num_layers)}
    assert owned[Role.FFN] > owned[Role.ATTENTION] > 0
