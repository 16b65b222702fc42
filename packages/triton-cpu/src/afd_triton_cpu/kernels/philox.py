# SPDX-License-Identifier: Apache-2.0
"""Triton's Philox 4x32-10 generator in numpy, bit for bit.

Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). A counter of four 32-bit words is scrambled
under a 64-bit key; Triton counts the column in the first word (and in the second above 32 bits).
"""

from __future__ import annotations

import numpy as np

from afd_triton_cpu.memory import Array

# Numbers that are drawn at once: the working set of ten rounds stays in the second-level cache.
TILE = 1 << 14

_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))

# The largest float32 for which 2**31 - 1 times it is below 1, as in Triton's uint_to_uniform_float.
_SCALE32 = np.float32(4.6566127342e-10)
_SCALE64 = 2.0**-64
_TINY64 = float(np.finfo(np.float64).tiny)


_NONE = np.zeros(1, np.uint64)

Counter = tuple[Array, Array, Array, Array]


def scramble(key: tuple[Array, Array], counter: Counter) -> Counter:
    """Ten rounds. Words are uint64 arrays of values below 2**32, broadcast together."""
    k0, k1 = key
    c0, c1, c2, c3 = counter
    for _ in range(_ROUNDS):
        p, q = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1 = (q >> _HALF) ^ c1 ^ k0, q & _LOW
        c2, c3 = (p >> _HALF) ^ c3 ^ k1, p & _LOW
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return c0, c1, c2, c3


def randint(seed: Array, offset: Array) -> Array:
    """tl.randint: one 32-bit number (in uint64) per pair of a seed and an offset of 32 or 64 bits."""
    wide = seed.astype(np.int64).view(np.uint64)
    counter = offset.astype(np.int64).view(np.uint64)
    high = counter >> _HALF if offset.dtype.itemsize > 4 else _NONE
    return scramble((wide & _LOW, wide >> _HALF), (counter & _LOW, high, _NONE, _NONE))[0]


def _columns(keys: Array, start: int, count: int) -> Counter:
    column = np.arange(start, start + count, dtype=np.uint64)
    return scramble((keys[:, None], _NONE), (column[None, :], _NONE, _NONE, _NONE))


def uniform32(keys: Array, start: int, count: int) -> Array:
    """float32[keys, count] in (0, 1): tl.rand of `count` columns from `start`; its smallest other value for zero."""
    drawn = _columns(keys, start, count)[0].astype(np.uint32).view(np.int32)
    folded = drawn ^ (drawn >> np.int32(31))  # -x - 1 for a negative x
    uniform: Array = np.maximum(folded.astype(np.float32) * _SCALE32, _SCALE32)
    return uniform


def uniform64(keys: Array, start: int, count: int) -> Array:
    """float64[keys, count] in (0, 1) from two words of each column's counter."""
    low, high, _, _ = _columns(keys, start, count)
    uniform: Array = np.maximum(((high << _HALF) | low).astype(np.float64) * _SCALE64, _TINY64)
    return uniform
