# SPDX-License-Identifier: Apache-2.0
"""Ranks that raise, leave or hold the interpreter lock when a test asks for it.

An order is a file in a directory; the process that finds it removes it and does what its name says.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from afd.attention.runners import AttentionRunnerV2
from afd.attention.worker import AttentionWorker
from afd.connectors.base import FFNLink, Work
from afd.ffn.process import RankProcess, main
from afd.ffn.server import FFNServer
from tests.system.variants import HOLD_S, ORDERS_DIRECTORY


def take(order: str) -> bool:
    """Whether ``order`` was given; it is carried out once."""
    try:
        (Path(os.environ[ORDERS_DIRECTORY]) / order).unlink()
    except FileNotFoundError:
        return False
    return True


def hold_interpreter_lock() -> None:
    """No other thread of this process runs for HOLD_S, as while a large library is loaded."""
    ctypes.PyDLL(None).sleep(HOLD_S)


class _Server(FFNServer):
    def compute(self, work: Work) -> Tensor:
        if work.slot.layer == 2:
            if take("ffn holds"):
                hold_interpreter_lock()
            if take("ffn raises"):
                raise ValueError("expert 3 of layer 2 is broken")
            if take("ffn leaves"):
                os._exit(3)
        return super().compute(work)


class _RankProcess(RankProcess):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if take("ffn raises while loading"):
            raise ValueError("the weights of layer 2 are broken")

    def server(self, link: FFNLink) -> FFNServer:
        return _Server(self._layers, link, self._forward_context, self.counters, self._rows)


def ffn(argv: Sequence[str]) -> None:
    """The FFN rank."""
    main(argv, _RankProcess)


class _Runner(AttentionRunnerV2):
    def load_model(self, *args: Any, **kwargs: Any) -> None:
        super().load_model(*args, **kwargs)
        self.model.get_submodule("model.layers.1").register_forward_pre_hook(self._before_layer)

    def _before_layer(self, module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if take("attention holds"):
            hold_interpreter_lock()
        if take("attention raises"):
            raise ValueError("the attention of layer 1 is broken")

    def execute_model(self, *args: Any, **kwargs: Any) -> Any:
        if take("attention raises before its forward"):
            raise ValueError("the batch cannot be prepared")
        return super().execute_model(*args, **kwargs)


class Worker(AttentionWorker):
    """The Attention rank, on V2."""

    afd_runner_v2 = _Runner
