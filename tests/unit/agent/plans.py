# SPDX-License-Identifier: Apache-2.0
"""Real plans of roles over a small real checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from afd import config as afd_config
from afd.agent.plan import RolePlan, plan_role
from afd.testing import tiny
from afd.testing.tiny import TinyModel
from afd.topology import Role

SMALL = TinyModel(
    hidden_size=32, intermediate_size=32, moe_intermediate_size=16, num_layers=2, num_experts=4, shards=1
)
FLOAT32 = ("--dtype", "float32")


def small_model(directory: Path) -> Path:
    return tiny.build(SMALL, directory / "m")


def planned(
    model: Path | str,
    role: Role = Role.ATTENTION,
    argv: Sequence[str] = FLOAT32,
    environment: Mapping[str, str] | None = None,
    *,
    agent_port: int = 9300,
    target: str | None = None,
    **settings: Any,
) -> RolePlan:
    resolved = afd_config.resolve({}, {}, settings, role).config
    return plan_role(
        role,
        str(model),
        resolved,
        argv,
        environment or {},
        agent_host="127.0.0.1",
        agent_port=agent_port,
        target=target,
    )
