# SPDX-License-Identifier: Apache-2.0
"""The Dockerfiles keep the rules of tests/rules/dockerfiles.py, and lines that break one are found."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from afd import pins
from afd.images import cell as matrix
from afd.images import command
from scripts.render_images import CHECKOUT
from tests.rules import dockerfiles
from tests.rules.sources import ROOT, Source, checkout, clean

ALL = dockerfiles.dockerfiles(checkout())
NPU = next(source for source in ALL if source.path == "docker/npu.Dockerfile")
BIN = Path(sys.executable).parent
RULES = (
    dockerfiles.version_literals,
    dockerfiles.defaults,
    dockerfiles.only_buildkit,
    dockerfiles.shells,
    dockerfiles.last_stage,
    dockerfiles.environment,
)


@pytest.mark.parametrize("rule", RULES)
def test_every_dockerfile_keeps_the_rule(rule: Callable[[tuple[Source, ...]], list[str]]) -> None:
    clean(rule(ALL))


@pytest.mark.parametrize(
    ("rule", "old", "new"),
    [
        (dockerfiles.version_literals, "USER ${USER_ID}", "USER 1.2"),
        (dockerfiles.version_literals, "FROM ${BASE}", f"FROM x@sha256:{'0' * 64}"),
        (dockerfiles.version_literals, "FROM ${BASE}", f"FROM {'a' * 40}"),
        (dockerfiles.defaults, "ARG BASE\n", "ARG BASE=debian\n"),
        (dockerfiles.only_buildkit, "COPY afd ", "COPY --link afd "),
        (dockerfiles.only_buildkit, "USER ${USER_ID}", "RUN cat <<EOF"),
        (dockerfiles.only_buildkit, "ARG BASE\n", "# syntax=docker/dockerfile:1\nARG BASE\n"),
        (dockerfiles.only_buildkit, "RUN --mount", "RUN --network=none --mount"),
        (dockerfiles.shells, "SHELL [", "# ["),
        (dockerfiles.shells, '"-eo", "pipefail", ', ""),
        (dockerfiles.last_stage, "USER ${USER_ID}", "USER root"),
        (dockerfiles.last_stage, "USER ${USER_ID}", ""),
        (dockerfiles.last_stage, "HEALTHCHECK ", "# "),
        (dockerfiles.last_stage, "ENTRYPOINT ", "# "),
        (dockerfiles.last_stage, "io.afd.soc=", "io.afd.sock="),
        (dockerfiles.environment, "ENV HOME", "ENV VLLM_PLUGINS=afd HOME"),
        (dockerfiles.environment, "ENV HOME", "ENV ASCEND_VISIBLE_DEVICES=0 HOME"),
        (dockerfiles.environment, "${LD_LIBRARY_PATH:+:${LD_LIBRARY_PATH}}", ":${LD_LIBRARY_PATH}"),
        (dockerfiles.environment, "${LD_LIBRARY_PATH:+:${LD_LIBRARY_PATH}}", ":$LD_LIBRARY_PATH"),
    ],
)
def test_a_dockerfile_that_breaks_a_rule_is_found(
    rule: Callable[[tuple[Source, ...]], list[str]], old: str, new: str
) -> None:
    assert old in NPU.text
    assert rule((Source(NPU.path, NPU.text.replace(old, new, 1)),))


@pytest.mark.parametrize("name", ["npu", "cpu"])
def test_a_dockerfile_uses_every_argument_that_the_command_gives_and_no_other(name: str) -> None:
    source = {s.path: s for s in ALL}[f"docker/{name}.Dockerfile"]
    pinned = pins.load()
    given: set[str] = set()
    for cell in matrix.cells(pinned.images):
        if (cell.row is None) == (name == "cpu"):
            given |= set(command.arguments(pinned, cell, CHECKOUT, {}, command.Options()))
    declared = {text.split()[1] for _, text in dockerfiles.instructions(source) if text.startswith("ARG ")}
    # One that nobody gives is empty, and one that is not declared is not in the image.
    assert declared == given


def test_hadolint_and_shellcheck_have_nothing_to_say() -> None:
    scripts = sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "docker").rglob("*.sh"))
    for words in (
        [str(BIN / "hadolint"), *(source.path for source in ALL)],
        [str(BIN / "shellcheck"), "--external-sources", ".ci/run", *scripts],
    ):
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
