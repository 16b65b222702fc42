# SPDX-License-Identifier: Apache-2.0
"""What both roles do alike between a loaded model and the first step: attach, confirm, describe the link.

The order of exchanges is a contract between the roles: "resolved" (must agree), "steps" (addresses of the step
channels), then those of the connector. No AFD segment, port or group exists before "resolved" was agreed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm.config import VllmConfig

from afd import config as afd_config
from afd.config import AFDConfig
from afd.connectors.base import Connector, ConnectorSpec
from afd.connectors.registry import connector
from afd.connectors.shm.rings import spin_us
from afd.control.session import RankSession
from afd.errors import ConfigError
from afd.families import family_of
from afd.models.resolved import Resolved
from afd.topology import Rank

TRANSPORT_VARIABLE = "AFD_RANK_TRANSPORT"
ATTENTION_TP_VARIABLE = "AFD_RANK_ATTENTION_TP"
HOST_VARIABLE = "AFD_RANK_HOST"
"""The address of this machine at which the peers reach this rank."""


@dataclass(frozen=True)
class Crossing:
    """One rank's place in the group, agreed with all others."""

    config: AFDConfig
    resolved: Resolved
    session: RankSession
    rank: Rank
    connector: Connector
    spec: ConnectorSpec

    def exchange(self, key: str, value: Any, /) -> Mapping[str, Any]:
        """One value from each rank of both roles. Bounded by ``load_s``: the peer may still be loading."""
        return self.session.exchange(key, value, self.config.timeouts.load_s)


def tp_rank(spec: ConnectorSpec) -> int:
    """The place of an Attention rank in its tensor-parallel group; 0 is the group's leader."""
    return spec.rank.index % spec.attention_tp


def configuration(vllm_config: VllmConfig) -> AFDConfig:
    """AFD's configuration as the agent resolved it, from ``additional_config["afd"]``."""
    additional = vllm_config.additional_config
    if not isinstance(additional, dict) or "afd" not in additional:
        raise ConfigError('no "afd" in --additional-config: start this role with `afd serve`')
    return afd_config.resolve({}, {}, additional["afd"]).config


def agree(
    vllm_config: VllmConfig, session: RankSession, rank: Rank, layers: tuple[int, ...], resolved: Resolved
) -> Crossing:
    """Confirm with every rank what vLLM resolved, and describe the link. ``layers`` have their FFN on FFN ranks.

    ``resolved`` was read before the model was built: constructors of vLLM write into the model's configuration what
    only one of the roles constructs (DeepSeek's attention its kind of yarn).
    Raises MismatchError (through the abort) when a rank resolved something else.
    """
    config = configuration(vllm_config)
    session.report({}, state="loaded")
    agreed = session.exchange(
        "resolved",
        {**resolved.as_dict(), "remote layers": len(layers)},
        config.timeouts.load_s,
        must_agree=True,
    )
    topology = config.topology
    spec = ConnectorSpec(
        epoch=session.epoch,
        topology=topology,
        rank=rank,
        hidden_size=resolved.hidden_size,
        dtype=resolved.torch_dtype,
        max_tokens=max(values["max_tokens"] or 0 for values in agreed.values()),
        layers=layers,
        abort=session.abort,
        ids=family_of(resolved.architecture).needs_token_ids,
        num_ubatches=config.ubatch.num_ubatches,
        attention_tp=int(os.environ[ATTENTION_TP_VARIABLE]),
        step_s=config.timeouts.step_s,
        spin_us=spin_us(topology.world_size),
    )
    transport, host = os.environ[TRANSPORT_VARIABLE], os.environ[HOST_VARIABLE]
    return Crossing(config, resolved, session, rank, connector(config.connector, transport, host), spec)
