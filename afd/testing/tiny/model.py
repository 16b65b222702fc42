# SPDX-License-Identifier: Apache-2.0
"""What a tiny model consists of: sizes, tensors, ``config.json``, and the ones that are built in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from afd.errors import ConfigError
from afd.testing.tiny import tokens

DTYPES = {"float32": ("F32", 4), "bfloat16": ("BF16", 2), "float16": ("F16", 2)}


@dataclass(frozen=True)
class TinyModel:
    """What to build. Sizes have the meaning that the model's ``config.json`` gives them; ``dtype`` is of the
    files. What only one family has is left out for the others.
    """

    family: str = "deepseek_v2"
    seed: int = 0
    dtype: str = "float32"
    shards: int = 1
    vocab_size: int = 512
    hidden_size: int = 256
    intermediate_size: int = 512
    moe_intermediate_size: int = 128
    num_layers: int = 4
    first_k_dense: int = 1
    num_heads: int = 4
    num_experts: int = 8
    top_k: int = 2
    num_shared_experts: int = 1
    num_groups: int = 1
    top_k_groups: int = 1
    kv_lora_rank: int = 64
    q_lora_rank: int | None = None
    qk_nope_head_dim: int = 32
    qk_rope_head_dim: int = 16
    v_head_dim: int = 32
    routed_scaling_factor: float = 1.0
    max_position: int = 2048
    yarn_factor: float = 1.0
    num_kv_heads: int = 2
    head_dim: int = 32
    sparse_step: int = 1
    mlp_only_layers: tuple[int, ...] = ()
    tied: bool = False

    @property
    def is_v3(self) -> bool:
        return self.family == "deepseek_v3"

    @property
    def is_qwen(self) -> bool:
        return self.family == "qwen3_moe"

    def is_dense(self, layer: int) -> bool:
        """Whether the layer has one MLP instead of experts."""
        if self.is_qwen:
            return layer in self.mlp_only_layers or (layer + 1) % self.sparse_step != 0
        return layer < self.first_k_dense

    def validate(self) -> None:
        """Raise :class:`ConfigError` when no such model can be built."""
        problems = [
            (self.family not in _TENSORS, f"family {self.family!r}"),
            (self.sparse_step < 1, f"experts in every {self.sparse_step}th layer"),
            (
                self.yarn_factor < 1 or (self.yarn_factor > 1 and self.is_qwen),
                f"yarn by {self.yarn_factor:g}",
            ),
            (self.tied and not self.is_qwen, f"tied embeddings in family {self.family!r}"),
            (self.dtype not in DTYPES, f"dtype {self.dtype!r}"),
            (self.vocab_size < tokens.SMALLEST, f"vocab_size {self.vocab_size}, at least {tokens.SMALLEST}"),
            (
                self.num_experts % self.num_groups != 0,
                f"{self.num_experts} experts in {self.num_groups} groups",
            ),
            (not 0 < self.top_k <= self.num_experts, f"top_k {self.top_k} of {self.num_experts} experts"),
            (not 0 <= self.first_k_dense <= self.num_layers, f"{self.first_k_dense} dense layers"),
            # The library that reads config.json takes neither 0 nor null.
            (self.num_shared_experts < 1 and not self.is_qwen, f"{self.num_shared_experts} shared experts"),
            (self.shards < 1, f"{self.shards} shards"),
        ]
        for wrong, what in problems:
            if wrong:
                raise ConfigError(f"tiny model: cannot build one with {what}")


BUILTINS = {
    "tiny-deepseek-v2": TinyModel(),
    "tiny-deepseek-v3": TinyModel(
        family="deepseek_v3",
        num_experts=16,
        top_k=4,
        num_groups=4,
        top_k_groups=2,
        moe_intermediate_size=64,
        q_lora_rank=96,
        routed_scaling_factor=1.5,
        shards=2,
    ),
    "tiny-deepseek-v2-grouped": TinyModel(
        num_experts=16,
        top_k=4,
        num_shared_experts=2,
        num_groups=4,
        top_k_groups=2,
        moe_intermediate_size=64,
        routed_scaling_factor=2.5,
        yarn_factor=4.0,
    ),
    "tiny-qwen3-moe": TinyModel(
        family="qwen3_moe", num_layers=6, sparse_step=2, mlp_only_layers=(3,), tied=True, shards=2
    ),
}


def tensors(model: TinyModel) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor of the checkpoint, in the order of the files."""
    hidden = model.hidden_size
    yield "model.embed_tokens.weight", (model.vocab_size, hidden)
    for layer in range(model.num_layers):
        at = f"model.layers.{layer}"
        yield f"{at}.input_layernorm.weight", (hidden,)
        yield from _TENSORS[model.family](model, f"{at}.self_attn")
        yield f"{at}.post_attention_layernorm.weight", (hidden,)
        if model.is_dense(layer):
            yield from _mlp(f"{at}.mlp", model.intermediate_size, hidden)
            continue
        yield f"{at}.mlp.gate.weight", (model.num_experts, hidden)
        if model.is_v3:
            yield f"{at}.mlp.gate.e_score_correction_bias", (model.num_experts,)
        for expert in range(model.num_experts):
            yield from _mlp(f"{at}.mlp.experts.{expert}", model.moe_intermediate_size, hidden)
        if not model.is_qwen:
            width = model.moe_intermediate_size * model.num_shared_experts
            yield from _mlp(f"{at}.mlp.shared_experts", width, hidden)
    yield "model.norm.weight", (hidden,)
    if not model.tied:
        yield "lm_head.weight", (model.vocab_size, hidden)


