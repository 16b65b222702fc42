# SPDX-License-Identifier: Apache-2.0
"""vLLM's command line as AFD reads and completes it, without importing vLLM.

AFD passes the user's arguments on untouched. It reads those that decide about support and topology, and adds
what vLLM's defaults get wrong for two roles on one host, unless the user set it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from afd.errors import ConfigError, UnsupportedError

KV_CACHE_BYTES = 256 << 20
"""KV cache per Attention rank on CPU. vLLM's own default is 0.92 of the machine's memory per rank."""

SHUTDOWN_S = 3
"""How long requests in flight may go on after a stop. vLLM's default of 0 kills the engine under its API server."""

_ALIASES = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-pcp": "--prefill-context-parallel-size",
    "-dcp": "--decode-context-parallel-size",
    "-q": "--quantization",
    "-cc": "--compilation-config",
    "--compilation_config": "--compilation-config",
    "-O": "--optimization-level",
    "-asc": "--api-server-count",
    "-n": "--nnodes",
    "-r": "--node-rank",
}


@dataclass(frozen=True)
class VllmArguments:
    """The arguments after MODEL. ``values`` maps canonical flags to their last value ("" for a bare flag)."""

    argv: tuple[str, ...]
    values: Mapping[str, str]

    def get(self, flag: str, default: str = "") -> str:
        return self.values.get(flag, default)

    def integer(self, flag: str, default: int) -> int:
        """The value of a numeric flag. Raises ConfigError naming the flag when it is no integer."""
        text = self.get(flag)
        if not text:
            return default
        try:
            return int(text)
        except ValueError as error:
            raise ConfigError(f"vLLM argument {flag}: {text!r} is not an integer") from error

    def mapping(self, flag: str) -> dict[str, Any]:
        """The value of a JSON flag. Raises ConfigError when it is not a JSON object."""
        text = self.get(flag)
        if not text:
            return {}
        try:
            value = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"vLLM argument {flag}: not JSON: {error}") from error
        if not isinstance(value, dict):
            raise ConfigError(f"vLLM argument {flag}: expected a JSON object, found {text}")
        return value

    def enabled(self, flag: str) -> bool:
        """Whether a bare flag was given (and not negated by its ``--no-`` form afterwards)."""
        return flag in self.values

    def without(self, *flags: str) -> list[str]:
        """The arguments with every spelling of ``flags`` and their values removed."""
        kept: list[str] = []
        skipping = False
        for argument in self.argv:
            name, _, inline = argument.partition("=")
            if argument.startswith("-") and not _is_number(argument):
                skipping = _canonical(name) in flags and not inline
                if _canonical(name) in flags:
                    continue
            elif skipping:
                skipping = False
                continue
            kept.append(argument)
        return kept


def _is_number(text: str) -> bool:
    return text[1:2].isdigit()


def _canonical(name: str) -> str:
    if name.startswith("--"):
        name = "--" + name[2:].replace("_", "-")
    return _ALIASES.get(name, name)


def parse(argv: Sequence[str]) -> VllmArguments:
    """Read flags of vLLM's command line: ``--flag value``, ``--flag=value`` and bare ``--flag``.

    Raises ConfigError for a positional argument, which vLLM would take for a second model.
    """
    values: dict[str, str] = {}
    flag = ""
    for argument in argv:
        if argument.startswith("-") and not _is_number(argument):
            name, _, inline = argument.partition("=")
            flag = _canonical(name)
            if flag.startswith("--no-") and f"--{flag[5:]}" in values:
                del values[f"--{flag[5:]}"]
            values[flag] = inline
        elif flag:
            values[flag] = f"{values[flag]} {argument}".strip() if values[flag] else argument
        else:
            raise ConfigError(
                f"unexpected argument {argument!r}: the model is given once, before vLLM's arguments"
            )
    return VllmArguments(tuple(argv), values)


