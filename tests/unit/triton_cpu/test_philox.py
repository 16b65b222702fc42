# SPDX-License-Identifier: Apache-2.0
"""The random numbers are Philox 4x32-10 as published, and Triton's use of it."""

from __future__ import annotations

import numpy as np
import pytest
from afd_triton_cpu.kernels import philox

MASK = 0xFFFFFFFF


def reference(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """The generator in whole numbers, from the paper's definition."""
    (k0, k1), (c0, c1, c2, c3) = key, counter
    for _ in range(10):
        p, q = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (q >> 32) ^ c1 ^ k0, q & MASK, (p >> 32) ^ c3 ^ k1, p & MASK
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return c0, c1, c2, c3


def words(*values: int) -> tuple[np.ndarray, ...]:
    return tuple(np.array([value], np.uint64) for value in values)


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [
        ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((MASK, MASK), (MASK, MASK, MASK, MASK), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0xA4093822, 0x299F31D0),
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers_of_the_random123_library(
    key: tuple[int, int], counter: tuple[int, int, int, int], expected: tuple[int, ...]
) -> None:
    assert reference(key, counter) == expected
    assert tuple(int(word[0]) for word in philox.scramble(words(*key), words(*counter))) == expected


@pytest.mark.parametrize("seed", [0, 1, 2**62 + 12345, -1, -(2**63)])
@pytest.mark.parametrize("offset", [0, 7, 2**40 + 3])
def test_a_seed_and_a_64_bit_offset_make_one_number(seed: int, offset: int) -> None:
    drawn = philox.randint(np.array([seed]), np.array([offset]))
    wide = seed % 2**64
    assert int(drawn[0]) == reference((wide & MASK, wide >> 32), (offset & MASK, offset >> 32, 0, 0))[0]


def test_uniform_numbers_fold_the_sign_and_never_reach_zero_or_one() -> None:
    key = 0x1234ABCD
    drawn = philox.uniform32(np.array([7, key], np.uint64), 1000, 500)[1]
    for place in (0, 1, 250, 499):
        word = reference((key, 0), (1000 + place, 0, 0, 0))[0]
        signed = word - 2**32 if word >= 2**31 else word
        folded = -signed - 1 if signed < 0 else signed
        assert drawn[place] == max(
            np.float32(folded) * np.float32(4.6566127342e-10), np.float32(4.6566127342e-10)
        )
    assert drawn.dtype == np.float32 and (drawn > 0).all() and (drawn < 1).all()


def test_double_uniform_numbers_use_two_words() -> None:
    drawn = philox.uniform64(np.array([99], np.uint64), 0, 3)[0]
    low, high, _, _ = reference((99, 0), (2, 0, 0, 0))
    assert drawn[2] == float((high << 32) | low) * 2.0**-64
