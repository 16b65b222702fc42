# SPDX-License-Identifier: Apache-2.0
"""Triton backend "cpu": launches of known kernels run as torch and numpy code, all others in Triton's interpreter.

Triton imports `compiler` and `driver` of this package while it discovers its backends (`import triton`). Nothing here
imports vLLM, and importing the package itself does nothing.

    driver.py    the backend as Triton sees it; decides whether this machine is CPU-only
    compiler.py  the compiler half that Triton demands; there is nothing to compile
    seam.py      puts launch.DispatchedFunction in the place of Triton's InterpretedFunction
    launch.py    one kernel launch: known kernel or interpreter
    registry.py  kernel (module and name) to implementation; compares signatures
    memory.py    tensors and raw addresses as numpy arrays, with pointer semantics
    kernels/     the implementations
"""
