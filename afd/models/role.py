# SPDX-License-Identifier: Apache-2.0
"""Construct and load one role of vLLM's own model class, in a scope that restores every name it replaced.

What this does not do: it patches nothing for good, copies no model code, and knows no transport.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.model_loader import weight_utils

from afd.families import Family, family_of
from afd.models.proxies import Absent, Hop, RemoteFFN, remote_ffn_class
from afd.rebind import rebind
from afd.topology import Role


def model_family(vllm_config: VllmConfig) -> Family:
    """The family row of the configured model. Raises UnsupportedError for an unknown architecture."""
    return family_of(vllm_config.model_config.architecture)


@contextmanager
def role_scope(family: Family, role: Role, hop: Hop | None = None) -> Iterator[None]:
    """Inside the block vLLM's loader builds and loads only ``role``'s half of a model of ``family``.

    ``hop`` is required for Attention and is shared by all its RemoteFFN layers. The other role's modules are
    never constructed and its tensors are skipped by name before they are read.
    """
    module = importlib.import_module(family.module)
    if role is Role.ATTENTION:
        assert hop is not None, "Attention is built around a hop"
        classes: dict[str, Any] = {
            name: remote_ffn_class(hop, vars(module)[name]) for name in family.ffn_classes
        }
    else:
        classes = {name: Absent for name in family.attention_classes}

    native_skip = weight_utils.should_skip_weight

    def skip(weight_name: str, local_expert_ids: set[int] | None) -> bool:
        return family.owner(weight_name) is not role or native_skip(weight_name, local_expert_ids)

    with ExitStack() as scope:
        scope.enter_context(rebind(module, **classes))
        scope.enter_context(rebind(weight_utils, should_skip_weight=skip))
        yield


def remote_layers(model: nn.Module) -> tuple[int, ...]:
    """The layer indices whose FFN block is remote, in execution order."""
    return tuple(module.layer for module in model.modules() if isinstance(module, RemoteFFN))
