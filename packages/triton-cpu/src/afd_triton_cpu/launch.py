# SPDX-License-Identifier: Apache-2.0
"""One kernel launch: its torch implementation when it has one, Triton's interpreter otherwise."""

from __future__ import annotations

import inspect
import threading
from typing import Any

from triton.runtime.interpreter import InterpretedFunction

from afd_triton_cpu.registry import KERNELS, Implementation, Registry

# Triton's interpreter keeps the grid position and the patched language in module globals: one launch at a time.
# Re-entrant because a launch hook may launch a kernel.
_INTERPRETER = threading.RLock()


class DispatchedFunction(InterpretedFunction):  # type: ignore[misc]  # triton is untyped
    """What `triton.jit` returns on this backend.

    The implementation is looked up at the first launch, so decorating stays cheap and importing a module full of
    kernels imports none of their implementations.
    """

    registry: Registry | None = None

    def __init__(self, fn: Any, **kwargs: Any) -> None:
        super().__init__(fn, **kwargs)
        self._resolved = False
        self._implementation: Implementation | None = None
        self._names = frozenset(self.arg_names)

    @property
    def implementation(self) -> Implementation | None:
        """The torch version this kernel launches, or None when it runs in the interpreter."""
        if not self._resolved:
            registry = self.registry
            if registry is None:
                import afd_triton_cpu.kernels  # noqa: F401  registers the implementations

                registry = KERNELS
            self._implementation = registry.find(self.fn)
            self._resolved = True
        return self._implementation

    def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        """Launch over `grid` (a tuple, or a function of the bound arguments). Launch options are ignored."""
        if warmup:
            return
        implementation = self.implementation
        if implementation is None:
            self.interpret(*args, grid=grid, **kwargs)
            return
        kwargs = {name: value for name, value in kwargs.items() if name in self._names}
        for hook in self.pre_run_hooks:
            hook(*args, **kwargs)
        if callable(grid):
            bound = inspect.signature(self.fn).bind(*args, **kwargs)
            bound.apply_defaults()
            grid = grid(bound.arguments)
        implementation(grid, *args, **kwargs)

    def interpret(self, *args: Any, grid: Any, **kwargs: Any) -> None:
        """Launch in Triton's interpreter, whether or not the kernel has a torch version."""
        with _INTERPRETER:
            super().run(*args, grid=grid, warmup=False, **kwargs)