def _latent_attention(model: TinyModel, at: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, heads, latent = model.hidden_size, model.num_heads, model.kv_lora_rank
    qk = model.qk_nope_head_dim + model.qk_rope_head_dim
    if model.q_lora_rank is None:
        yield f"{at}.q_proj.weight", (heads * qk, hidden)
    else:
        yield f"{at}.q_a_proj.weight", (model.q_lora_rank, hidden)
        yield f"{at}.q_a_layernorm.weight", (model.q_lora_rank,)
        yield f"{at}.q_b_proj.weight", (heads * qk, model.q_lora_rank)
    yield f"{at}.kv_a_proj_with_mqa.weight", (latent + model.qk_rope_head_dim, hidden)
    yield f"{at}.kv_a_layernorm.weight", (latent,)
    yield f"{at}.kv_b_proj.weight", (heads * (model.qk_nope_head_dim + model.v_head_dim), latent)
    yield f"{at}.o_proj.weight", (hidden, heads * model.v_head_dim)


def _grouped_attention(model: TinyModel, at: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, size = model.hidden_size, model.head_dim
    yield f"{at}.q_proj.weight", (model.num_heads * size, hidden)
    yield f"{at}.k_proj.weight", (model.num_kv_heads * size, hidden)
    yield f"{at}.v_proj.weight", (model.num_kv_heads * size, hidden)
    yield f"{at}.o_proj.weight", (hidden, model.num_heads * size)
    yield f"{at}.q_norm.weight", (size,)
    yield f"{at}.k_norm.weight", (size,)


_TENSORS = {
    "deepseek_v2": _latent_attention,
    "deepseek_v3": _latent_attention,
    "qwen3_moe": _grouped_attention,
}
"""The families, and the tensors of their attention."""


def _mlp(at: str, width: int, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{at}.gate_proj.weight", (width, hidden)
    yield f"{at}.up_proj.weight", (width, hidden)
    yield f"{at}.down_proj.weight", (hidden, width)


def config_json(model: TinyModel) -> dict[str, Any]:
    """The model's ``config.json``."""
    return {
        "model_type": model.family,
        "torch_dtype": model.dtype,
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "moe_intermediate_size": model.moe_intermediate_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_experts_per_tok": model.top_k,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0,
        "max_position_embeddings": model.max_position,
        "attention_bias": False,
        "tie_word_embeddings": model.tied,
        "use_cache": True,
        "bos_token_id": tokens.BOS,
        "eos_token_id": tokens.EOS,
        **(_qwen(model) if model.is_qwen else _deepseek(model)),
    }


def _qwen(model: TinyModel) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "num_experts": model.num_experts,
        "decoder_sparse_step": model.sparse_step,
        "mlp_only_layers": list(model.mlp_only_layers),
        "norm_topk_prob": True,
        "sliding_window": None,
        "use_sliding_window": False,
    }


def _deepseek(model: TinyModel) -> dict[str, Any]:
    method = "group_limited_greedy" if model.num_groups > 1 else "greedy"
    config: dict[str, Any] = {
        "architectures": ["DeepseekV3ForCausalLM" if model.is_v3 else "DeepseekV2ForCausalLM"],
        "num_key_value_heads": model.num_heads,
        "n_routed_experts": model.num_experts,
        "n_shared_experts": model.num_shared_experts,
        "first_k_dense_replace": model.first_k_dense,
        "moe_layer_freq": 1,
        "n_group": model.num_groups,
        "topk_group": model.top_k_groups,
        "topk_method": "noaux_tc" if model.is_v3 else method,
        "scoring_func": "sigmoid" if model.is_v3 else "softmax",
        "norm_topk_prob": model.is_v3,
        "routed_scaling_factor": model.routed_scaling_factor,
        "kv_lora_rank": model.kv_lora_rank,
        "q_lora_rank": model.q_lora_rank,
        "qk_nope_head_dim": model.qk_nope_head_dim,
        "qk_rope_head_dim": model.qk_rope_head_dim,
        "v_head_dim": model.v_head_dim,
    }
    if model.yarn_factor > 1:
        config["rope_scaling"] = {
            "type": "yarn",
            "factor": model.yarn_factor,
            "original_max_position_embeddings": int(model.max_position / model.yarn_factor),
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 0.707,
            "mscale_all_dim": 0.707,
        }
    if model.is_v3:
        config["num_nextn_predict_layers"] = 0
    return config
