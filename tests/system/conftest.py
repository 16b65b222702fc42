# SPDX-License-Identifier: Apache-2.0
"""System tests start real vLLM in real processes. vLLM is imported once per runner; everything is forked from there."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from afd.testing.compare import Comparison
from afd.testing.completions import Answer, Question, ask_all
from afd.testing.questions import MAX_MODEL_LEN, STEP_TOKENS, one_at_a_time, sampled
from afd.testing.reference import Reference
from afd.testing.smoke import Outcome
from afd.testing.smoke_record import write_record
from afd.testing.stack import Group, Layout, SharedLauncher
from afd.topology import Topology
from tests.lasting import LASTING
from tests.system.interview import ITERATIONS, Interview, Script, interview_native

ROOT = Path(__file__).parents[2]
MODEL = "builtin:tiny-deepseek-v2"
VLLM_ARGS = (
    *("--dtype", "float32", "--max-model-len", str(MAX_MODEL_LEN)),
    *("--max-num-batched-tokens", str(STEP_TOKENS), "--max-num-seqs", "32"),
)
DETAILED = (*VLLM_ARGS, ITERATIONS)
"""The same, and vLLM logs what is in each step."""


Groups = Callable[..., Group]
Natives = Callable[[Layout, Script], Interview]
Recorded = Callable[[Layout, Comparison], None]
"""What the fixtures groups, natives and recorded give to a test."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.system)


def layout(runner: str = "v2", model: str = MODEL, **changes: Any) -> Layout:
    """1A1F of the builtin model, with what smoke gives to vLLM unless ``changes`` say otherwise."""
    changes.setdefault("vllm_args", VLLM_ARGS)
    changes.setdefault("topology", Topology(1, 1))
    return Layout(model=model, runner=runner, **changes)


@pytest.fixture(scope="session")
def launchers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """The path of a launcher that has imported vLLM for a runner, to fork roles and references from."""
    with ExitStack() as scope:
        # Targets and worker classes of this directory are imported by name in what is forked from the launcher.
        patch = scope.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))))
        paths: dict[str, str] = {}

        def launcher(runner: str) -> str:
            if runner not in paths:
                started = SharedLauncher(tmp_path_factory.mktemp("launcher"), runner)
                scope.callback(started.close)
                LASTING.add(started.pid)
                started.wait()
                paths[runner] = started.path
            return paths[runner]

        yield launcher


@pytest.fixture(scope="session")
def natives(
    launchers: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Layout, Script], Interview]:
    """Native vLLM's answers to a script. What differs in ranks only shares a reference, as long as the tensor-parallel
    size is the same: that one decides the order of sums. Each is asked once per session, and none stays up."""
    held: dict[tuple[Layout, Script], Interview] = {}

    def interview(chosen: Layout, script: Script) -> Interview:
        chosen = replace(chosen, topology=Topology(chosen.tp, 1), afd_args=())
        if (chosen, script) not in held:
            directory = tmp_path_factory.mktemp("native")
            held[chosen, script] = interview_native(chosen, directory, launchers(chosen.runner), script)
        return held[chosen, script]

    return interview


@pytest.fixture
def recorded(request: pytest.FixtureRequest) -> Callable[[Layout, Comparison], None]:
    """Writes the record of a run that compared tokens, when the option --records names a directory.

    For tests whose group has ended with code 0 on both sides. A run without such an end has no record.
    """
    started = time.monotonic()
    chosen: str | None = request.config.getoption("--records")

    def record(layout: Layout, comparison: Comparison) -> None:
        if chosen is not None:
            transport = "collective" if "collective" in layout.afd_args else "shm"
            outcome = Outcome(comparison=comparison, transport=transport)
            print(f"record: {write_record(layout, outcome, started, Path(chosen), kind='system')}")

    return record


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


@pytest.fixture(scope="session")
def proofs(
    tmp_path_factory: pytest.TempPathFactory, launchers: Callable[[str], str]
) -> Callable[[str], tuple[list[Question], list[Answer]]]:
    """A few questions that show a group to be healthy, with the answers of native vLLM on a runner."""
    questions = [*one_at_a_time()[:2], sampled()[0]]
    known: dict[str, list[Answer]] = {}

    async def native(runner: str) -> list[Answer]:
        chosen = layout(runner)
        reference = await Reference.start(chosen, tmp_path_factory.mktemp("proofs"), launchers(runner))
        try:
            await reference.ready(60)
            # One by one: native V1 on CPU fails when the prompt of a seeded request is cut into steps.
            return await ask_all(reference.url, chosen.served, questions, concurrency=1, timeout_s=60)
        finally:
            await reference.close()

    def proof(runner: str) -> tuple[list[Question], list[Answer]]:
        if runner not in known:
            known[runner] = asyncio.run(native(runner))
        return questions, known[runner]

    return proof
