# SPDX-License-Identifier: Apache-2.0
"""``afd serve --help=vllm``: vLLM's own help, from a process of its own."""

from __future__ import annotations

import sys

import pytest

from afd.cli.main import run


def test_the_help_of_vllm_is_shown_by_topic_without_importing_vllm_here(
    capfd: pytest.CaptureFixture[str],
) -> None:
    before = "vllm" in sys.modules
    assert run(["serve", "attention", "--help=max-num-seqs"]) == 0
    assert ("vllm" in sys.modules) is before
    text = capfd.readouterr().out
    assert "--max-num-seqs" in text
    assert "--afd-port" not in text
