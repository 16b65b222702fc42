# SPDX-License-Identifier: Apache-2.0
"""Weights from a seed, the same on every machine, and the safetensors files that hold them."""

from __future__ import annotations

import json
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from afd.testing.tiny import tokens
from afd.testing.tiny.model import DTYPES, TinyModel, tensors

_Array = NDArray[np.float32]

# How large each projection's output is, against an input of unit variance. Chosen by experiment: attention
# and FFN outputs are a good part of the residual stream at every layer, and attention looks at few positions.
_GAINS = {
    "embed_tokens": 0.5,
    "q_proj": 2.5,
    "q_a_proj": 1.0,
    "q_b_proj": 2.5,
    "kv_a_proj_with_mqa": 1.0,
    "kv_b_proj": 1.5,
    "k_proj": 1.0,
    "v_proj": 1.5,
    "o_proj": 1.5,
    "gate": 2.0,
    "gate_proj": 1.5,
    "up_proj": 1.5,
    "down_proj": 1.5,
    "lm_head": 4.0,
}
_Q_NORM = 2.5  # in the place of q_proj's gain, which a norm behind it takes away
# With tied embeddings the last token's own logit is large. Small embeddings under a large norm keep the logits wide.
_TIED_EMBEDDING, _TIED_NORM = 0.125, 2.0


def weight(model: TinyModel, name: str, shape: tuple[int, ...]) -> _Array:
    """The values of one tensor, in float32. They depend on the seed, the name and the shape only."""
    values = _noise(model.seed, name, shape)
    kind = name.split(".")[-2]
    if name.endswith("e_score_correction_bias"):
        values *= np.float32(0.1)
    elif len(shape) == 1:
        values = values * np.float32(0.1) + np.float32(1.0)
        if kind == "q_norm":
            values *= np.float32(_Q_NORM)
        elif model.tied and name == "model.norm.weight":
            values *= np.float32(_TIED_NORM)
    elif kind == "embed_tokens":
        values *= np.float32(_TIED_EMBEDDING if model.tied else _GAINS[kind])
    else:
        values *= np.float32(_GAINS[kind] / math.sqrt(shape[1]))
    if kind == ("embed_tokens" if model.tied else "lm_head"):
        values[tokens.unlikely(model.vocab_size)] *= np.float32(0.05)
    return values


def _noise(seed: int, name: str, shape: tuple[int, ...]) -> _Array:
    """Numbers of mean 0 and variance 1, near normal: each the sum of the four 16-bit parts of one raw draw."""
    bits = np.random.PCG64(np.random.SeedSequence([seed, zlib.crc32(name.encode())]))
    count = math.prod(shape)
    parts = bits.random_raw(count).astype("<u8").view("<u2").reshape(count, 4)
    total = parts.sum(axis=1, dtype=np.int64) * 2 - 4 * 65535
    # The sum of four uniform integers below 2^16 has variance (2^32 - 1) / 3; here it is doubled, to be whole.
    unit = 1.0 / (2.0 * math.sqrt((2.0**32 - 1) / 3.0))
    values: _Array = (total * unit).astype(np.float32).reshape(shape)
    return values


def _encode(values: _Array, dtype: str) -> bytes:
    if dtype == "float16":
        return values.astype("<f2").tobytes()
    if dtype == "float32":
        return values.astype("<f4").tobytes()
    whole = values.astype("<f4").view("<u4")
    # bfloat16 is the upper half, rounded to the nearest, ties to even, as every framework does.
    halves: NDArray[np.uint16] = ((whole + 0x7FFF + ((whole >> 16) & 1)) >> 16).astype("<u2")
    return halves.tobytes()


def write(model: TinyModel, directory: Path) -> dict[str, Any]:
    """Write the safetensors files; returns the index file to write, when there is more than one."""
    code, size = DTYPES[model.dtype]
    layout = list(tensors(model))
    # Contiguous shards of about equal bytes, in the order of the layers, as large checkpoints have them.
    total = sum(math.prod(shape) for _, shape in layout) * size
    groups: list[list[tuple[str, tuple[int, ...]]]] = [[] for _ in range(model.shards)]
    passed = 0
    for name, shape in layout:
        groups[min(passed * model.shards // total, model.shards - 1)].append((name, shape))
        passed += math.prod(shape) * size
    index: dict[str, str] = {}
    for number, group in enumerate(groups, 1):
        many = f"model-{number:05d}-of-{model.shards:05d}.safetensors"
        file = many if model.shards > 1 else "model.safetensors"
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        offset = 0
        for name, shape in group:
            length = math.prod(shape) * size
            header[name] = {"dtype": code, "shape": list(shape), "data_offsets": [offset, offset + length]}
            offset += length
            index[name] = file
        text = json.dumps(header, separators=(",", ":")).encode("ascii")
        text += b" " * (-len(text) % 8)
        with open(directory / file, "wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            for name, shape in group:
                out.write(_encode(weight(model, name, shape), model.dtype))
    if model.shards == 1:
        return {}
    return {"model.safetensors.index.json": {"metadata": {"total_size": total}, "weight_map": index}}
