# SPDX-License-Identifier: Apache-2.0
"""What vLLM's arguments ask for that the support matrix judges, and what no pair of roles can do.

The table is ``vllm_policy.toml``. It names every flag of vLLM, so that a new one cannot slip past.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

from afd import toml_data
from afd.agent.vllm_arguments import VllmArguments
from afd.errors import ConfigError, UnsupportedError

_MLA, _BIND = "VLLM_MLA_DISABLE", "VLLM_CPU_OMP_THREADS_BIND"
_CORES = re.compile(r"auto|nobind|[0-9 ,|{}-]*[0-9][0-9 ,|{}-]*")
_NO_GRAPHS = ("None", "NONE", "0", "False", "[]")
_LOAD_FORMATS = ("auto", "safetensors", "dummy")


@functools.cache
def table() -> dict[str, dict[str, Any]]:
    """The tables of ``vllm_policy.toml``: feature, size, refused, only, variable, judged and passed."""
    return toml_data.load("afd.agent", "vllm_policy.toml")


def features(arguments: VllmArguments) -> list[str]:
    """Names of the support matrix's features that vLLM's arguments ask for, each once."""
    found = [name for flag, name in table()["feature"].items() if arguments.enabled(flag)]
    found += [name for flag, name in table()["size"].items() if arguments.integer(flag, 1) > 1]
    # Any other way to read a checkpoint takes tensors of the other role into memory before they can be left out.
    lazy = arguments.get("--safetensors-load-strategy", "lazy") in ("lazy", "prefetch")
    known = arguments.get("--load-format", "auto") in _LOAD_FORMATS
    if not (known and lazy) or arguments.mapping("--model-loader-extra-config"):
        found.append("load_format")
    converted = arguments.get("--convert", "auto") not in ("auto", "none")
    if arguments.get("--runner", "auto") == "pooling" or converted:
        found.append("pooling")
    wide = (
        arguments.integer("--tensor-parallel-size", 1) > 1
        and arguments.integer("--data-parallel-size", 1) > 1
    )
    if arguments.enabled("--enable-expert-parallel") and wide:
        found.append("sequence_parallel_moe")
    return list(dict.fromkeys(found))


def num_ubatches(arguments: VllmArguments) -> int:
    """How many ubatches vLLM's own flags ask for: --enable-dbo means two, --ubatch-size says it (0 is none)."""
    size = arguments.integer("--ubatch-size", 1)
    return size if size < 0 else max(2 if arguments.enabled("--enable-dbo") else 1, size)


def graphs(arguments: VllmArguments) -> bool:
    """Whether vLLM's arguments ask for graphs, or say something about them."""
    compilation = arguments.mapping("--compilation-config")
    keys = [key for key in compilation if "cudagraph" in key and str(compilation[key]) not in _NO_GRAPHS]
    flags = ("--no-enforce-eager", "--cudagraph-capture-sizes", "--max-cudagraph-capture-size")
    return bool(keys) or any(arguments.enabled(flag) for flag in flags)


def check(arguments: VllmArguments) -> None:
    """Raise UnsupportedError for arguments that would blind the agent, change the model behind its back, or ask only
    one of the roles for what both would have to do."""
    for flag, reason in table()["refused"].items():
        if arguments.enabled(flag):
            raise UnsupportedError(f"vLLM argument {flag}: {reason}; leave it out")
    for flag, rule in table()["only"].items():
        if arguments.enabled(flag) and arguments.get(flag) not in rule["values"]:
            accepted = " or ".join(rule["values"])
            raise UnsupportedError(
                f"vLLM argument {flag} {arguments.get(flag)}: {rule['reason']}; leave it out, or set it to {accepted}"
            )


def check_variables(environment: Mapping[str, str]) -> None:
    """Raise UnsupportedError for variables of vLLM with which it could do what the other role would not hear of."""
    for name, reason in table()["variable"].items():
        if environment.get(name, "0") != "0":
            raise UnsupportedError(f"{name}={environment[name]}: {reason}; unset it, or set it to 0")
    if environment.get(_MLA, "1") != "1":
        raise UnsupportedError(
            f"{_MLA}={environment[_MLA]}: vLLM's CPU backend has no MLA; unset it, or set it to 1"
        )
    if not _CORES.fullmatch(environment.get(_BIND, "auto")):
        raise ConfigError(
            f"{_BIND}={environment[_BIND]}: expected auto, nobind, or a list of cores for each rank, such as 0-3|4-7; "
            "unset it, and AFD chooses"
        )
