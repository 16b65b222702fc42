# SPDX-License-Identifier: Apache-2.0
"""A launch goes to the torch version when there is one that fits, and to the interpreter otherwise."""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from afd_triton_cpu import kernels as _registers
from afd_triton_cpu.launch import DispatchedFunction
from afd_triton_cpu.registry import KERNELS, Registry, parameters

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")

Caplog = pytest.LogCaptureFixture

registry = Registry()
launches: list[tuple[Any, ...]] = []


class Own(DispatchedFunction):
    """A kernel whose implementations are those of this module."""

    registry = registry


def fill(x, value, n, BLOCK: tl.constexpr, SIGN: tl.constexpr = 1):  # type: ignore[no-untyped-def]
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + places, value * SIGN, mask=places < n)


def changed(x, value, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.store(x + tl.arange(0, BLOCK), value)


def renamed_default(x, value, BLOCK: tl.constexpr = 8):  # type: ignore[no-untyped-def]
    tl.store(x + tl.arange(0, BLOCK), value)


@registry.register(__name__, "fill")
def torch_fill(grid: Any, x: Any, value: Any, n: Any, BLOCK: Any, SIGN: Any = 1) -> None:
    launches.append((grid, value, n, BLOCK, SIGN))
    x[:n] = value * SIGN


@registry.register(__name__, "changed")
def torch_changed(grid: Any, x: Any, value: Any, n: Any, BLOCK: Any) -> None:
    raise AssertionError("the kernel has no parameter n")


@registry.register(__name__, "renamed_default")
def torch_renamed_default(grid: Any, x: Any, value: Any, BLOCK: Any = 4) -> None:
    raise AssertionError("the default differs")


@pytest.fixture(autouse=True)
def no_launches() -> Iterator[None]:
    launches.clear()
    yield


@triton.jit
def twice(x):  # type: ignore[no-untyped-def]
    return x * 2


@triton.jit
def unknown(x, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    places = tl.arange(0, BLOCK)
    doubled = twice(tl.load(x + places, mask=places < n)) + tl.sum(tl.zeros((4,), tl.int64))
    tl.store(x + places, doubled, mask=places < n)


@triton.autotune([triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})], key=["n"])
@triton.heuristics({"MORE": lambda arguments: arguments["n"]})
@triton.jit
def tuned(x, n, BLOCK: tl.constexpr, MORE: tl.constexpr):  # type: ignore[no-untyped-def]
    places = tl.arange(0, BLOCK)
    tl.store(x + places, tl.load(x + places, mask=places < n) + MORE, mask=places < n)


def test_a_known_kernel_runs_its_torch_version() -> None:
    x = torch.zeros(6)
    Own(fill)[(2,)](x, 5, 4, BLOCK=4, num_warps=1)  # num_warps is Triton's own option
    assert launches == [((2,), 5, 4, 4, 1)] and x.tolist() == [5, 5, 5, 5, 0, 0]


def test_both_ways_of_a_known_kernel_agree() -> None:
    x, y = torch.zeros(6), torch.zeros(6)
    Own(fill)[(2,)](x, 5, 5, BLOCK=4, SIGN=-1)
    Own(fill).interpret(y, 5, 5, grid=(2,), BLOCK=4, SIGN=-1)
    assert torch.equal(x, y) and len(launches) == 1


def test_a_grid_may_be_a_function_of_the_bound_arguments() -> None:
    kernel = Own(fill)[lambda bound: (triton.cdiv(bound["n"], bound["BLOCK"]), bound["SIGN"])]
    kernel(torch.zeros(6), 5, 5, BLOCK=2)
    assert launches[0][0] == (3, 1)


def test_hooks_run_before_a_launch_and_a_warmup_launches_nothing() -> None:
    kernel, seen = Own(fill), []
    kernel.add_pre_run_hook(lambda *arguments, **options: seen.append((len(arguments), options)))
    kernel.run(torch.zeros(2), 1, 2, BLOCK=2, grid=(1,), warmup=True)
    assert not seen and not launches
    kernel[(1,)](torch.zeros(2), 1, 2, BLOCK=2, num_stages=3)
    assert seen == [(3, {"BLOCK": 2})] and len(launches) == 1


def test_an_unknown_kernel_and_its_device_functions_are_interpreted() -> None:
    x = torch.arange(6)
    unknown[(1,)](x, 4, BLOCK=8)
    assert unknown.implementation is None and x.tolist() == [0, 2, 4, 6, 4, 5]


def test_autotuned_kernels_take_their_first_configuration() -> None:
    x = torch.zeros(4, dtype=torch.int64)
    tuned[(1,)](x, 3)
    assert x.tolist() == [3, 3, 3, 0] and tuned.best_config.kwargs == {"BLOCK": 16}


@pytest.mark.parametrize("kernel", [changed, renamed_default])
def test_a_changed_kernel_is_interpreted_with_one_warning(kernel: Any, caplog: Caplog) -> None:
    launcher, x = Own(kernel), torch.zeros(8)
    with caplog.at_level(logging.WARNING, "afd_triton_cpu"):
        launcher[(1,)](x, 3, BLOCK=8)
        launcher[(1,)](x, 4, BLOCK=8)
    assert x.tolist() == [4] * 8
    (record,) = caplog.records
    assert f"{kernel.__name__} has changed" in record.message and "x, value" in record.message


def test_a_kernel_of_the_same_name_elsewhere_is_another_kernel(caplog: Caplog) -> None:
    elsewhere = Registry()
    elsewhere.register("some.other.module", "fill")(torch_fill)
    with caplog.at_level(logging.WARNING, "afd_triton_cpu"):
        assert elsewhere.find(fill) is None
    assert not caplog.records


def test_one_kernel_has_one_implementation() -> None:
    with pytest.raises(ValueError, match="two implementations"):
        registry.register(__name__, "fill")(torch_fill)


def test_interpreted_launches_of_two_threads_do_not_disturb_each_other() -> None:
    """Triton's interpreter keeps the grid position and the patched language in module globals."""
    results = [torch.ones(40, dtype=torch.int64) for _ in range(4)]

    def work(x: torch.Tensor) -> None:
        for _ in range(5):
            unknown[(1,)](x, 40, BLOCK=64)

    threads = [threading.Thread(target=work, args=(x,)) for x in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert all((x == 2**5).all() for x in results)


@pytest.mark.parametrize(("module", "name"), sorted(KERNELS.known()))
def test_vllm_s_kernel_has_the_signature_that_is_implemented(module: str, name: str) -> None:
    assert _registers.__all__
    kernel = vars(importlib.import_module(module))[name]
    assert parameters(kernel.fn) == parameters(KERNELS.known()[module, name])[1:]
    assert kernel.implementation is KERNELS.known()[module, name]
