# SPDX-License-Identifier: Apache-2.0
"""Temperature and Gumbel sampling: bit-equal to the interpreted kernels, and right by the formula.

The interpreter has no log1p and crashes on a temperature; here it borrows numpy's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
import vllm.v1.worker.gpu.sample.gumbel as kernels
from afd_triton_cpu.kernels import philox
from triton.language.extra import libdevice
from triton.runtime.interpreter import TensorHandle

Same = Callable[..., list[Any]]

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

BLOCK = 32
SCALE = np.float32(4.6566127342e-10)


@pytest.fixture
def log1p(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Gives Triton's interpreter the function that it lacks."""

    def numpy_log1p(x: tl.tensor) -> tl.tensor:
        return tl.tensor(TensorHandle(np.log1p(x.handle.data), x.handle.dtype), x.type)

    monkeypatch.setattr(libdevice, "log1p", numpy_log1p)
    yield


def arguments(draw: Any, vocab: int, dtype: torch.dtype, temperatures: list[float], fp64: bool) -> list[Any]:
    """Arguments of a launch over 5 rows, one of them without a request, with strides wider than their rows."""
    rows, blocks = 5, math.ceil(vocab / BLOCK)
    states = torch.tensor([3, 0, -1, 11, 7], dtype=torch.int32)
    temperature = torch.tensor([temperatures[state % len(temperatures)] for state in range(12)])
    logits = draw.floats(rows, vocab + 5).to(dtype)[:, :vocab]
    argmax = torch.full((rows, blocks + 1), -7, dtype=torch.int64)[:, :blocks]
    maximum = torch.full((rows, blocks + 2), -7.0, dtype=torch.float64 if fp64 else torch.float32)[:, :blocks]
    seeds, positions = draw.ints(-(2**62), 2**62, (12,), torch.int64), draw.ints(0, 300, (rows,), torch.int64)
    return [
        argmax, argmax.stride(0), maximum, maximum.stride(0), None, 0, None, logits, logits.stride(0), states, seeds,
        positions, temperature, vocab,
    ]  # fmt: skip


@pytest.mark.parametrize("vocab", [1, 31, 32, 75])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_greedy_rows_take_the_first_maximum(same: Same, draw: Any, vocab: int, dtype: torch.dtype) -> None:
    given = arguments(draw, vocab, dtype, [0.0], False)
    given[7][:, ::3] = 2.5  # ties
    grid = (5, math.ceil(vocab / BLOCK))
    same(
        kernels._gumbel_sample_kernel, grid, *given,
        BLOCK_SIZE=BLOCK, APPLY_TEMPERATURE=False, USE_FP64=False, PER_TOKEN_COL=False,
    )  # fmt: skip


@pytest.mark.parametrize("apply", [True, False])
@pytest.mark.parametrize("fp64", [True, False])
def test_hot_rows_equal_the_interpreter_with_log1p(
    same: Same, draw: Any, log1p: None, apply: bool, fp64: bool
) -> None:
    vocab = 75
    given = arguments(draw, vocab, torch.float32, [0.7, 0.0, 1.0, 1.3], fp64)
    grid = (5, math.ceil(vocab / BLOCK))
    same(
        kernels._gumbel_sample_kernel, grid, *given,
        BLOCK_SIZE=BLOCK, APPLY_TEMPERATURE=apply, USE_FP64=fp64, PER_TOKEN_COL=False,
    )  # fmt: skip


@pytest.mark.parametrize("column", ["none", "one", "per token"])
def test_logits_after_temperature_are_handed_out(same: Same, draw: Any, log1p: None, column: str) -> None:
    given = arguments(draw, 40, torch.float32, [0.7, 0.0], False)
    processed = torch.full((12, 3, 40), 9.0)
    columns = {"none": None, "one": torch.tensor(1), "per token": torch.tensor([2, 0, 1, 1, 2])}[column]
    given[4:7] = [processed, processed.stride(0), columns]
    *_, = same(
        kernels._gumbel_sample_kernel, (5, 2), *given,
        BLOCK_SIZE=BLOCK, APPLY_TEMPERATURE=True, USE_FP64=False, PER_TOKEN_COL=column == "per token",
    )  # fmt: skip


