# SPDX-License-Identifier: Apache-2.0
"""What nobody may read in what a role says."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from afd import config as afd_config
from afd.agent import secrets, vllm_arguments
from afd.agent.output import Output
from afd.agent.secrets import Secrets
from tests.unit.agent.plans import FLOAT32, planned


def of_role(
    argv: tuple[str, ...] = (), environment: dict[str, str] | None = None, **settings: Any
) -> Secrets:
    config = afd_config.resolve({}, {}, settings).config
    return secrets.of_role(vllm_arguments.parse(argv), environment or {}, config)


def test_keys_and_tokens_are_blanked_out_wherever_they_come_from(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("run-token-of-32-characters-length\n")
    token.chmod(0o600)
    found = of_role(
        ("--api-key", "sk-one", "sk-two", "--hf-token", "hf_flag"),
        {"VLLM_API_KEY": "sk-env", "HF_TOKEN": "hf_env", "HUGGING_FACE_HUB_TOKEN": "hf_old"},
        auth={"token_file": str(token)},
    )
    said = "sk-one sk-two hf_flag sk-env hf_env hf_old run-token-of-32-characters-length and the rest"
    assert found.hide(said) == "*** *** *** *** *** *** *** and the rest"
    assert found.hide("a line like others") == "a line like others"
    assert "sk-" not in repr(found)


def test_a_word_that_begins_with_another_one_is_blanked_out_whole() -> None:
    assert Secrets(["secret", "secretive"]).hide("secretive secret") == "*** ***"


def test_a_word_too_short_to_be_a_secret_is_left() -> None:
    assert Secrets(["a", "", "abc"]).hide("abracadabra abc") == "abracadabra abc"


def test_a_token_file_that_is_missing_is_told_later_and_not_here() -> None:
    assert of_role(auth={"token_file": "/nowhere/token"}).hide("x") == "x"


def test_one_key_and_one_token_travel_in_the_environment_and_several_keys_as_arguments(
    checkpoint: Path,
) -> None:
    plan = planned(checkpoint, argv=(*FLOAT32, "--api-key", "sk-one", "--hf-token", "hf_one"))
    assert plan.api_key == "sk-one"
    assert (plan.environment["VLLM_API_KEY"], plan.environment["HF_TOKEN"]) == ("sk-one", "hf_one")
    assert not {"--api-key", "--hf-token", "sk-one", "hf_one"} & set(plan.argv)
    assert "sk-one" not in repr(plan) and "hf_one" not in repr(plan)
    several = planned(checkpoint, argv=(*FLOAT32, "--api-key", "sk-one", "sk-two"))
    assert several.argv[several.argv.index("--api-key") :][:3] == ("--api-key", "sk-one", "sk-two")
    assert several.secrets.hide("sk-one sk-two") == "*** ***"


def test_a_flag_that_names_no_token_means_the_users_login_and_stays() -> None:
    parsed = vllm_arguments.parse(("--hf-token", "--dtype", "auto"))
    assert secrets.off_the_command_line(parsed) == ([], {})


@pytest.mark.parametrize(
    "given",
    [
        ("--api-key", "sk-one", "--hf-token", "hf_one"),
        ("--api-key=sk-one", "--hf_token=hf_one"),
        ("--hf-token", "hf_old", "--api-key", "sk-old", "--hf-token", "hf_one", "--api-key", "sk-one"),
    ],
)
def test_the_command_line_is_run_again_without_them(given: tuple[str, ...]) -> None:
    command = ["python", "-m", "afd.cli.main", "serve", "attention", "MODEL", "--dtype", "auto", *given]
    arguments = vllm_arguments.parse(("--dtype", "auto", *given))
    words, variables = secrets.command_line_without(command, arguments)
    assert words == command[:8]
    assert variables == {"VLLM_API_KEY": "sk-one", "HF_TOKEN": "hf_one"}


def test_a_command_line_without_secrets_stays_as_it_is() -> None:
    command = ["afd", "serve", "ffn", "MODEL", "--dtype", "auto"]
    assert secrets.command_line_without(command, vllm_arguments.parse(("--dtype", "auto"))) == (command, {})


def test_lines_are_clean_when_they_are_written() -> None:
    stream = io.StringIO()
    output = Output(stream, Secrets(["sk-one"]).hide)
    output.line("non-default args: {'api_key': ['sk-one']}")
    output.close()
    assert stream.getvalue() == "non-default args: {'api_key': ['***']}\n"
