# SPDX-License-Identifier: Apache-2.0
"""``afd serve`` and ``afd smoke`` up to the moment in which they would start something."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

from afd.agent.plan import RolePlan
from afd.cli import serve
from afd.cli.main import run
from afd.config import options
from afd.errors import ConfigError, UnsupportedError
from afd.topology import Role
from tests.unit.agent.plans import small_model


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(small_model(tmp_path_factory.mktemp("served")))


@pytest.fixture(autouse=True)
def no_choice_of_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)


def planned(*arguments: str) -> RolePlan:
    """The plan of ``afd serve`` with these arguments."""
    with serve.command.make_context("serve", list(arguments)) as ctx:
        given: dict[str, Any] = dict(ctx.params)
        return serve.plan(ctx, Role(given.pop("role")), **given)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 64) -> str:
    assert run(list(arguments)) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line.removeprefix("afd: error: ")


def test_help_lists_every_flag_of_afd_and_says_where_those_of_vllm_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["serve", "--help"]) == 0
    text = capsys.readouterr().out
    for option in options():
        assert (option.flag in text) is (option.path != "role"), option.flag
    assert "--help=vllm" in text and "--agent-port" in text and "--afd-runner" in text


def test_the_help_of_smoke_lists_its_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["smoke", "--help"]) == 0
    text = capsys.readouterr().out
    for flag in ("--model", "--attention", "--ffn", "--runner", "--transport", "--dtype", "--json", "--keep"):
        assert flag in text


def test_a_short_h_is_help_but_not_inside_of_another_flag(
    capsys: pytest.CaptureFixture[str], checkpoint: str
) -> None:
    assert run(["serve", "attention", "-h"]) == 0
    assert "Usage: afd serve" in capsys.readouterr().out
    with pytest.raises(UnsupportedError, match="--data-parallel-hybrid-lb"):
        planned("attention", checkpoint, "--dtype", "float32", "-dph")
    plan = planned("attention", checkpoint, "--dtype", "float32", "-cc.cudagraph_mode=NONE")
    config = json.loads(plan.argv[plan.argv.index("--compilation-config") + 1])
    assert config["cudagraph_mode"] == "NONE"


def test_flags_of_both_worlds_may_be_mixed_and_stay_in_order(checkpoint: str) -> None:
    plan = planned(
        *("attention", checkpoint, "--dtype", "float32", "--afd-port", "9444", "--port=8123", "-q", "none"),
        *("--agent-port", "9311", "--max_model_len", "64", "--afd-timeouts-step-s=7", "--afd-runner", "v1"),
    )
    assert plan.argv[1:7] == ("--dtype", "float32", "--port=8123", "-q", "none", "--max_model_len")
    assert (plan.config.port, plan.config.timeouts.step_s) == (9444, 7.0)
    assert (plan.api_port, plan.agent_port, plan.hello.runner) == (8123, 9311, "v1")


def test_what_follows_two_dashes_is_vllms(checkpoint: str) -> None:
    plan = planned("ffn", checkpoint, "--", "--dtype", "float32")
    assert plan.argv[1:3] == ("--dtype", "float32")


def test_settings_in_additional_config_count_unless_a_flag_says_otherwise(checkpoint: str) -> None:
    json_settings = '{"afd": {"port": 9445, "host": "127.0.0.2"}}'
    plan = planned(
        "ffn", checkpoint, "--dtype", "float32", "--additional-config", json_settings, "--afd-port", "1234"
    )
    assert (plan.config.port, plan.config.host, plan.config.role) == (1234, "127.0.0.2", Role.FFN)
    dotted = planned("ffn", checkpoint, "--dtype", "float32", "--additional-config.afd.port", "9446")
    assert dotted.config.port == 9446


def test_the_runner_of_the_flag_wins_over_the_one_of_the_environment(
    checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    assert planned("ffn", checkpoint, "--dtype", "float32").hello.runner == "v1"
    assert planned("ffn", checkpoint, "--dtype", "float32", "--afd-runner", "v2").hello.runner == "v2"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "Missing argument"),
        (("attention",), "Missing argument 'MODEL'"),
        (("both", "M"), "'both' is not one of 'attention', 'ffn'"),
        (("attention", "--dtype", "float32"), "MODEL comes right after the role"),
        (("ffn", "/no/such/model"), "there is no such directory"),
        (("ffn", "builtin:no-such-model"), "no-such-model"),
        (("ffn", "CHECKPOINT", "another"), "unexpected argument 'another': the model is given once"),
        (("ffn", "CHECKPOINT", "--afd-prot", "1"), "flag --afd-prot: there is no such flag"),
        (("ffn", "CHECKPOINT", "--afd-role", "ffn"), "flag --afd-role: there is no such flag"),
        (("ffn", "CHECKPOINT", "--agent-port", "x"), "'x' is not a port (1-65535)"),
        (("ffn", "CHECKPOINT", "--additional-config", "{"), "--additional-config: not JSON"),
        (("ffn", "CHECKPOINT", "--dtype", "fp8"), "dtype fp8 is not supported"),
        (("ffn", "CHECKPOINT", "--speculative-config.method", "ngram"), "speculative"),
    ],
)
def test_a_role_that_cannot_be_served_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], checkpoint: str, arguments: tuple[str, ...], says: str
) -> None:
    given = [checkpoint if argument == "CHECKPOINT" else argument for argument in arguments]
    assert says in refusal(capsys, "serve", *given)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--ffn", "2"), "1A2F: more FFN ranks (2) than Attention ranks (1)"),
        (
            ("--attention", "4", "--tp", "3"),
            "4 Attention ranks do not divide into tensor-parallel groups of 3",
        ),
        (("--ffn", "0"), "0 is not in the range"),
        (("--model", "/no/such/model"), "there is no such directory"),
        (("--runner", "v3"), "'v3' is not one of"),
        (("stray",), "unexpected extra argument"),
    ],
)
def test_a_smoke_run_that_cannot_be_is_refused_before_it_imports_vllm(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str
) -> None:
    assert says in refusal(capsys, "smoke", *arguments)


def test_a_setting_of_this_run_that_the_environment_breaks_is_named(
    checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AFD_PROT", "1")
    with pytest.raises(ConfigError, match="env AFD_PROT: there is no such setting"):
        planned("ffn", checkpoint, "--dtype", "float32")


def test_reading_a_command_line_starts_nothing(checkpoint: str) -> None:
    before = set(Path("/dev/shm").iterdir())
    assert isinstance(serve.command, click.Command)
    planned("attention", checkpoint, "--dtype", "float32")
    assert not {path for path in set(Path("/dev/shm").iterdir()) - before if path.name.startswith("afd-")}
