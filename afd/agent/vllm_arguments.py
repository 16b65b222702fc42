# SPDX-License-Identifier: Apache-2.0
"""vLLM's command line as AFD reads and completes it, without importing vLLM.

AFD passes the user's arguments on untouched. It reads those that decide about support and topology, and adds
what vLLM's defaults get wrong for two roles on one host, unless the user set it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from afd.errors import ConfigError, UnsupportedError

KV_CACHE_BYTES = 256 << 20
"""KV cache per Attention rank on CPU. vLLM's own default is 0.92 of the machine's memory per rank."""

SHUTDOWN_S = 5
"""How long requests in flight may go on after a stop. vLLM's default of 0 kills the engine under its API server."""

_ALIASES = {
    "-O": "--optimization-level",
    "-ac": "--attention-config",
    "-asc": "--api-server-count",
    "-cc": "--compilation-config",
    "-dc": "--diffusion-config",
    "-dcp": "--decode-context-parallel-size",
    "-dp": "--data-parallel-size",
    "-dpa": "--data-parallel-address",
    "-dpb": "--data-parallel-backend",
    "-dpe": "--data-parallel-external-lb",
    "-dph": "--data-parallel-hybrid-lb",
    "-dpl": "--data-parallel-size-local",
    "-dpm": "--data-parallel-multi-port-external-lb",
    "-dpn": "--data-parallel-rank",
    "-dpp": "--data-parallel-rpc-port",
    "-dpr": "--data-parallel-start-rank",
    "-ep": "--enable-expert-parallel",
    "-n": "--nnodes",
    "-pcp": "--prefill-context-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-q": "--quantization",
    "-r": "--node-rank",
    "-sc": "--speculative-config",
    "-tp": "--tensor-parallel-size",
}
"""vLLM's short flags; a test compares them with its parser."""

_ATTACHED = re.compile(r"(-O|-[a-z])=?(.+)", re.DOTALL)
_NUMBER = re.compile(r"-\d+|-\d*\.\d+")


@dataclass(frozen=True)
class Given:
    """One flag as it was given: ``path`` are the keys of ``--flag.key.key``, ``raw`` the words of the command line."""

    flag: str
    path: tuple[str, ...]
    values: tuple[str, ...]
    raw: tuple[str, ...]


@dataclass(frozen=True)
class VllmArguments:
    """The arguments after MODEL, in order."""

    given: tuple[Given, ...]

    @cached_property
    def values(self) -> Mapping[str, tuple[str, ...]]:
        """Canonical flags and the values of their last occurrence. Keys given with dots come as one JSON object."""
        found: dict[str, tuple[str, ...]] = {}
        for given in self.given:
            opposite = (
                given.flag.replace("--no-", "--")
                if given.flag.startswith("--no-")
                else f"--no-{given.flag[2:]}"
            )
            found.pop(opposite, None)
            if not given.path:
                found[given.flag] = given.values
        for flag in {given.flag for given in self.given if given.path}:
            merged = _object(flag, " ".join(found.get(flag, ())))
            for given in self.given:
                if given.flag == flag and given.path:
                    _set(merged, given.path, given.values)
            found[flag] = (json.dumps(merged),)
        return found

    def get(self, flag: str, default: str = "") -> str:
        """The value of a flag, several joined by blanks; "" for a bare flag."""
        return " ".join(self.values[flag]) if flag in self.values else default

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
        """The value of a JSON flag, {} without it. Raises ConfigError when it is not a JSON object."""
        return _object(flag, self.get(flag))

    def enabled(self, flag: str) -> bool:
        """Whether a flag was given, and not negated by its ``--no-`` form afterwards."""
        return flag in self.values

    def without(self, *flags: str) -> list[str]:
        """The words of the command line with every spelling of ``flags`` and their values removed."""
        return [word for given in self.given if given.flag not in flags for word in given.raw]


def parse(argv: Sequence[str]) -> VllmArguments:
    """Read vLLM's command line: ``--flag value …``, ``--flag=value``, bare ``--flag``, ``--flag.key value``, and
    the short forms of flags.

    What is a flag and what a value is decided as argparse does. Raises ConfigError for a positional argument, which
    vLLM would take for a second model.
    """
    return VllmArguments(tuple(_read(argv)))


