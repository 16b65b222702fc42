# SPDX-License-Identifier: Apache-2.0
"""What only vLLM can resolve about a configuration, read once and compared between ranks before any AFD
resource exists (the second exchange of ``design.md`` §5)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from vllm.config import CompilationMode, VllmConfig

from afd.errors import ConfigError, UnsupportedError
from afd.families import family_of

_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
# Differ between copies of one model, or say what Resolved's own fields say.
_VOLATILE = {"_name_or_path", "transformers_version", "dtype", "torch_dtype"}
_LONGEST_VALUE = 120


@dataclass(frozen=True)
class Resolved:
    """Values both roles must have resolved to the same thing. ``max_tokens`` is the step's token budget; None
    on FFN, which has no scheduler, unless it was told one: vLLM's default depends on how ranks are arranged, which
    differs between the roles.

    ``hf_config`` are the values of the model's configuration as vLLM understood it, overrides included, by key: a role
    with another number of experts per token would compute, and nobody would notice.
    """

    architecture: str
    hidden_size: int
    num_layers: int
    dtype: str
    max_tokens: int | None
    load_format: str
    quantisation: str
    hf_config: Mapping[str, str]

    def as_dict(self) -> dict[str, object]:
        """One flat map, for the exchange that compares it key by key."""
        values = asdict(self)
        return {**{f"hf_config.{key}": value for key, value in values.pop("hf_config").items()}, **values}

    @property
    def torch_dtype(self) -> torch.dtype:
        return next(dtype for dtype, name in _DTYPES.items() if name == self.dtype)


def resolve(vllm_config: VllmConfig) -> Resolved:
    """Read ``vllm_config``. Raises UnsupportedError for what AFD cannot run with it."""
    model = vllm_config.model_config
    family_of(model.architecture)
    if vllm_config.compilation_config.mode != CompilationMode.NONE:
        raise UnsupportedError(
            f"compilation mode {vllm_config.compilation_config.mode.name}: torch.compile does not see the hop to "
            "FFN; leave the mode to `afd serve`, or set it to 0 (NONE)"
        )
    dtype = model.dtype
    if not isinstance(dtype, torch.dtype) or dtype not in _DTYPES:
        raise ConfigError(f"dtype {dtype} is not one that AFD transports: {', '.join(_DTYPES.values())}")
    return Resolved(
        architecture=model.architecture,
        hidden_size=model.get_hidden_size(),
        num_layers=model.get_total_num_hidden_layers(),
        dtype=_DTYPES[dtype],
        max_tokens=vllm_config.scheduler_config.max_num_batched_tokens,
        load_format=str(vllm_config.load_config.load_format),
        quantisation=str(model.quantization or "none"),
        hf_config=_printable(model.hf_config.to_dict()),
    )


def _printable(config: Mapping[str, Any]) -> dict[str, str]:
    """The values as text that is the same on both sides; what is too long for a message as its digest."""
    found = {}
    for key, value in config.items():
        if key not in _VOLATILE:
            text = json.dumps(value, sort_keys=True, default=str)
            if len(text) > _LONGEST_VALUE:
                text = f"sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]}"
            found[key] = text
    return found
