# SPDX-License-Identifier: Apache-2.0
"""vLLM itself, imported once and only when a test of this package runs: ten seconds."""

from __future__ import annotations

import importlib
import os
import types
from collections.abc import Callable, Iterator

import pytest

from afd.agent.environment import cpu_environment

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
