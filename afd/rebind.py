# SPDX-License-Identifier: Apache-2.0
"""The one way AFD hooks an upstream name: for the length of a ``with`` block, and never at import.

``rebind(module, Name=Ours)`` raises when the name is gone upstream, so a hook can not silently stop applying,
and always restores. Every use is a row of ``HOOKS``; ``docs/hooks.md`` is rendered from it and a test fails when
an upstream signature changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Hook:
    """One upstream name that AFD replaces for a moment.

    ``signature`` is the upstream signature the replacement was written against, as ``inspect.signature`` prints
    it (parameter names only), or "class" when the name is a class of which only the constructor call matters.
    """

    module: str
    name: str
    signature: str
    where: str
    reason: str
    until: str


HOOKS: tuple[Hook, ...] = (
    Hook(
        "vllm.v1.worker.cpu_worker",
        "CPUModelRunner",
        "class",
        "afd.attention.worker.AttentionWorker.init_device",
        "the worker names its V1 runner class itself",
        "the worker takes its runner class from the configuration",
    ),
    Hook(
        "vllm.v1.worker.cpu.model_runner",
        "CPUModelRunner",
        "class",
        "afd.attention.worker.AttentionWorker.init_device",
        "the worker imports its V2 runner class itself",
        "the worker takes its runner class from the configuration",
    ),
    Hook(
        "the family's native module (afd.families)",
        "the class names of the row",
        "class",
        "afd.models.role.role_scope",
        "build one role of vLLM's own model class: the other role's modules are never constructed",
        "vLLM constructs models from injectable module classes",
    ),
    Hook(
        "vllm.model_executor.model_loader.weight_utils",
        "should_skip_weight",
        "(weight_name, local_expert_ids)",
        "afd.models.role.role_scope",
        "decide by name, before a tensor is read from disk, that it belongs to the other role",
        "the loader takes a name filter",
    ),
    Hook(
        "vllm.model_executor.layers.fused_moe.cpu_fused_moe",
        "CPUFusedMOE",
        "class",
        "afd.ffn.experts.split_experts",
        "experts split over FFN ranks: the CPU kernel ignores expert_map and would read beyond this rank's weights",
        "vLLM's CPU kernel skips experts that expert_map gives to other ranks",
    ),
    Hook(
        "vllm.utils.system_utils and the modules that import it by name",
        "get_mp_context",
        "()",
        "afd.launch.children.forked_children",
        "fork vLLM's processes from one that has imported vLLM: ready in seconds instead of ten a process",
        "vLLM's CPU platform stops forcing spawn",
    ),
    Hook(
        "vllm.model_executor.models.registry",
        "_run_in_subprocess",
        "(fn)",
        "afd.launch.inspection.inspect_families",
        "look at a model's class in the launcher, which has imported it, instead of importing vLLM once more per role",
        "vLLM inspects a class that is imported already in place",
    ),
    Hook(
        "vllm.config.parallel",
        "get_open_ports_list",
        "(count)",
        "afd.launch.api_server.main",
        "data-parallel ranks listen on them seconds later, and no outgoing connection must have taken one by then",
        "vLLM keeps the ports that it has chosen open until they are used",
    ),
)


@contextmanager
def rebind(owner: Any, /, **names: Any) -> Iterator[None]:
    """Replace attributes of a module or class inside the block.

    Raises AttributeError, naming owner and attribute, when upstream no longer has the name.
    """
    originals: dict[str, Any] = {}
    for name in names:
        if name not in vars(owner):
            raise AttributeError(f"cannot rebind {owner.__name__}.{name}: upstream no longer defines it")
        originals[name] = vars(owner)[name]
    for name, ours in names.items():
        setattr(owner, name, ours)
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(owner, name, original)
