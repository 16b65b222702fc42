# SPDX-License-Identifier: Apache-2.0
"""Tensors that ask for pinned memory, on a machine that has no accelerator to pin it for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.overrides import TorchFunctionMode


class Unpinned(TorchFunctionMode):
    """Inside the block ``pin_memory`` of every tensor that is made is ignored.

    vLLM's V2 runner pins a few integers for each step with a request that has a grammar (structured output, forced
    tool calls); on CPU that raises, and one request would end the engine.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kept = {name: value for name, value in (kwargs or {}).items() if name != "pin_memory"}
        return func(*args, **kept)
