# SPDX-License-Identifier: Apache-2.0
"""The compiler half of the backend. Triton demands one; on this backend no kernel is ever compiled."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from triton.backends.compiler import BaseBackend, GPUTarget


class CpuBackend(BaseBackend):  # type: ignore[misc]  # triton is untyped
    """Accepts the target "cpu" and refuses to compile for it."""

    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        return bool(target.backend == "cpu")

    def hash(self) -> str:
        return "afd-triton-cpu"

    def parse_options(self, options: dict[str, Any]) -> object:
        raise NotImplementedError("the cpu backend runs kernels, it does not compile them")

    def add_stages(self, stages: dict[str, Any], options: object, language: object = None) -> None:
        raise NotImplementedError("the cpu backend runs kernels, it does not compile them")

    def load_dialects(self, context: object) -> None:
        """No dialect of its own."""

    def get_module_map(self) -> dict[str, ModuleType]:
        return {}
