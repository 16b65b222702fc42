# SPDX-License-Identifier: Apache-2.0
"""Flags that vLLM does not have, and flags with too many or too few values, found without vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest

from afd.agent import vllm_flags
from afd.agent.vllm_arguments import parse
from afd.cli.serve import command
from afd.errors import ConfigError
from tests.unit.agent.plans import planned


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--max-modl-len", "64"], "--max-modl-len: there is no such flag; did you mean '--max-model-len'?"),
        (["--max_modl_len=64"], "--max_modl_len: there is no such flag; did you mean '--max-model-len'?"),
        (["--agent-prot", "1"], "--agent-prot: there is no such flag; did you mean '--agent-port'?"),
        (
            ["--no-enforce-eagr"],
            "--no-enforce-eagr: there is no such flag; did you mean '--no-enforce-eager'?",
        ),
        (["--no-dtype"], "--no-dtype: there is no such flag"),
        (["--hf-override.a", "1"], "--hf-override: there is no such flag; did you mean '--hf-overrides'?"),
        (["-xx.mode=0"], "-xx: there is no such flag"),
        (["-tp2"], "-tp2: there is no such flag; did you mean '-tp'?"),
        (["--zzzzzz"], r"--zzzzzz: there is no such flag \(--help=vllm"),
        # What argparse would complete, and AFD would not have seen.
        (
            ["--speculative", "{}"],
            "--speculative: there is no such flag; did you mean '--speculative-config'?",
        ),
        (["--tensor", "2"], "--tensor: there is no such flag; did you mean '--tensor-parallel-size'?"),
        (["-s", "{}"], "-s: there is no such flag; did you mean '-sc'?"),
        (["-c", "{}"], "-c: there is no such flag; did you mean '-cc'?"),
        (["--enforce-eager", "stray"], "--enforce-eager: takes no value, found 'stray'"),
        (["--enforce-eager=1"], "--enforce-eager: takes no value, found 1"),
        (["--dtype", "auto", "stray"], "--dtype: takes one value, found also 'stray'"),
        (["--dtype", "--port", "1"], "--dtype: a value is missing"),
        (["--api-key"], "--api-key: a value is missing"),
        (["-tp"], "-tp: a value is missing"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_flag_that_vllm_would_refuse_is_refused_with_what_may_have_been_meant(
    argv: list[str], says: str
) -> None:
    with pytest.raises(ConfigError, match=f"^flag {says}"):
        vllm_flags.check(parse(["--port", "1", *argv]))


def test_a_plan_is_refused_for_it_before_its_model_is_looked_at() -> None:
    with pytest.raises(ConfigError, match="did you mean '--max-model-len'"):
        planned(Path("/no/such/model"), argv=["--max-modl-len", "64"])


def test_the_flags_of_serve_itself_are_known_here() -> None:
    own = {name for parameter in command.params for name in parameter.opts if name.startswith("--")}
    assert set(vllm_flags.OWN) <= own
    assert not own & set(vllm_flags.flags())
