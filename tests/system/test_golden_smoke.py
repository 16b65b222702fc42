# SPDX-License-Identifier: Apache-2.0
"""`afd-entrypoint smoke`: single-node compared with golden answers of native vLLM, and controls that must fail."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import msgspec
import pytest

from afd.support import records
from afd.testing import golden

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def smoke(
    launchers: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., tuple[subprocess.CompletedProcess[str], records.Record]]:
    """Runs it; golden answers are made once."""
    path = tmp_path_factory.mktemp("golden") / "golden.json"
    made = golden.make(golden.layout(), launchers("v2"))
    print(f"\ngolden answers: {len(made.answers)} in {made.seconds} s")
    path.write_bytes(msgspec.json.encode(made))

    def run(*arguments: str) -> tuple[subprocess.CompletedProcess[str], records.Record]:
        kept = tmp_path_factory.mktemp("records")
        variables = {
            "AFD_GOLDEN": str(path),
            "AFD_RECORDS": str(kept),
            "AFD_LAUNCHER": launchers("v2"),
        }
        done = subprocess.run(
            [sys.executable, "-m", "afd.container.entrypoint", "smoke", *arguments],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=300,
        )
        print(done.stdout, done.stderr)
        (record,) = records.load(kept)
        return done, record

    return run


def test_the_container_answers_as_native_vllm_did_and_its_record_says_so(
    smoke: Callable[..., tuple[subprocess.CompletedProcess[str], records.Record]],
) -> None:
    done, record = smoke()
    assert done.returncode == 0, done.stdout + done.stderr
    assert record.kind == "image" and record.name.endswith("-single-node") and record.passed
    (comparison,) = record.comparisons
    assert comparison.equal == comparison.tokens > 500
    assert (record.cleanup.processes, record.cleanup.segments) == (0, 0)


@pytest.mark.parametrize("control", ["expert", "token"])
def test_a_control_fails_and_its_record_says_that_this_was_noticed(
    control: str, smoke: Callable[..., tuple[subprocess.CompletedProcess[str], records.Record]]
) -> None:
    done, record = smoke("--control", control)
    assert done.returncode == 71
    assert "problem: single 0: " in done.stdout and "control noticed in " in done.stdout
    assert record.name.endswith(f"-control-{control}")
    assert (record.counts.passed, record.counts.failed) == (1, 0)
