# SPDX-License-Identifier: Apache-2.0
"""System tests start real vLLM in real processes. vLLM is imported once per runner; everything is forked from there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from afd.testing.questions import MAX_MODEL_LEN, STEP_TOKENS
from afd.testing.stack import Group, Layout, SharedLauncher
from afd.topology import Topology

MODEL = "builtin:tiny-deepseek-v2"
VLLM_ARGS = (
    *("--dtype", "float32", "--max-model-len", str(MAX_MODEL_LEN)),
    *("--max-num-batched-tokens", str(STEP_TOKENS), "--max-num-seqs", "32"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.system)


def layout(runner: str = "v2", model: str = MODEL, **changes: Any) -> Layout:
    """1A1F of the builtin model, with what smoke gives to vLLM."""
    return Layout(model=model, runner=runner, topology=Topology(1, 1), vllm_args=VLLM_ARGS, **changes)


@pytest.fixture(scope="session")
def launchers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """The path of a launcher that has imported vLLM for a runner, to fork roles and references from."""
    with ExitStack() as scope:
        paths: dict[str, str] = {}

        def launcher(runner: str) -> str:
            if runner not in paths:
                started = SharedLauncher(tmp_path_factory.mktemp("launcher"), runner)
                scope.callback(started.close)
                started.wait()
                paths[runner] = started.path
            return paths[runner]

        yield launcher


@pytest.fixture
def groups(tmp_path: Path, launchers: Callable[[str], str]) -> Iterator[Callable[..., Group]]:
    """Makes groups (not started) that are killed at the end of the test."""
    with ExitStack() as scope:
        made = 0

        def group(chosen: Layout | None = None, **changes: Any) -> Group:
            nonlocal made
            made += 1
            chosen = chosen or layout()
            changes.setdefault("launcher", launchers(chosen.runner))
            return scope.enter_context(Group(chosen, tmp_path / f"group{made}", **changes))

        yield group
