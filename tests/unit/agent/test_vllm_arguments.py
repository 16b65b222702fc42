# SPDX-License-Identifier: Apache-2.0
"""Reading and completing vLLM's command line without vLLM."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd.agent.vllm_arguments import (
    KV_CACHE_BYTES,
    SHUTDOWN_S,
    compilation_config,
    complete,
    native,
    parse,
)
from afd.errors import ConfigError, UnsupportedError


def completed(*argv: str, worker_class: str | None = "a.Worker") -> list[str]:
    return complete(parse(argv), additional={"afd": {"port": 1}}, worker_class=worker_class)


def value(argv: Sequence[str], flag: str) -> str:
    """The value after the last ``flag``."""
    return argv[len(argv) - 1 - list(reversed(argv)).index(flag) + 1]


# ---- reading ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "flag", "expected"),
    [
        (["--port", "8001"], "--port", "8001"),
        (["--port=8001"], "--port", "8001"),
        (["--max_num_seqs", "8"], "--max-num-seqs", "8"),
        (["--max_num_seqs=8"], "--max-num-seqs", "8"),
        (["--enforce-eager"], "--enforce-eager", ""),
        (["-tp", "2"], "--tensor-parallel-size", "2"),
        (["-tp=2"], "--tensor-parallel-size", "2"),
        (["-q", "fp8"], "--quantization", "fp8"),
        (["-qfp8"], "--quantization", "fp8"),
        (["-n2"], "--nnodes", "2"),
        (["-O", "2"], "--optimization-level", "2"),
        (["-O2"], "--optimization-level", "2"),
        (["-O=2"], "--optimization-level", "2"),
        (["--api-key", "one", "two", "--port", "1"], "--api-key", "one two"),
        (["--seed", "-1", "--port", "1"], "--seed", "-1"),
        (["--x", "-0.5"], "--x", "-0.5"),
        (["--chat-template", "- a line"], "--chat-template", "- a line"),
        (["--chat-template", "-"], "--chat-template", "-"),
        (["--hf-overrides", '{"a": -1}'], "--hf-overrides", '{"a": -1}'),
        (['--hf-overrides={"a": "b=c"}'], "--hf-overrides", '{"a": "b=c"}'),
        (["--revision="], "--revision", ""),
        (["--port", "1", "--port", "2"], "--port", "2"),
    ],
)
def test_a_flag_is_read_in_every_spelling(argv: list[str], flag: str, expected: str) -> None:
    arguments = parse(argv)
    assert arguments.enabled(flag)
    assert arguments.get(flag) == expected


def test_a_flag_that_was_not_given_has_the_default() -> None:
    arguments = parse([])
    assert not arguments.enabled("--port")
    assert arguments.get("--port", "8000") == "8000"
    assert arguments.integer("--port", 8000) == 8000
    assert arguments.mapping("--hf-overrides") == {}


@pytest.mark.parametrize(
    ("argv", "flag", "on"),
    [
        (["--enable-lora"], "--enable-lora", True),
        (["--enable-lora", "--no-enable-lora"], "--enable-lora", False),
        (["--no-enable-lora", "--enable-lora"], "--enable-lora", True),
        (["--no-enable-lora", "--enable-lora"], "--no-enable-lora", False),
        (["-ep", "--no-enable-expert-parallel"], "--enable-expert-parallel", False),
    ],
)
def test_the_last_of_a_flag_and_its_negation_counts(argv: list[str], flag: str, on: bool) -> None:
    assert parse(argv).enabled(flag) is on


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["-cc.mode", "3"], {"mode": 3}),
        (["-cc.mode=3"], {"mode": 3}),
        (["--compilation_config.mode=NONE"], {"mode": "NONE"}),
        (["--compilation-config.pass_config.fuse", "true"], {"pass_config": {"fuse": True}}),
        (["-cc.custom_ops+", "none,+rms_norm"], {"custom_ops": ["none", "+rms_norm"]}),
        (["-cc.custom_ops+", "-rms_norm,+x", "--port", "1"], {"custom_ops": ["-rms_norm", "+x"]}),
        (["-cc.custom_ops+=a", "-cc.custom_ops+=b"], {"custom_ops": ["a", "b"]}),
        (["-cc", '{"mode": 0, "cache_dir": "/c"}', "-cc.mode", "3"], {"mode": 3, "cache_dir": "/c"}),
        (["-cc.a.b", "1", "-cc", '{"a": 2}'], {"a": {"b": 1}}),
    ],
)
def test_keys_given_with_dots_are_read_as_one_object(argv: list[str], expected: dict[str, Any]) -> None:
    assert parse(argv).mapping("--compilation-config") == expected


@pytest.mark.parametrize(
    "argv", [["model"], ["8001", "--port"], ["--port=1", "model"], ["-O2", "model"], ["-cc.mode=0", "model"]]
)
def test_a_second_positional_argument_is_refused(argv: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"unexpected argument .*the model is given once"):
        parse(argv)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--hf-overrides", "{"], "--hf-overrides: not JSON"),
        (["--hf-overrides", "[1]"], "--hf-overrides: expected a JSON object"),
        (["-cc", "3", "-cc.mode", "0"], "--compilation-config: expected a JSON object"),
    ],
)
def test_a_value_that_is_no_json_object_names_its_flag(argv: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        arguments = parse(argv)
        arguments.mapping("--hf-overrides")
        arguments.mapping("--compilation-config")


def test_a_size_that_is_no_integer_names_its_flag() -> None:
    with pytest.raises(ConfigError, match="--tensor-parallel-size: 'two' is not an integer"):
        parse(["-tp", "two"]).integer("--tensor-parallel-size", 1)


@pytest.mark.parametrize(
    "spelling",
    [
        ["--api-key", "a", "b"],
        ["--api-key=a"],
        ["--api_key", "a"],
        ["--api-key", "a", "--port", "1", "--api-key", "b"],
    ],
)
def test_removing_a_flag_removes_every_spelling_and_all_values(spelling: list[str]) -> None:
    left = parse(["--dtype", "auto", *spelling, "--seed", "0"]).without("--api-key")
    assert [word for word in left if word not in ("--port", "1")] == ["--dtype", "auto", "--seed", "0"]


def test_removing_a_flag_removes_its_short_and_dotted_forms() -> None:
    argv = ["-cc", "{}", "-cc.mode", "0", "--compilation_config.mode=0", "-cc.level=1", "--port", "1"]
    assert parse(argv).without("--compilation-config") == ["--port", "1"]


# ---- completing -------------------------------------------------------------------------------------------


def test_both_roles_get_what_the_defaults_of_vllm_get_wrong_on_one_host() -> None:
    argv = completed()
    assert "--enforce-eager" in argv
    assert value(argv, "--kv-cache-memory-bytes") == str(KV_CACHE_BYTES)
    assert value(argv, "--api-server-count") == "1"
    assert value(argv, "--shutdown-timeout") == str(SHUTDOWN_S)
    assert value(argv, "--worker-cls") == "a.Worker"
    assert json.loads(value(argv, "--compilation-config")) == {
        "mode": 0,
        "custom_ops": ["all", "-rotary_embedding"],
    }
    assert json.loads(value(argv, "--additional-config")) == {"afd": {"port": 1}}
    assert "--worker-cls" not in completed(worker_class=None)


@pytest.mark.parametrize(
    ("given", "untouched"),
    [
        (["--kv-cache-memory-bytes", "1G"], "--kv-cache-memory-bytes"),
        (["--kv_cache_memory_bytes=1G"], "--kv-cache-memory-bytes"),
        (["--gpu-memory-utilization", "0.1"], "--kv-cache-memory-bytes"),
        (["-asc", "2"], "--api-server-count"),
        (["--shutdown-timeout", "9"], "--shutdown-timeout"),
        (["--enforce-eager"], "--enforce-eager"),
    ],
)
def test_what_the_user_set_is_never_set_again(given: list[str], untouched: str) -> None:
    assert completed(*given).count(untouched) == given.count(untouched)


def test_other_keys_of_the_users_json_stay() -> None:
    argv = completed(
        *(
            "--additional-config",
            '{"mine": 1, "afd": {"port": 2}}',
            "-cc",
            '{"cache_dir": "/c", "mode": "NONE"}',
        ),
        *("-cc.custom_ops+", "none"),
    )
    assert json.loads(value(argv, "--additional-config")) == {"mine": 1, "afd": {"port": 1}}
    assert json.loads(value(argv, "--compilation-config")) == {
        "cache_dir": "/c",
        "mode": "NONE",
        "custom_ops": ["none", "-rotary_embedding"],
    }
    assert argv.count("--compilation-config") == argv.count("--additional-config") == 1
    assert "-cc" not in argv and "-cc.custom_ops+" not in argv


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"mode": 3}, "compilation mode 3: torch.compile does not see the hop"),
        ({"mode": "VLLM_COMPILE"}, "compilation mode VLLM_COMPILE"),
        ({"custom_ops": ["+rotary_embedding"]}, "wrong for DeepSeek"),
        ({"custom_ops": "all"}, "custom_ops must be a list"),
    ],
)
def test_a_compilation_that_would_break_the_hop_or_the_tokens_is_refused(
    config: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        compilation_config(parse(["--compilation-config", json.dumps(config)]))
    with pytest.raises(ConfigError, match=says):
        completed(f"-cc={json.dumps(config)}")


@pytest.mark.parametrize("config", [{}, {"mode": None}, {"mode": 0}, {"mode": "none"}, {"mode": "NONE"}])
def test_a_compilation_without_a_mode_or_with_none_is_allowed(config: dict[str, Any]) -> None:
    assert compilation_config(parse([f"-cc={json.dumps(config)}"]))["mode"] in (0, "none", "NONE")


def test_another_worker_class_on_attention_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="--worker-cls"):
        completed("--worker-cls", "my.Worker")


def test_the_native_reference_is_told_nothing_of_afd() -> None:
    argv = native(parse(["--dtype", "float32", "--enable-dbo", "--additional-config", "{}"]))
    assert argv[:2] == ["--dtype", "float32"]
    assert not {"--enable-dbo", "--additional-config", "--worker-cls"} & set(argv)


FLAGS = st.sampled_from(
    [
        "--port",
        "--dtype",
        "-tp",
        "--api-key",
        "--enable-lora",
        "--max_num_seqs",
        "-cc.mode",
        "-cc",
        "--worker",
    ]
)
WORDS = st.sampled_from(["1", "-1", "-.5", "a b", "- x", "", "é", "a=b", "{}"])
ARGUMENTS = st.lists(st.tuples(FLAGS, st.lists(WORDS, max_size=2)), max_size=6)


@given(ARGUMENTS)
def test_removing_nothing_gives_the_command_line_back(chosen: list[tuple[str, list[str]]]) -> None:
    argv = [word for flag, words in chosen for word in (flag, *words)]
    assert parse(argv).without() == argv


@given(ARGUMENTS)
def test_completing_keeps_all_other_arguments_of_the_user_in_order(
    chosen: list[tuple[str, list[str]]],
) -> None:
    kept = [(flag, words) for flag, words in chosen if not flag.startswith("-cc")]
    argv = [word for flag, words in kept for word in (flag, *words)]
    done = complete(parse(argv), additional={}, worker_class=None)
    assert done[: len(argv)] == argv
    assert len(done) > len(argv)