def test_sampling_follows_the_formula() -> None:
    """Winner and value of argmax(logits / T - log(-log(1 - u))), in whole numbers and double precision."""
    generator = torch.Generator().manual_seed(5)
    logits, seed, position, temperature = torch.randn(1, 200, generator=generator), -(2**61) + 9, 321, 0.8
    argmax, maximum = torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 1)
    kernels._gumbel_sample_kernel[(1, 1)](
        argmax, 1, maximum, 1, None, 0, None, logits, 200, torch.zeros(1, dtype=torch.int32), torch.tensor([seed]),
        torch.tensor([position]), torch.tensor([temperature]), 200,
        BLOCK_SIZE=256, APPLY_TEMPERATURE=True, USE_FP64=False, PER_TOKEN_COL=False,
    )  # fmt: skip
    key = int(philox.randint(np.array([seed]), np.array([position]))[0])
    noisy = []
    for column in range(200):
        word = int(philox.scramble(
            (np.array([key], np.uint64), np.zeros(1, np.uint64)),
            (np.array([column], np.uint64), *[np.zeros(1, np.uint64)] * 3),
        )[0][0])  # fmt: skip
        signed = word - 2**32 if word >= 2**31 else word
        u = max(float(np.float32(-signed - 1 if signed < 0 else signed) * SCALE), float(SCALE))
        noisy.append(float(logits[0, column]) / temperature - math.log(-math.log1p(-u)))
    assert int(argmax) == int(np.argmax(noisy))
    assert float(maximum) == pytest.approx(max(noisy), abs=1e-5)


def test_sampled_frequencies_are_the_softmax() -> None:
    rows, logits = 4000, torch.tensor([2.0, 1.0, 0.0, -1.0])
    argmax, maximum = torch.zeros(rows, 1, dtype=torch.int64), torch.zeros(rows, 1)
    kernels._gumbel_sample_kernel[(rows, 1)](
        argmax, 1, maximum, 1, None, 0, None, logits.repeat(rows, 1), 4, torch.zeros(rows, dtype=torch.int32),
        torch.tensor([1234]), torch.arange(rows), torch.tensor([1.0]), 4,
        BLOCK_SIZE=4, APPLY_TEMPERATURE=False, USE_FP64=False, PER_TOKEN_COL=False,
    )  # fmt: skip
    expected = torch.softmax(logits, 0)
    seen = torch.bincount(argmax.view(-1), minlength=4) / rows
    assert ((seen - expected).abs() < 4 * (expected * (1 - expected) / rows).sqrt()).all()


def test_a_request_samples_the_same_in_any_batch() -> None:
    """The noise depends on seed, position and column only, not on the row or the other requests."""

    def sample(rows: int, row: int) -> int:
        generator = torch.Generator().manual_seed(1)
        logits = torch.zeros(rows, 300)
        logits[row] = torch.randn(300, generator=generator)
        argmax, maximum = torch.zeros(rows, 10, dtype=torch.int64), torch.zeros(rows, 10)
        kernels._gumbel_sample_kernel[(rows, 10)](
            argmax, 10, maximum, 10, None, 0, None, logits, 300, torch.arange(rows, dtype=torch.int32),
            torch.full((rows,), 77), torch.full((rows,), 5), torch.ones(rows), 300,
            BLOCK_SIZE=BLOCK, APPLY_TEMPERATURE=False, USE_FP64=False, PER_TOKEN_COL=False,
        )  # fmt: skip
        return int(argmax[row, maximum[row].argmax()])

    assert sample(1, 0) == sample(6, 4) == sample(3, 1)


@pytest.mark.parametrize("vocab", [31, 75])
def test_temperature_divides_only_rows_that_need_it(same: Same, draw: Any, vocab: int) -> None:
    logits = draw.floats(4, vocab + 3)[:, :vocab]
    states, temperatures = (
        torch.tensor([0, 1, 2, 5], dtype=torch.int32),
        torch.tensor([0.0, 1.0, 0.7, 9.0, 9.0, 1.7]),
    )
    after, *_ = same(
        kernels._temperature_kernel, (4, math.ceil(vocab / BLOCK)), logits, logits.stride(0), states, temperatures,
        vocab, BLOCK_SIZE=BLOCK,
    )  # fmt: skip
    assert torch.equal(after[:2], logits[:2]) and not torch.equal(after[2:], logits[2:])


def test_temperature_rounds_half_precision_to_the_nearest() -> None:
    """The interpreter is no reference here: it rounds bfloat16 halves up and drops the carry."""
    logits = torch.randn(2, 500, generator=torch.Generator().manual_seed(0)).bfloat16()
    expected = (logits.float() / torch.tensor([[0.7], [1.3]])).bfloat16()
    kernels._temperature_kernel[(2, 1)](
        logits, 500, torch.tensor([0, 1], dtype=torch.int32), torch.tensor([0.7, 1.3]), 500, BLOCK_SIZE=512
    )
    assert torch.equal(logits, expected)
