# SPDX-License-Identifier: Apache-2.0
"""Kernel arguments as numpy arrays over the same memory.

A kernel does not see a tensor, it sees an address: `ptr + i` is the i-th element behind it, whatever the tensor's
shape. These views keep that meaning. Integer bookkeeping is done in numpy on purpose: torch starts an OpenMP region
for some operations on eight elements (`repeat_interleave`: 6 ms on two busy cores), and numpy's calls are cheaper.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

Array = NDArray[Any]


def flat(tensor: torch.Tensor) -> Array:
    """The elements behind a tensor's address as a 1-D array that shares its memory (to the end of its storage)."""
    if tensor.is_contiguous():
        return tensor.numpy().reshape(-1)
    size = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    return tensor.as_strided((size,), (1,)).numpy()


def rows(tensor: torch.Tensor, count: int, width: int, stride: int) -> torch.Tensor:
    """`count` rows of `width` elements, `stride` elements apart, behind a tensor's address. Shares its memory."""
    return tensor.as_strided((count, width), (stride, 1))


def widen(tensor: torch.Tensor) -> Array:
    """A float32 copy of a tensor of any floating type, with its shape."""
    return tensor.to(torch.float32, copy=True).numpy()


def store(tensor: torch.Tensor, values: Array) -> None:
    """Write values to a tensor of the same shape, rounded to its dtype."""
    tensor.copy_(torch.from_numpy(values))


class _Span:
    """Memory at an address, described to numpy through its array interface."""

    def __init__(self, address: int, shape: Sequence[int], dtype: DTypeLike) -> None:
        self.__array_interface__ = {
            "data": (address, False),
            "shape": tuple(shape),
            "typestr": np.dtype(dtype).str,
            "version": 3,
        }


def at(address: int, shape: Sequence[int], dtype: DTypeLike = np.int32) -> Array:
    """A writable C-contiguous array over raw memory. The caller answers for the address and for its lifetime."""
    if 0 in shape:
        return np.empty(tuple(shape), dtype)
    return np.asarray(_Span(address, shape, dtype))
