# SPDX-License-Identifier: Apache-2.0
"""Which ranks of its role an agent has.

One FFN agent has all FFN ranks. Attention's data-parallel replicas may be spread over several agents, as vLLM's own
``--headless`` does it: one agent has the API server and the first replicas, the others have replicas only.
"""

from __future__ import annotations

from dataclasses import dataclass

from afd.agent.vllm_arguments import VllmArguments
from afd.config import AFDConfig
from afd.errors import ConfigError, UnsupportedError
from afd.topology import Rank, Role

DATA, TENSOR = "--data-parallel-size", "--tensor-parallel-size"
LOCAL, START, HEADLESS = "--data-parallel-size-local", "--data-parallel-start-rank", "--headless"


@dataclass(frozen=True)
class Share:
    """``ranks`` of one agent; ``headless`` when their API server is with another one."""

    ranks: tuple[Rank, ...]
    headless: bool = False


def size(arguments: VllmArguments, flag: str, default: int = 1) -> int:
    """The value of a flag that counts something. Raises ConfigError when it is below 1."""
    found = arguments.integer(flag, default)
    if found < 1:
        raise ConfigError(f"vLLM argument {flag}: {found} is not a size (1 or more)")
    return found


def share_of(role: Role, config: AFDConfig, arguments: VllmArguments) -> Share:
    """The ranks that an agent with these arguments has.

    Raises UnsupportedError when the replicas do not make as many ranks as AFD was told of, and ConfigError for replicas
    that are nobody's, or that have no API server.
    """
    topology = config.topology
    if role is Role.FFN:
        return Share(topology.role_ranks(Role.FFN))
    data, tensor = size(arguments, DATA), size(arguments, TENSOR)
    if data * tensor != topology.num_attention:
        raise UnsupportedError(
            f"num_attention_ranks is {topology.num_attention}, but data-parallel size {data} × tensor-parallel size "
            f"{tensor} makes {data * tensor}; use --afd-num-attention-ranks {data * tensor}"
        )
    headless = arguments.enabled(HEADLESS)
    start, local = arguments.integer(START, 0), size(arguments, LOCAL, data)
    if headless and not (arguments.enabled(START) and arguments.enabled(LOCAL) and start > 0):
        raise ConfigError(
            f"{HEADLESS}: these replicas belong to the API server of another agent, which has the first ones; say "
            f"which these are with {LOCAL} and {START} (1 or more)"
        )
    if start and not headless:
        raise ConfigError(f"{START} {start}: replicas without the API server are started with {HEADLESS}")
    if start + local > data:
        raise ConfigError(
            f"{LOCAL} {local} from replica {start} on: there are {data} replicas ({DATA}); use {LOCAL} {data - start}"
            if start < data
            else f"{START} {start}: there are {data} replicas ({DATA}), numbered from 0; use {START} {data - 1}"
        )
    mine = range(start * tensor, (start + local) * tensor)
    return Share(tuple(Rank(Role.ATTENTION, index) for index in mine), headless)


def refuse_for_ffn(arguments: VllmArguments) -> None:
    """Raise UnsupportedError for arguments that say how Attention is spread."""
    given = [f"{flag} {arguments.get(flag)}" for flag in (DATA, TENSOR) if size(arguments, flag) != 1]
    given += [
        f"{flag} {arguments.get(flag)}".strip()
        for flag in (LOCAL, START, HEADLESS)
        if arguments.enabled(flag)
    ]
    if given:
        named = " and ".join(word.partition(" ")[0] for word in given)
        raise UnsupportedError(f"for Attention only: {' and '.join(given)}; leave out {named} for ffn")
