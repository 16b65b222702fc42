# SPDX-License-Identifier: Apache-2.0
"""The launch seam: from now on `triton.jit` makes DispatchedFunction objects.

With `knobs.runtime.interpret` on, `triton.jit` looks up `triton.runtime.interpreter.InterpretedFunction` each time it
decorates a function. That module cannot be imported yet when Triton discovers its backends (it needs `triton.jit`
itself), so a one-shot import hook replaces the class right after the module has been executed. This is the only name
that is replaced, it belongs to Triton, and no vLLM object is touched.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_INTERPRETER = "triton.runtime.interpreter"


class _SeamLoader(Loader):
    """Runs the module's own loader, then replaces the class."""

    def __init__(self, own: Loader) -> None:
        self._own = own

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._own
        if module.__spec__ is not None:
            module.__spec__.loader = self._own
        self._own.exec_module(module)
        launch = importlib.import_module("afd_triton_cpu.launch")
        module.__dict__["InterpretedFunction"] = launch.DispatchedFunction


class _SeamFinder(MetaPathFinder):
    """Answers once, for Triton's interpreter module."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _INTERPRETER:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        spec.loader = _SeamLoader(spec.loader)
        return spec


def install() -> None:
    """Turn the interpreter on for this process (not for its children's environment) and hook its class.

    Called while `import triton` is under way, once. Raises RuntimeError when Triton's interpreter is loaded already:
    kernels decorated before this point would run without the seam.
    """
    from triton import knobs

    if _INTERPRETER in sys.modules:
        raise RuntimeError(f"{_INTERPRETER} was imported before the cpu backend was discovered")
    propagate = knobs.propagate_env
    knobs.propagate_env = False  # do not write TRITON_INTERPRET into os.environ
    try:
        knobs.runtime.interpret = True
    finally:
        knobs.propagate_env = propagate
    sys.meta_path.insert(0, _SeamFinder())
