# SPDX-License-Identifier: Apache-2.0
"""vLLM itself, imported once and only when a test of this package runs: ten seconds."""

from __future__ import annotations

import importlib
import os
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from afd.agent.environment import cpu_environment
from afd.agent.vllm_arguments import complete, parse
from afd.testing.tiny import resolve_builtin

Module = Callable[[str], types.ModuleType]


@pytest.fixture(scope="package")
def module() -> Iterator[Module]:
    """Imports a module of vLLM, or one of ours that needs it, in the environment of a role."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in cpu_environment({}, runner="v2", threads=1, bind="nobind").items():
            patch.setenv(name, value)
        patch.setenv("VLLM_LOGGING_LEVEL", "ERROR")
        patch.setenv("HF_HUB_OFFLINE", "1")
        cores = os.sched_getaffinity(0)
        yield importlib.import_module
        os.sched_setaffinity(0, cores)


@pytest.fixture(scope="package")
def engine_config(module: Module) -> Callable[..., Any]:
    """vLLM's configuration for the builtin model and more arguments."""
    module("afd.launch.inspection").inspect_families()

    def make(*argv: str, completed: bool = True) -> Any:
        given = ["--dtype", "float32", "--max-model-len", "64", "--max-num-batched-tokens", "64", *argv]
        if completed:
            given = complete(parse(given), additional={"afd": {"port": 9444}}, worker_class=None)
        return module("afd.ffn.process").engine_config(
            [str(resolve_builtin("builtin:tiny-deepseek-v2")), *given]
        )

    return make
