# SPDX-License-Identifier: Apache-2.0
"""An FFN rank that computes something wrong in one layer while a file says so."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from afd.connectors.base import FFNLink, Work
from afd.ffn.process import RankProcess, main
from afd.ffn.server import FFNServer
from tests.system.variants import FAULT_FILE, LAYER, SWAP, ZERO


class FaultyServer(FFNServer):
    """Reads at each work what is wrong now: nothing (an empty file), ZERO or SWAP."""

    def compute(self, work: Work) -> Tensor:
        out = super().compute(work)
        if work.slot.layer != LAYER:
            return out
        fault = Path(os.environ[FAULT_FILE]).read_text()
        if fault == ZERO:
            return torch.zeros_like(out)
        # With prompts longer than two tokens these are the tokens of two requests that decode together.
        if fault == SWAP and out.shape[0] == 2:
            return out[[1, 0]]
        return out


class FaultyProcess(RankProcess):
    def server(self, link: FFNLink) -> FFNServer:
        return FaultyServer(self._layers, link, self._forward_context, self.counters, self._rows)


def ffn(argv: Sequence[str]) -> None:
    """The FFN rank."""
    main(argv, FaultyProcess)
