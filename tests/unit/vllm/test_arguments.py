# SPDX-License-Identifier: Apache-2.0
"""What AFD believes of vLLM's command line, compared with vLLM's parser."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest

from afd.agent import vllm_arguments, vllm_flags
from afd.agent.vllm_arguments import VllmArguments, complete, parse
from afd.errors import ConfigError
from afd.testing.tiny import resolve_builtin
from scripts.vllm_flags import PATH, render
from tests.unit.vllm.conftest import Module

# Flags that AFD reads or writes, besides those that complete() adds.
READ = (
    *(
        "--tensor-parallel-size",
        "--data-parallel-size",
        "--quantization",
        "--dtype",
        "--load-format",
        "--revision",
    ),
    *(
        "--host",
        "--port",
        "--served-model-name",
        "--api-key",
        "--middleware",
        "--runner",
        "--convert",
        "--enable-dbo",
    ),
    *("--enable-expert-parallel", "--gpu-memory-utilization", "--safetensors-load-strategy"),
    *("--model-loader-extra-config", "--no-enforce-eager"),
)


@pytest.fixture(scope="module")
def flags(module: Module) -> dict[str, Any]:
    """Every option string of vLLM's parser and its action."""
    parser = module("vllm.entrypoints.openai.cli_args").make_arg_parser(
        module("vllm.utils.argparse_utils").FlexibleArgumentParser()
    )
    found: dict[str, Any] = parser._option_string_actions
    return found


def parsed(module: Module, *argv: str) -> Namespace:
    found: Namespace = module("afd.launch.arguments").parse(["model", *argv])
    return found


def test_the_table_of_short_flags_is_the_one_of_vllm(flags: dict[str, Any]) -> None:
    theirs = {
        short: next(name for name in action.option_strings if name.startswith("--"))
        for short, action in flags.items()
        if not short.startswith("--") and short != "-h"
    }
    ours = {short: flag for short, flag in vllm_arguments._ALIASES.items() if short != "-O"}
    assert ours == theirs
    assert vllm_arguments._ALIASES["-O"] in flags  # the parser rewrites -O before it looks


def test_every_flag_that_afd_reads_or_writes_exists(flags: dict[str, Any]) -> None:
    written = [
        word for word in complete(parse([]), additional={}, worker_class="x.Y") if word.startswith("--")
    ]
    assert {*written, *READ} - set(flags) == set()


def test_the_table_of_all_flags_is_the_one_of_vllm(module: Module) -> None:
    assert PATH.read_text(encoding="utf-8") == render(), "run scripts/vllm_flags.py"


@pytest.mark.parametrize(
    "argv",
    [
        ["-tp", "2"],
        ["-tp=2"],
        ["--tensor_parallel_size", "2"],
        ["-tp", "4", "--tensor-parallel-size=2"],
        ["-q", "fp8", "--port", "8123"],
        ["-qfp8"],
        ["-n2"],
        ["-O2"],
        ["-O=2"],
        ["-O", "2"],
        ["--seed", "-1"],
        ["--served-model-name", "a", "b", "--dtype=float32"],
        ["--api-key", "a", "b"],
        ["-ep"],
        ["-ep", "--no-enable-expert-parallel"],
        ["--no-enable-lora", "--enable-lora"],
        ["--chat-template", "- a line"],
        ["--hf-overrides", '{"a": -1, "b": "x=y"}'],
        ["--hf-overrides.a.b", "1"],
        ["--hf_overrides.a=[1, 2]"],
        ["--additional-config.x.y+", "a,b"],
    ],
    ids=" ".join,
)
def test_afd_reads_a_command_line_as_vllm_does(
    flags: dict[str, Any], module: Module, argv: list[str]
) -> None:
    ours: VllmArguments = parse(argv)
    theirs = vars(parsed(module, *argv))
    for flag, values in ours.values.items():
        action = flags[flag]
        found = theirs[action.dest]
        if action.nargs == 0:
            assert found is (not flag.startswith("--no-"))
        elif action.nargs == "+":
            assert found == list(values)
        elif isinstance(found, dict):
            assert found == ours.mapping(flag)
        else:
            assert str(found) == ours.get(flag)


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["--"],
        ["-cc.mode", "0", "--compilation_config.custom_ops+=none"],
        ["-cc", '{"mode": 0}'],
        ["-cc.custom_ops+", "-rms_norm", "--hf-overrides.x", "--y"],
        ["-q", "fp8", "-qfp8", "-n2", "-O2", "-O=2", "-O", "2", "-tp=2", "-ep"],
        ["--no_enable_lora", "--no-async-scheduling", "--enable_chunked_prefill"],
        ["--hf-token"],
        ["--hf-token", "x", "--hf_token=x"],
        ["--revision=", "--seed", "-1"],
        ["--allowed-media-domains", "a", "b", "--port", "1"],
        ["--hf-overrides.rope.type", "x", "--hf-overrides", "{}", "--hf_overrides.a=- b"],
        ["--limit-mm-per-prompt.image", "1", "--chat-template", "{{ a --b }}"],
    ],
    ids=" ".join,
)
def test_what_vllm_accepts_is_not_refused_for_its_flags(module: Module, argv: list[str]) -> None:
    parsed(module, *argv)
    vllm_flags.check(parse(argv))


@pytest.mark.parametrize("single", [["-s", "{}"], ["-t", "2"], ["-c", "{}"], ["-asc2"], ["-tp2"]])
def test_what_the_agent_would_not_recognise_in_a_short_form_is_refused(single: list[str]) -> None:
    with pytest.raises(ConfigError, match="there is no such flag"):
        vllm_flags.check(parse(single))


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--speculative", "{}"], "unrecognized arguments: --speculative"),
        (["--no-such-flag"], "unrecognized arguments: --no-such-flag"),
        (["--port", "x"], "--port"),
        (["--enforce-eager", "stray"], "unrecognized arguments: stray"),
        (["--dtype"], "expected one argument"),
    ],
)
def test_what_vllm_does_not_know_is_an_error_of_configuration_not_a_usage(
    module: Module, argv: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=f"vLLM's arguments: .*{says}"):
        parsed(module, *argv)
    assert "usage" not in capsys.readouterr().err


def test_the_model_is_the_first_argument(module: Module) -> None:
    assert parsed(module, "--port", "8123").model == "model"


@pytest.mark.parametrize(
    "given", [[], ["-cc", '{"mode": "none"}'], ["-cc.mode", "NONE"], ["-cc.cache_dir", "/c"]]
)
def test_vllm_understands_the_arguments_that_afd_completes(module: Module, given: list[str]) -> None:
    argv = complete(parse(given), additional={"afd": {"port": 1}}, worker_class="x.Y")
    model = str(resolve_builtin("builtin:tiny-deepseek-v2"))
    args = module("afd.launch.arguments").parse([model, *argv])
    engine = module("vllm.engine.arg_utils").AsyncEngineArgs.from_cli_args(args)
    assert engine.compilation_config.mode == module("vllm.config").CompilationMode.NONE
    assert engine.compilation_config.custom_ops == ["all", "-rotary_embedding"]
    assert engine.enforce_eager is True
    assert engine.kv_cache_memory_bytes == vllm_arguments.KV_CACHE_BYTES
    assert engine.additional_config == {"afd": {"port": 1}}
    assert engine.worker_cls == "x.Y"
    assert (args.api_server_count, args.shutdown_timeout) == (1, vllm_arguments.SHUTDOWN_S)
