# SPDX-License-Identifier: Apache-2.0
"""A length that the agent refuses is one that vLLM refuses, and what vLLM's configuration refuses is one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from afd.agent.fit import check_length
from afd.agent.vllm_arguments import complete, parse
from afd.errors import ConfigError
from afd.testing.tiny import resolve_builtin
from tests.unit.vllm.conftest import Module

YARN = {
    "type": "yarn",
    "factor": 4,
    "original_max_position_embeddings": 512,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}


def refuses(check: Callable[[], object]) -> bool:
    try:
        check()
    except ConfigError as error:
        assert "max" in str(error) and "\n" not in str(error)
        return True
    return False


@pytest.mark.parametrize(
    ("values", "longest"),
    [
        ({}, 2048),
        ({"max_position_embeddings": 100}, 100),
        ({"model_max_length": 3000}, 3000),
        ({"rope_scaling": YARN}, 2048),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 4096),
    ],
)
def test_the_agent_and_vllm_draw_the_line_at_the_same_length(
    module: Module, engine_config: Any, tmp_path: Path, values: dict[str, Any], longest: int
) -> None:
    for file in resolve_builtin("builtin:tiny-deepseek-v2").iterdir():
        if file.name != "config.json":
            (tmp_path / file.name).symlink_to(file)
        else:
            (tmp_path / "config.json").write_text(json.dumps({**json.loads(file.read_text()), **values}))
    for length in (longest, longest + 1):
        argv = ["--dtype", "float32", "--max-model-len", str(length)]
        ours = refuses(lambda argv=argv: check_length(parse(argv), tmp_path, {}))
        full = [str(tmp_path), *complete(parse(argv), additional={}, worker_class=None)]
        theirs = refuses(lambda full=full: module("afd.ffn.process").engine_config(full))
        assert (length, ours, theirs) == (length, length > longest, length > longest)


def test_what_vllms_configuration_refuses_is_told_in_one_line_without_its_machinery(
    engine_config: Any,
) -> None:
    with pytest.raises(ConfigError) as raised:
        engine_config("--max-model-len", "99999")
    assert str(raised.value).startswith("vLLM's ModelConfig: User-specified max_model_len (99999)")
    assert "pydantic" not in str(raised.value) and "input_value" not in str(raised.value)
