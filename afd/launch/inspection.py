# SPDX-License-Identifier: Apache-2.0
"""What vLLM wants to know about a model's class before it builds it, found out once for all that is forked.

vLLM asks a process of its own, which imports vLLM again: ten seconds, and in the native reference, in Attention and
in FFN alike, whenever its cache (VLLM_CACHE_ROOT) has no answer or cannot be written. The launcher has imported the
classes already. It lets vLLM look at them here, and every fork inherits what vLLM then remembers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from vllm.model_executor.models import registry

from afd.families import FAMILIES
from afd.rebind import rebind

_T = TypeVar("_T")


def inspect_families() -> None:
    """Have vLLM inspect the classes of all families, in this process. Their modules must have been imported."""
    with rebind(registry, _run_in_subprocess=_here):
        for family in FAMILIES:
            for architecture in family.architectures:
                registry.ModelRegistry._try_inspect_model_cls(architecture)


def _here(fn: Callable[[], _T]) -> _T:
    return fn()
