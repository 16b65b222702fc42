# SPDX-License-Identifier: Apache-2.0
"""Which flags `vllm serve` has and how many values each takes: a misspelt one is found before anything starts.

The table is ``vllm_flags.toml``, written by scripts/vllm_flags.py and compared with vLLM's parser by a test. Whether a
value is a good one is left to vLLM.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from afd import toml_data
from afd.agent.vllm_arguments import Given, VllmArguments
from afd.config.kinds import nearest, show
from afd.errors import ConfigError

OWN = ("--agent-host", "--agent-port", "--afd-runner")
"""Flags of `afd serve` itself, which a misspelt one may be meant for."""


@functools.cache
def flags() -> Mapping[str, str]:
    """Every flag of `vllm serve`, and how many values it takes: "none", "one", "optional" (one or none), "several"."""
    kinds = toml_data.load("afd.agent", "vllm_flags.toml")
    return {flag: kind for kind, names in kinds.items() for flag in names}


def check(arguments: VllmArguments) -> None:
    """Raise ConfigError for a flag that vLLM does not have, or that has more or fewer values than it takes.

    Flags must be written out: what AFD judges by name would get past it as ``--speculative``, or as ``-s``.
    """
    for given in arguments.given:
        kind = flags().get(given.flag)
        if kind is None and given.flag != "--":
            name = given.raw[0].partition("=")[0].partition(".")[0]
            raise ConfigError(
                f"flag {name}: there is no such flag{_meant(given.flag)} (--help=vllm lists those of vLLM)"
            )
        if not given.path:  # --flag.key is one value of an object
            _count(given, kind)


def _count(given: Given, kind: str | None) -> None:
    values, name = given.values, given.raw[0].partition("=")[0]
    if kind == "none" and values:
        raise ConfigError(f"flag {name}: takes no value, found {show(values[0])}")
    if kind in ("one", "several") and not values:
        raise ConfigError(f"flag {name}: a value is missing")
    if kind in ("one", "optional") and len(values) > 1:
        raise ConfigError(f"flag {name}: takes one value, found also {show(values[1])}")


def _meant(flag: str) -> str:
    longer = [known for known in flags() if known.startswith(flag)]
    if len(longer) == 1:
        return f"; did you mean {longer[0]!r}?"
    return nearest(flag, (*flags(), *OWN))
