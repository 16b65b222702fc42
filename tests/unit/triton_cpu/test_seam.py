# SPDX-License-Identifier: Apache-2.0
"""The seam is in place before the first kernel is decorated, and only where it should be.

Each test is a fresh Python process, because Triton discovers its backends once, while it is imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest
from vllm.triton_utils import HAS_TRITON

from afd import pins

Run = Callable[..., list[str]]


@pytest.fixture
def python(tmp_path: Path) -> Run:
    """Runs a program and returns the words that it prints. Fails with its stderr when it fails."""

    def run(program: str, **environment: str) -> list[str]:
        file = tmp_path / "program.py"  # a file, because Triton reads the source of its kernels
        file.write_text(textwrap.dedent(program), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, str(file)],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return (done.stdout + done.stderr).split()

    return run


def test_the_alias_has_the_version_of_vllm_and_says_cpu() -> None:
    assert version("vllm") == f"{pins.load().vllm_version}+cpu"
    assert HAS_TRITON


def test_the_backend_is_found_by_its_entry_point() -> None:
    found = [point.value for point in entry_points(group="triton.backends") if point.name == "cpu"]
    assert found == ["afd_triton_cpu"]


def test_importing_the_package_imports_neither_torch_nor_triton_nor_vllm(python: Run) -> None:
    assert (
        python("""
        import sys, afd_triton_cpu
        print(*{"torch", "triton", "vllm", "numpy"} & set(sys.modules))
    """)
        == []
    )


def test_importing_triton_installs_the_seam_and_forked_processes_inherit_it(python: Run) -> None:
    words = python("""
        import os, sys
        import triton, triton.language as tl

        @triton.jit
        def double(x, n, BLOCK: tl.constexpr):
            places = tl.arange(0, BLOCK)
            tl.store(x + places, 2 * tl.load(x + places, mask=places < n), mask=places < n)

        print(type(double).__module__, triton.runtime.driver.active.get_current_target().backend)
        print("TRITON_INTERPRET" in os.environ, "vllm" in sys.modules, "afd_triton_cpu.kernels" in sys.modules)
        print(any("afd" in type(finder).__module__ for finder in sys.meta_path), flush=True)

        def launch():
            import torch
            x = torch.arange(3)
            double[(1,)](x, 3, BLOCK=4)
            print(*x.tolist(), flush=True)

        child = os.fork()
        if child == 0:
            launch()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        launch()
    """)
    assert words == ["afd_triton_cpu.launch", "cpu", *["False"] * 4, *["0", "2", "4"] * 2]


def test_runner_v1_does_not_see_the_backend(python: Run) -> None:
    """Without a backend named cpu, vLLM turns Triton off on CPU and takes its C++ versions of the kernels."""
    words = python("""
        import sys
        from triton.backends import backends
        print("cpu" in backends, "afd_triton_cpu" in sys.modules)
    """, TRITON_BACKENDS_IN_TREE="1")  # fmt: skip
    assert words == ["False", "False"]


def test_the_backend_refuses_a_machine_with_an_accelerator(python: Run) -> None:
    """The device is registered with torch the way that vendors' extensions do it."""
    words = python("""
        import types, torch
        torch.utils.rename_privateuse1_backend("npu")
        module = types.ModuleType("torch.npu")
        module.is_available = lambda: True
        torch._register_device_module("npu", module)
        import triton
        @triton.jit
        def kernel(x): pass
        print(triton.backends.backends["cpu"].driver.is_active(), type(kernel).__name__)
    """)
    assert words[:2] == ["False", "JITFunction"]
    assert "with a npu device" in " ".join(words) and "Uninstall it" in " ".join(words)
