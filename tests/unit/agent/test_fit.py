# SPDX-License-Identifier: Apache-2.0
"""A checkpoint that lacks what the command line asks of it is refused without vLLM. What vLLM makes of the same
lengths is compared in tests/unit/vllm/test_lengths.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from afd.agent.fit import check_length, check_tokenizer
from afd.agent.vllm_arguments import parse
from afd.errors import ConfigError
from afd.topology import Role
from tests.unit.agent.plans import planned


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tmp_path


def config(directory: Path, **values: Any) -> Path:
    (directory / "config.json").write_text(json.dumps({"max_position_embeddings": 2048, **values}))
    return directory


@pytest.mark.parametrize("asked", ["2049", "4k", "2.1k", "4K", "1M"])
def test_a_length_beyond_the_positions_of_the_model_is_refused_with_the_number(
    model: Path, asked: str
) -> None:
    with pytest.raises(
        ConfigError, match=r"flag --max-model-len: \d+ is more than the 2048 positions .*2048 or less"
    ):
        check_length(parse(["--max-model-len", asked]), config(model), {})


@pytest.mark.parametrize(
    ("argv", "environment", "values"),
    [
        ([], {}, {}),
        (["--max-model-len", "2048"], {}, {}),
        (["--max-model-len", "2k"], {}, {}),
        (["--max-model-len", "2K"], {}, {}),
        (["--max-model-len", "-1"], {}, {}),
        (["--max-model-len", "auto"], {}, {}),
        (["--max-model-len", "many"], {}, {}),
        (["--max-model-len", "9999"], {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}, {}),
        (["--max-model-len", "9999", "--hf-overrides.max_position_embeddings", "9999"], {}, {}),
        (["--max-model-len", "9999"], {}, {"max_position_embeddings": None}),
        (["--max-model-len", "9999"], {}, {"model_max_length": 9999}),
        (["--max-model-len", "8192"], {}, {"rope_scaling": {"type": "linear", "factor": 4}}),
        (["--max-model-len", "9999"], {}, {"rope_parameters": {"full_attention": {"rope_type": "default"}}}),
    ],
)
def test_a_length_that_vllm_may_accept_is_left_to_it(
    model: Path, argv: list[str], environment: dict[str, str], values: dict[str, Any]
) -> None:
    check_length(parse(argv), config(model, **values), environment)


def test_a_checkpoint_without_a_tokenizer_is_refused(model: Path) -> None:
    (model / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"no tokenizer .* Attention needs one"):
        check_tokenizer(parse([]), model)
    with pytest.raises(ConfigError, match="no tokenizer"):
        check_tokenizer(parse(["--tokenizer", str(model)]), model)
    with pytest.raises(ConfigError, match="flag --tokenizer: /no/such/place: there is no such directory"):
        check_tokenizer(parse(["--tokenizer", "/no/such/place"]), model)


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "tekken.json"]
)
def test_a_tokenizer_of_any_kind_is_enough(model: Path, name: str) -> None:
    (model / name).write_text("{}")
    check_tokenizer(parse([]), model)
    check_tokenizer(parse(["--tokenizer", str(model)]), Path("/no/such/place"))


def test_a_tokenizer_from_elsewhere_or_none_at_all_is_left_to_vllm(model: Path) -> None:
    check_tokenizer(parse(["--skip-tokenizer-init"]), model)
    check_tokenizer(parse(["--tokens-only"]), model)
    check_tokenizer(parse(["--tokenizer", "somebody/tokenizer"]), model)
    (model / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": "x--y"}}')
    check_tokenizer(parse([]), model)


def test_only_attention_needs_a_tokenizer_and_both_roles_a_length_that_fits(
    checkpoint: Path, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for file in checkpoint.iterdir():
        if "tokenizer" not in file.name:
            (bare / file.name).symlink_to(file)
    planned(bare, Role.FFN)
    with pytest.raises(ConfigError, match="no tokenizer"):
        planned(bare, Role.ATTENTION)
    for role in Role:
        with pytest.raises(ConfigError, match="flag --max-model-len: 99999 is more than"):
            planned(checkpoint, role, ["--dtype", "float32", "--max-model-len", "99999"])
