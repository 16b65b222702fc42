# SPDX-License-Identifier: Apache-2.0
"""A model family is a row: which of vLLM's classes belong to which role, and which weights.

Adding a family means adding a row, not code. Class names are looked up in the native module when a role is
built; one that is gone upstream raises there. The rows are plain data, so that an agent can refuse a model before
anything imports vLLM.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from afd.errors import UnsupportedError
from afd.topology import Role


@dataclass(frozen=True)
class Family:
    """One row.

    ``ffn_classes`` are replaced by :class:`~afd.models.proxies.RemoteFFN` when Attention is built;
    ``attention_classes`` by :class:`~afd.models.proxies.Absent` when FFN is built. ``ffn_weights`` matches the
    checkpoint names that FFN owns (with the gate on FFN: all of ``mlp``, the gate included); everything else is
    Attention's. ``ffn_attribute`` is where a decoder layer keeps its FFN block. ``needs_ascend``: vLLM's CPU backend
    cannot run its attention, and the support matrix says so.
    """

    name: str
    architectures: tuple[str, ...]
    module: str
    ffn_classes: tuple[str, ...]
    attention_classes: tuple[str, ...]
    ffn_weights: re.Pattern[str]
    ffn_attribute: str
    needs_token_ids: bool = False
    needs_ascend: bool = False

    def owner(self, weight_name: str) -> Role:
        """The role that owns a tensor of the checkpoint."""
        return Role.FFN if self.ffn_weights.search(weight_name) else Role.ATTENTION


_DEEPSEEK = Family(
    name="deepseek",
    architectures=("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"),
    module="vllm.model_executor.models.deepseek_v2",
    ffn_classes=("DeepseekV2MoE", "DeepseekV2MLP"),
    attention_classes=(
        "DeepseekAttention",
        "DeepseekV2Attention",
        "DeepseekV2MLAAttention",
        "RMSNorm",
        "VocabParallelEmbedding",
        "ParallelLMHead",
    ),
    ffn_weights=re.compile(r"^model\.layers\.\d+\.mlp\."),
    ffn_attribute="mlp",
)

FAMILIES: tuple[Family, ...] = (
    _DEEPSEEK,
    # The same blocks behind another attention: an indexer, which belongs to it, chooses the positions to look at.
    replace(_DEEPSEEK, name="deepseek_v32", architectures=("DeepseekV32ForCausalLM",), needs_ascend=True),
    replace(_DEEPSEEK, name="glm_moe_dsa", architectures=("GlmMoeDsaForCausalLM",), needs_ascend=True),
    Family(
        name="qwen3_moe",
        architectures=("Qwen3MoeForCausalLM",),
        module="vllm.model_executor.models.qwen3_moe",
        # Which of the two kinds a layer has (decoder_sparse_step, mlp_only_layers) is up to the native decoder layer.
        ffn_classes=("Qwen3MoeSparseMoeBlock", "Qwen3MoeMLP"),
        attention_classes=("Qwen3MoeAttention", "RMSNorm", "VocabParallelEmbedding", "ParallelLMHead"),
        ffn_weights=re.compile(r"^model\.layers\.\d+\.mlp\."),
        ffn_attribute="mlp",
    ),
)


def find_family(architecture: str) -> Family | None:
    """The row of an architecture name from ``config.json``, if there is one."""
    return next((family for family in FAMILIES if architecture in family.architectures), None)


def family_of(architecture: str) -> Family:
    """The row of an architecture name from ``config.json``. Raises UnsupportedError naming those that exist."""
    if (found := find_family(architecture)) is not None:
        return found
    known = " or ".join(
        sorted(name for family in FAMILIES if not family.needs_ascend for name in family.architectures)
    )
    raise UnsupportedError(
        f"models of the architecture {architecture} are not supported yet; use one of {known}"
    )