def compilation_config(arguments: VllmArguments) -> dict[str, Any]:
    """The user's compilation configuration with what AFD needs on CPU.

    Mode NONE: torch.compile does not see the hop. No rotary kernel: vLLM 0.26's CPU kernel rotates only part of
    the heads of DeepSeek models with MLA off, so results would depend on how requests are batched.
    Raises UnsupportedError for any other explicit mode, and for asking for that kernel.
    """
    config = arguments.mapping("--compilation-config")
    mode = config.setdefault("mode", 0)
    if str(mode).upper() not in ("0", "NONE"):
        raise UnsupportedError(
            f"compilation mode {mode}: torch.compile does not see the hop to FFN; only mode 0 (NONE) is supported "
            "on CPU; remove `mode` from --compilation-config"
        )
    operators = config.setdefault("custom_ops", ["all"])
    if not isinstance(operators, list):
        raise ConfigError(f"--compilation-config: custom_ops must be a list, found {operators!r}")
    if "+rotary_embedding" in operators:
        raise UnsupportedError(
            "custom_ops +rotary_embedding: that CPU kernel of vLLM is wrong for DeepSeek with MLA off; remove it"
        )
    if "-rotary_embedding" not in operators:
        config["custom_ops"] = [*operators, "-rotary_embedding"]
    return config


_FEATURES: tuple[tuple[str, str], ...] = (
    ("--enable-lora", "lora"),
    ("--speculative-config", "speculative"),
    ("--enable-eplb", "eplb"),
    ("--kv-transfer-config", "kv_transfer"),
    ("--enable-sleep-mode", "sleep_mode"),
)
_SIZES: tuple[tuple[str, str], ...] = (
    ("--pipeline-parallel-size", "pipeline_parallel"),
    ("--prefill-context-parallel-size", "prefill_context_parallel"),
    ("--decode-context-parallel-size", "decode_context_parallel"),
    ("--nnodes", "multi_node"),
)
_LOAD_FORMATS = ("auto", "safetensors", "dummy")


def features(arguments: VllmArguments) -> list[str]:
    """Names of the support matrix's features that vLLM's arguments ask for."""
    found = [name for flag, name in _FEATURES if arguments.enabled(flag)]
    found += [name for flag, name in _SIZES if arguments.integer(flag, 1) > 1]
    # Any other way to read a checkpoint takes tensors of the other role into memory before they can be left out.
    lazy = arguments.get("--safetensors-load-strategy", "lazy") in ("lazy", "prefetch")
    if arguments.get("--load-format", "auto") not in _LOAD_FORMATS or not lazy:
        found.append("load_format")
    if arguments.enabled("--model-loader-extra-config"):
        found.append("load_format")
    if arguments.get("--runner", "auto") == "pooling":
        found.append("pooling")
    wide = (
        arguments.integer("--tensor-parallel-size", 1) > 1
        and arguments.integer("--data-parallel-size", 1) > 1
    )
    if arguments.enabled("--enable-expert-parallel") and wide:
        found.append("sequence_parallel_moe")
    return found


def native(arguments: VllmArguments) -> list[str]:
    """vLLM's arguments with what every process needs here, be it a role or the native reference: no compilation, a
    right rotary kernel, eager execution, a bounded KV cache and a clean shutdown."""
    argv = arguments.without(
        "--compilation-config", "--additional-config", "--enable-dbo", "--no-enforce-eager"
    )
    argv += ["--compilation-config", json.dumps(compilation_config(arguments))]
    if not arguments.enabled("--enforce-eager"):
        argv.append("--enforce-eager")
    if not (arguments.enabled("--kv-cache-memory-bytes") or arguments.enabled("--gpu-memory-utilization")):
        argv += ["--kv-cache-memory-bytes", str(KV_CACHE_BYTES)]
    if not arguments.enabled("--shutdown-timeout"):
        argv += ["--shutdown-timeout", str(SHUTDOWN_S)]
    if not arguments.enabled("--api-server-count"):
        argv += ["--api-server-count", "1"]
    return argv


def complete(
    arguments: VllmArguments, *, additional: Mapping[str, Any], worker_class: str | None
) -> list[str]:
    """vLLM's arguments for one role on CPU. ``additional`` becomes part of ``--additional-config``.

    ``worker_class`` is None for FFN, which starts no vLLM worker. Raises UnsupportedError when the user named one.
    """
    argv = native(arguments)
    argv += ["--additional-config", json.dumps({**arguments.mapping("--additional-config"), **additional})]
    if worker_class is not None:
        if arguments.enabled("--worker-cls"):
            raise UnsupportedError("--worker-cls: Attention's worker class is AFD's own; remove the argument")
        argv += ["--worker-cls", worker_class]
    return argv
