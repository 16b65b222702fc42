# SPDX-License-Identifier: Apache-2.0
"""What stands in for the other role's modules. None of these holds a parameter.

``RemoteFFN`` is where a layer's hidden states leave Attention; ``Absent`` marks what FFN does not have.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import nn

from afd.connectors.base import AttentionLink, Slot
from afd.connectors.slicing import slice_rows
from afd.errors import MisuseError
from afd.models.row_group import RowGroup

_LAYER = re.compile(r"\.layers\.(\d+)\.")


class Hop:
    """The crossing that all RemoteFFN layers of one model share.

    It exists before the link does (the model is built first) and knows the ubatch that is running now: the
    ubatch relay of a later release changes ``ubatch`` and ``token_ids`` at every hand-over. ``group`` is set on a
    tensor-parallel rank, which sends its own range of the rows.
    """

    def __init__(self) -> None:
        self.link: AttentionLink | None = None
        self.group: RowGroup | None = None
        self.ubatch = 0
        self.token_ids: torch.Tensor | None = None
        self.last_layer = -1

    def exchange(self, layer: int, hidden: torch.Tensor) -> torch.Tensor:
        """Send hidden states [tokens, hidden] of one layer and return FFN's output, same shape and dtype.

        Raises MisuseError before a link is attached, and what the link raises when the peer is lost.
        """
        link = self.link
        if link is None:
            raise MisuseError(f"layer {layer} ran before this rank was connected to FFN")
        slot = Slot(layer, self.ubatch)
        number, group = hidden.shape[0], self.group
        start, stop = (0, number) if group is None else group.own(number)
        rows, ids = slice_rows(hidden, self.token_ids, start, stop, ids=self.token_ids is not None)
        link.send(slot, rows, ids)
        if group is not None:
            reply = group.reply_for(hidden)
            link.receive(slot, reply[: stop - start])
            return group.join(reply, number)
        # A layer consumes the reply before the next hop, so it may stay a view of transport memory; what the last
        # layer returns becomes the output of the model and must outlive the step.
        return link.receive(slot, torch.empty_like(hidden) if layer == self.last_layer else None)


class RemoteFFN(nn.Module):
    """A decoder layer's FFN block that lives on the FFN ranks. forward: [tokens, hidden] -> same.

    Model classes read numbers of experts off their blocks, for the balancing of experts: an Attention rank has none.
    """

    n_routed_experts = n_shared_experts = n_redundant_experts = 0
    n_logical_experts = n_physical_experts = n_local_physical_experts = 0
    experts = None

    def __init__(self, layer: int, hop: Hop) -> None:
        nn.Module.__init__(
            self
        )  # not what follows in a subclass that also has a class of vLLM's: it has weights
        self.layer = layer
        self._hop = hop

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self._hop.exchange(self.layer, hidden_states)

    def extra_repr(self) -> str:
        return f"layer={self.layer}"


class Absent(nn.Module):
    """A module of the other role. Constructing it is free; running it is a bug."""

    weight = None  # models with tied embeddings give the one's to the other

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise MisuseError("a module that belongs to the other role was run on this one")


def remote_ffn_class(hop: Hop, native: type[nn.Module]) -> Callable[..., RemoteFFN]:
    """A class that vLLM can construct in the place of its FFN class ``native``, with any of its arguments.

    Its instances are RemoteFFN modules, and instances of ``native`` although they hold nothing of it: a model class may
    insist on a block with experts among its layers, and a decoder layer treats the output of one kind of block
    otherwise than that of another.
    """

    class Remote(RemoteFFN, native):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, prefix: str = "", **kwargs: Any) -> None:
            found = _LAYER.search(f".{prefix}.")
            if found is None:
                raise MisuseError(f"cannot tell the layer of an FFN block from its prefix {prefix!r}")
            RemoteFFN.__init__(self, int(found.group(1)), hop)

    return Remote
