# SPDX-License-Identifier: Apache-2.0
"""Which kernels have an implementation, and whether it still fits the kernel.

An implementation is a function `(grid, <the kernel's parameters>) -> None`. Its own signature says what it expects:
the same parameter names in the same order with the same defaults, so that Python's ordinary call binds a launch.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

log = logging.getLogger("afd_triton_cpu")

Implementation = Callable[..., None]


def parameters(function: Callable[..., Any]) -> tuple[tuple[str, object], ...]:
    """Names and defaults of a function's parameters, in order."""
    return tuple((p.name, p.default) for p in inspect.signature(function).parameters.values())


class Registry:
    """Kernels by module and name. The module is part of the key: vLLM has different kernels of the same name."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Implementation] = {}

    def register(self, module: str, kernel: str) -> Callable[[Implementation], Implementation]:
        """Decorator: the function implements `kernel` of `module`. Raises ValueError when it is registered twice."""

        def add(implementation: Implementation) -> Implementation:
            if (module, kernel) in self._known:
                raise ValueError(f"{module}.{kernel} has two implementations")
            self._known[module, kernel] = implementation
            return implementation

        return add

    def known(self) -> dict[tuple[str, str], Implementation]:
        """(module, kernel name) -> implementation."""
        return dict(self._known)

    def find(self, kernel: Callable[..., Any]) -> Implementation | None:
        """The implementation of a kernel (the undecorated function), or None: then the interpreter runs it.

        A kernel whose parameters are not those of its implementation has changed upstream: None, and a warning.
        """
        key = (kernel.__module__, kernel.__name__)
        implementation = self._known.get(key)
        if implementation is None:
            log.info("%s.%s runs in Triton's interpreter (slow)", *key)
            return None
        expected = parameters(implementation)[1:]
        actual = parameters(kernel)
        if actual == expected:
            return implementation
        log.warning(
            "%s.%s has changed: its parameters are (%s), the torch version expects (%s). "
            "It runs in Triton's interpreter, which is slow",
            *key,
            ", ".join(name for name, _ in actual),
            ", ".join(name for name, _ in expected),
        )
        return None


KERNELS = Registry()