def _read(argv: Sequence[str]) -> Iterator[Given]:
    starts = list(_starts(argv))
    ends = [*starts[1:], len(argv)]
    if argv and (not starts or starts[0] > 0):
        raise _unexpected(argv[0])
    for start, end in zip(starts, ends, strict=False):
        name, inline = _split(argv[start])
        following = tuple(argv[start + 1 : end])
        if inline is not None and following:
            raise _unexpected(following[0])
        flag, *path = name.split(".")
        yield Given(
            flag=_canonical(flag),
            path=tuple(path),
            values=following if inline is None else (inline,),
            raw=tuple(argv[start:end]),
        )


def _starts(argv: Sequence[str]) -> Iterator[int]:
    """Where flags are. The word after ``--flag.key`` is its value, whatever it looks like."""
    value = False
    for index, word in enumerate(argv):
        if value or not _is_flag(word):
            value = False
            continue
        name, inline = _split(word)
        value = "." in name and inline is None
        yield index


def _is_flag(word: str) -> bool:
    """A word that begins with "-", unless it is a number, "-" itself, or has a blank before any "="."""
    return (
        len(word) > 1 and word[0] == "-" and not _NUMBER.fullmatch(word) and " " not in word.partition("=")[0]
    )


def _split(word: str) -> tuple[str, str | None]:
    """A flag's name and the value that is part of the same word, if any: ``--port=1``, ``-O3``, ``-qfp8``."""
    name, equals, inline = word.partition("=")
    if name.startswith("--") or name.partition(".")[0] in _ALIASES:
        return name, inline if equals else None
    attached = _ATTACHED.fullmatch(word)
    if attached is not None and attached[1] in _ALIASES:
        return attached[1], attached[2]
    return name, inline if equals else None


def _canonical(name: str) -> str:
    if name.startswith("--"):
        name = "--" + name[2:].replace("_", "-")
    return _ALIASES.get(name, name)


def _unexpected(word: str) -> ConfigError:
    return ConfigError(f"unexpected argument {word!r}: the model is given once, before vLLM's arguments")


def _object(flag: str, text: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"vLLM argument {flag}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"vLLM argument {flag}: expected a JSON object, found {text}")
    return value


def _set(into: dict[str, Any], path: Sequence[str], values: Sequence[str]) -> None:
    """``--flag.key value`` and, for a list, ``--flag.key+ value,value``."""
    *parents, last = path
    for key in parents:
        inner = into.setdefault(key, {})
        if not isinstance(inner, dict):
            inner = into[key] = {}
        into = inner
    text = " ".join(values)
    if last.endswith("+"):
        before = into.get(last[:-1])
        into[last[:-1]] = [*(before if isinstance(before, list) else []), *text.split(",")]
        return
    try:
        into[last] = json.loads(text)
    except ValueError:
        into[last] = text


def compilation_config(arguments: VllmArguments) -> dict[str, Any]:
    """The user's compilation configuration with what AFD needs on CPU.

    Mode NONE: torch.compile does not see the hop. No rotary kernel: vLLM 0.26's CPU kernel rotates only part of
    the heads of DeepSeek models with MLA off, so results would depend on how requests are batched.
    Raises UnsupportedError for any other explicit mode, and for asking for that kernel.
    """
    config = arguments.mapping("--compilation-config")
    if config.get("mode") is None:
        config["mode"] = 0
    mode = config["mode"]
    if str(mode).upper() not in ("0", "NONE"):
        raise UnsupportedError(
            f"compilation mode {mode}: torch.compile does not see the hop to FFN, so only mode 0 (NONE) is "
            "supported on CPU; remove `mode` from --compilation-config"
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


def native(arguments: VllmArguments) -> list[str]:
    """vLLM's arguments with what every process needs here, be it a role or the native reference: no compilation, a
    right rotary kernel, eager execution, a bounded KV cache and a clean shutdown."""
    argv = arguments.without(
        "--compilation-config", "--additional-config", "--enable-dbo", "--ubatch-size", "--no-enforce-eager"
    )
    argv += ["--compilation-config", json.dumps(compilation_config(arguments))]
    if not arguments.enabled("--enforce-eager"):
        argv.append("--enforce-eager")
    if not (arguments.enabled("--kv-cache-memory-bytes") or arguments.enabled("--gpu-memory-utilization")):
        argv += ["--kv-cache-memory-bytes", str(KV_CACHE_BYTES)]
    if not arguments.enabled("--shutdown-timeout"):
        argv += ["--shutdown-timeout", str(SHUTDOWN_S)]
    if not arguments.enabled("--api-server-count") and not arguments.enabled("--headless"):
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
            raise UnsupportedError("--worker-cls: Attention's worker class is AFD's own; leave it out")
        argv += ["--worker-cls", worker_class]
    return argv
