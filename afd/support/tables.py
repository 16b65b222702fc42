# SPDX-License-Identifier: Apache-2.0
"""The rows of the support matrix. To support something is to change a row here, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from afd.config import CAM_ASYNC, CAMP2P


@dataclass(frozen=True)
class Value:
    """One value of a dimension. ``reason`` is empty when it is supported, else says why not, and ``instead`` what to
    do: a configuration that was refused for this value only is accepted when that was done.

    ``same_as`` names the value that it turns into, so that the matrix has no second row for it. The value "*"
    is for all that have no entry of their own.
    """

    name: str
    reason: str = ""
    instead: str = ""
    same_as: str = ""


@dataclass(frozen=True)
class Dimension:
    """One column of the matrix; ``setting`` says where a user chooses it."""

    name: str
    setting: str
    values: tuple[Value, ...]

    def find(self, name: str) -> Value:
        """The entry for a value."""
        for value in self.values:
            if value.name in (name, "*"):
                return value
        known = " or ".join(value.name for value in self.values if not value.reason)
        flag = f"{self.setting} " if self.setting.startswith("--") else ""
        return Value(name, "AFD does not know it", f"use {flag}{known}")


@dataclass(frozen=True)
class Feature:
    """Something of vLLM that AFD may refuse. ``flag`` turns it on; ``only`` limits the refusal to some combinations;
    ``instead`` says what to do when it is not enough to leave ``flag`` out.
    """

    name: str
    flag: str
    reason: str
    instead: str = ""
    only: tuple[tuple[str, str], ...] = ()

    @property
    def advice(self) -> str:
        """What to do instead."""
        return self.instead or f"leave out {self.flag}"


@dataclass(frozen=True)
class Conflict:
    """Values of two dimensions that do not go together. It counts when each of them alone is supported."""

    values: tuple[tuple[str, str], tuple[str, str]]
    reason: str
    instead: str

    @property
    def name(self) -> str:
        """Both, as a refusal names them."""
        (one, first), (other, second) = self.values
        return f"{one} {first} with {other} {second}"


LATER = "not built yet"
_NPU = "use the platform cpu"
_CAMP2P = (
    f"use --afd-connector {CAMP2P}, without --afd-async, --afd-compute-gate-on-attention and keys of CAMAsync in "
    "--afd-connector-extra-config"
)

_SPARSE = "vLLM's CPU backend has no sparse MLA, so it needs Ascend"
_MODEL = "use a model of the DeepSeek-V2, DeepSeek-V3 or Qwen3-MoE architecture"

DIMENSIONS: tuple[Dimension, ...] = (
    Dimension(
        "platform",
        "the image or environment",
        (
            Value("cpu"),
            Value("a2", LATER, _NPU),
            Value("a3", LATER, _NPU),
            Value("a5", LATER, _NPU),
        ),
    ),
    Dimension(
        "connector",
        "--afd-connector",
        (
            Value(CAMP2P),
            Value(CAM_ASYNC, LATER, _CAMP2P),
        ),
    ),
    Dimension(
        "transport",
        "--afd-transport",
        (
            Value("shm"),
            Value("auto", same_as="shm"),
            Value("collective"),
            Value("cam", "its operators exist on Ascend only", "use --afd-transport shm or collective"),
        ),
    ),
    Dimension(
        "runner",
        "VLLM_USE_V2_MODEL_RUNNER",
        (
            Value("v2"),
            Value("v1"),
        ),
    ),
    Dimension(
        "family",
        "MODEL",
        (
            Value("deepseek"),
            Value("qwen3_moe"),
            Value("deepseek_v32", _SPARSE, _MODEL),
            Value("glm_moe_dsa", _SPARSE, _MODEL),
            Value("*", LATER, _MODEL),
        ),
    ),
    Dimension(
        "mode",
        "--enforce-eager",
        (
            Value("eager"),
            Value(
                "*",
                LATER,
                "use --enforce-eager, without --no-enforce-eager, --cudagraph-capture-sizes, "
                "--max-cudagraph-capture-size and keys of CUDA graphs in --compilation-config",
            ),
        ),
    ),
    Dimension(
        "ubatches",
        "--afd-ubatch-num-ubatches",
        (
            Value("1"),
            Value("*", LATER, "use --afd-ubatch-num-ubatches 1, without --enable-dbo and --ubatch-size"),
        ),
    ),
    Dimension(
        "quantisation",
        "MODEL, --quantization",
        (
            Value("none"),
            Value("*", LATER, "use an unquantised checkpoint, without --quantization"),
        ),
    ),
    Dimension(
        "dtype",
        "--dtype",
        (
            Value("float32"),
            Value("bfloat16"),
            Value("float16"),
        ),
    ),
    Dimension(
        "gate",
        "--afd-compute-gate-on-attention",
        (
            Value("ffn"),
            Value("attention"),
        ),
    ),
    Dimension(
        "layout",
        "--afd-num-attention-ranks, --afd-num-ffn-ranks",
        (
            Value("1A1F"),
            Value("2A1F"),
            Value("2A2F"),
            Value("4A2F"),
            Value("*"),
        ),
    ),
    Dimension(
        "tp",
        "--tensor-parallel-size",
        (
            Value("1"),
            Value("2"),
            Value("*"),
        ),
    ),
    Dimension(
        "on_loss",
        "--afd-on-loss",
        (
            Value("exit"),
            Value("rejoin"),
        ),
    ),
)

CONFLICTS: tuple[Conflict, ...] = (
    Conflict(
        (("gate", "attention"), ("connector", CAMP2P)),
        "it sends no routing",
        "leave out --afd-compute-gate-on-attention",
    ),
    Conflict(
        (("gate", "ffn"), ("connector", CAM_ASYNC)),
        "it sends rows to the experts that Attention has chosen",
        "use --afd-compute-gate-on-attention",
    ),
    Conflict(
        (("ubatches", "2"), ("connector", CAM_ASYNC)),
        "it cuts only the experts' part of a step, which async_moe_ubatching in --afd-connector-extra-config turns on",
        "use --afd-ubatch-num-ubatches 1, without --enable-dbo and --ubatch-size",
    ),
)

LAYOUTS: tuple[tuple[str, int, int, int], ...] = (
    ("1A1F", 1, 1, 1),
    ("2A1F", 2, 1, 1),
    ("2A2F", 2, 2, 1),
    ("4A2F", 4, 2, 1),
    ("TP2+1F", 2, 1, 2),
)
"""Layouts that the page shows one by one: name, Attention ranks, FFN ranks, Attention's tensor-parallel size."""

