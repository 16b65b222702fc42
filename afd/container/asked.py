# SPDX-License-Identifier: Apache-2.0
"""What a command line asks of one role, read as ``afd serve`` reads it. Nothing is started, no model looked at."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from afd import config
from afd.agent import secrets, vllm_arguments
from afd.agent.share import DATA, TENSOR, size
from afd.agent.vllm_arguments import VllmArguments
from afd.cli import options, serve
from afd.config import AFDConfig
from afd.errors import ConfigError
from afd.topology import Role


@dataclass(frozen=True)
class Asked:
    """``argv`` is what follows ``afd serve ROLE``; ``origins`` says where each of AFD's settings comes from."""

    role: Role
    model: str
    argv: tuple[str, ...]
    vllm: VllmArguments
    config: AFDConfig
    origins: Mapping[str, str]
    agent_host: str
    agent_port: int

    @property
    def agent(self) -> tuple[str, int]:
        """Where its agent listens."""
        return self.agent_host, self.agent_port

    @property
    def attention_ranks(self) -> int:
        """How many ranks vLLM's own sizes make."""
        return size(self.vllm, DATA) * size(self.vllm, TENSOR)


def read(role: Role, argv: Sequence[str], environment: Mapping[str, str] | None = None) -> Asked:
    """The command line of ``role``. Raises ConfigError, and click's own errors (and its Exit, after --help)."""
    argv = list(argv)
    ctx = serve.command.make_context("afd-entrypoint", [str(role), *argv])
    model: str = ctx.params["model"]
    if argv[:1] != [model] or model.startswith("-"):
        raise ConfigError(f"MODEL comes first, before vLLM's and AFD's arguments; found {argv[0]}")
    given: tuple[str, ...] = ctx.params["vllm_args"]
    options.refuse_unknown(given)
    arguments = vllm_arguments.parse(given)
    secrets.refuse_what_stays(arguments)
    resolved = config.resolve(
        options.flags(ctx),
        os.environ if environment is None else environment,
        options.afd_json(arguments.get("--additional-config") or None),
        role,
    )
    return Asked(
        role=role,
        model=model,
        argv=tuple(argv),
        vllm=arguments,
        config=resolved.config,
        origins=resolved.origins,
        agent_host=ctx.params["agent_host"],
        agent_port=ctx.params["agent_port"],
    )
