# SPDX-License-Identifier: Apache-2.0
"""What only vLLM can resolve about a configuration, read once and compared between ranks before any AFD
resource exists (the second exchange of ``design.md`` §5)."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from vllm.config import CompilationMode, VllmConfig

from afd.errors import ConfigError, UnsupportedError
from afd.families import family_of

_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


@dataclass(frozen=True)
class Resolved:
    """Values both roles must have resolved to the same thing. ``max_tokens`` is the step's token budget."""

    architecture: str
    hidden_size: int
    num_layers: int
    dtype: str
    max_tokens: int
    load_format: str
    quantisation: str

    def as_dict(self) -> dict[str, object]:
        return asdict(self)

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
    )
