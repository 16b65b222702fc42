# SPDX-License-Identifier: Apache-2.0
"""`afd-entrypoint smoke`: a control is told apart from a run in which something else went wrong."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from afd import pins
from afd.container.smoke import DIFFERENT, NOT_NOTICED, exit_code
from afd.testing import golden
from afd.testing.compare import Comparison, Verdict
from afd.testing.smoke import Outcome

NOT_ENOUGH = {"ASCEND_HOME_PATH": "/cann", "ASCEND_RT_VISIBLE_DEVICES": "0"}
"""One device for two roles."""


def outcome(*agrees: bool, problems: Sequence[str] = ()) -> Outcome:
    verdicts = tuple(
        Verdict(f"question {n}", yes, False, 0, 5, math.nan, 0.0, "" if yes else "another token")
        for n, yes in enumerate(agrees)
    )
    return Outcome(comparison=Comparison(verdicts), problems=list(problems))


@pytest.mark.parametrize(
    ("found", "control", "code"),
    [
        (outcome(True, True), "none", 0),
        (outcome(True, False), "none", DIFFERENT),
        (outcome(True, problems=["left behind: x"]), "none", DIFFERENT),
        (outcome(True, False), "token", DIFFERENT),
        (outcome(False, False), "expert", DIFFERENT),
        (outcome(True, True), "expert", NOT_NOTICED),
        (outcome(), "expert", NOT_NOTICED),
        (
            outcome(True, False, problems=["single-node ended with 71 instead of 0: ffn failed"]),
            "token",
            NOT_NOTICED,
        ),
        (outcome(problems=["single-node ended with 71 instead of 0: ffn failed"]), "expert", NOT_NOTICED),
    ],
)
def test_a_control_is_noticed_only_when_the_comparison_failed_and_nothing_else_did(
    found: Outcome, control: str, code: int
) -> None:
    assert exit_code(found, control) == code


@pytest.mark.parametrize(
    ("arguments", "code"), [((), 71), (("--control", "expert"), 1), (("--control=token",), 1)]
)
def test_a_role_that_fails_is_not_what_a_control_looks_for(
    arguments: tuple[str, ...], code: int, tmp_path: Path
) -> None:
    """single-node refuses what the environment says, so nothing comes up to be compared."""
    path = tmp_path / "golden.json"
    path.write_bytes(msgspec.json.encode(right_golden()))
    done = subprocess.run(
        [sys.executable, "-m", "afd.container.smoke", *arguments],
        env={**os.environ, "AFD_GOLDEN": str(path), **NOT_ENOUGH},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "afd-entrypoint: error: single-node exited with code 64" in done.stderr


def right_golden() -> golden.Golden:
    """Answers that belong to this model and these questions, as far as one can see before it is asked."""
    (answer,) = [
        golden.GoldenAnswer(
            name="x", tokens=(1,), logprobs=(0.0,), top=((0.0, -9.0),), text="x", finish="length"
        )
    ]
    return golden.Golden(
        model=golden.MODEL,
        weights=golden.digest_of_weights(golden.MODEL),
        asked=golden.digest_of_questions(),
        vllm=pins.load().vllm_version,
        runner="v2",
        dtype="float32",
        seconds=1.0,
        answers=(answer,),
    )


def test_usage_is_64_for_a_control_too(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "afd.container.smoke",
            "--control",
            "token",
            "--golden",
            str(tmp_path / "none"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 64, done.stderr