FEATURES: Mapping[str, Feature] = {
    feature.name: feature
    for feature in (
        Feature(
            "lora",
            "--enable-lora, --lora-modules, --default-mm-loras",
            "adapters of FFN weights would have to reach the FFN role",
        ),
        Feature(
            "speculative",
            "--speculative-config, --spec-method, --spec-model, --spec-tokens",
            "draft models and MTP layers are not split between roles",
        ),
        Feature(
            "pipeline_parallel", "--pipeline-parallel-size", "the hop to FFN assumes all layers in one rank"
        ),
        Feature("prefill_context_parallel", "--prefill-context-parallel-size", LATER),
        Feature("decode_context_parallel", "--decode-context-parallel-size", LATER),
        Feature(
            "eplb",
            "--enable-eplb, --enable-elastic-ep, --eplb-config",
            "the roles have no way to move experts together",
        ),
        Feature(
            "sequence_parallel_moe",
            "--enable-expert-parallel with TP and DP",
            "vLLM then cuts tokens over TP ranks inside the MoE block, which is on the other role",
            "leave out --enable-expert-parallel",
        ),
        Feature("kv_transfer", "--kv-transfer-config, --ec-transfer-config, --kv-offloading-size", LATER),
        Feature("multimodal", "MODEL", "only text models are split", "use a text model"),
        Feature("encoder_decoder", "MODEL", "only decoders are split", "use a model without an encoder"),
        Feature(
            "pooling",
            "--runner, --convert, --pooler-config",
            "only generation is split",
            "use --runner generate, without --convert and --pooler-config",
        ),
        Feature(
            "other_vllm",
            "the environment",
            "the roles are built out of vLLM's own classes, and each version has others",
            "run `make setup`, or use an image of this release",
        ),
        Feature("sleep_mode", "--enable-sleep-mode", "FFN would not sleep with Attention"),
        Feature("multi_node", "--nnodes", "one agent starts all processes of an engine"),
        Feature(
            "load_format",
            "--load-format, --safetensors-load-strategy, --model-loader-extra-config",
            "roles read safetensors one tensor at a time",
            "use --load-format auto, safetensors or dummy, without --safetensors-load-strategy and "
            "--model-loader-extra-config",
        ),
    )
}
