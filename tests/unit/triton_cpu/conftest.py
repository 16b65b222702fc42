# SPDX-License-Identifier: Apache-2.0
"""Launches one kernel twice, in Triton's interpreter and as its torch version, and compares every bit of memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

N, CONTEXT, VOCAB = (
    12,
    64,
    75,
)  # request states, tokens per state, columns: small, since the interpreter is slow


class Batch:
    """A random batch: R requests of N states, either all decoding or prefills among them, and their counters."""

    def __init__(self, seed: int, mixed: bool) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.size = int(self.ints(1, 8, (1,))[0])
        self.states = torch.randperm(N, generator=self.generator)[: self.size].to(torch.int32)
        lengths = self.ints(1, 9, (self.size,)) if mixed else torch.ones(self.size, dtype=torch.int32)
        self.starts = torch.zeros(self.size + 1, dtype=torch.int32)
        self.starts[1:] = lengths.cumsum(0)
        self.tokens = int(self.starts[-1])
        self.computed = self.ints(0, 20, (N,))
        # Around computed + lengths, so that requests end before, at and after their prompt's end.
        self.prefill = self.ints(0, 30, (N,)) if mixed else self.ints(0, 3, (N,))
        self.all_tokens = self.ints(0, VOCAB, (N, CONTEXT))
        self.lengths = lengths
        self.seq_lens = self.computed[self.states.long()] + lengths
        if mixed:  # one request that ends exactly at its prompt's end
            self.prefill[self.states[-1].long()] = self.seq_lens[-1]

    def ints(
        self, low: int, high: int, shape: tuple[int, ...], dtype: torch.dtype = torch.int32
    ) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=self.generator).to(dtype)

    def floats(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator)


def copy(value: Any) -> Any:
    """A tensor with memory of its own and the same place in it: kernels see addresses and strides, not shapes."""
    if not isinstance(value, torch.Tensor):
        return value
    twin = torch.empty(0, dtype=value.dtype)
    return twin.set_(value.untyped_storage().clone(), value.storage_offset(), value.size(), value.stride())


def memory(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes of a tensor's storage."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


@pytest.fixture
def same() -> Callable[..., list[Any]]:
    """Launch both ways on copies of the arguments; assert equal memory; return the torch version's arguments."""

    def check(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> list[Any]:
        assert kernel.implementation is not None, f"{kernel.__name__} has no torch version"
        interpreted, dispatched = [copy(a) for a in arguments], [copy(a) for a in arguments]
        kernel.interpret(*interpreted, grid=grid, **options)
        kernel[grid](*dispatched, **options)
        for place, (theirs, ours) in enumerate(zip(interpreted, dispatched, strict=True)):
            if isinstance(theirs, torch.Tensor) and not torch.equal(memory(theirs), memory(ours)):
                pytest.fail(
                    f"argument {place} of {kernel.__name__}: interpreter {theirs}, torch version {ours}"
                )
        return dispatched

    return check


@pytest.fixture(params=["decode 0", "mixed 1", "mixed 2", "mixed 3"])
def batch(request: pytest.FixtureRequest) -> Batch:
    """A batch per kind and seed."""
    kind, seed = request.param.split()
    return Batch(int(seed), kind == "mixed")


@pytest.fixture(params=range(2), ids="seed {}".format)
def draw(request: pytest.FixtureRequest) -> Batch:
    """A source of random tensors, for kernels that know no batch."""
    return Batch(request.param, True)
