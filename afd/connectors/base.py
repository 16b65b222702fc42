# SPDX-License-Identifier: Apache-2.0
"""What the rest of AFD knows of the data plane: one link per role, typed and frozen arguments.

A link is made by a :class:`Connector` when both roles are there, serves one epoch and is closed once. Nothing above it
asks which connector or transport is behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from afd.control.abort import Abort
from afd.control.messages import Step
from afd.topology import Rank, Topology


class Slot(NamedTuple):
    """A place in a step: model layer and ubatch."""

    layer: int
    ubatch: int


@dataclass(frozen=True, slots=True)
class Routing:
    """Experts chosen on Attention (gate on Attention only): integer ``ids`` and ``weights``, both [rows, top_k]."""

    ids: Tensor
    weights: Tensor


class Part(NamedTuple):
    """Rows ``start`` to ``stop`` of a :class:`Work` belong to Attention rank ``attention``."""

    attention: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Work:
    """Rows of one (layer, ubatch) from all Attention ranks of an FFN rank, in rank order.

    ``hidden`` [rows, hidden] and ``token_ids`` [rows] may be views of transport memory: they are valid until this
    work is replied to, and may be changed in place. A work or a part without rows is an ordinary one.
    """

    slot: Slot
    hidden: Tensor
    token_ids: Tensor | None
    routing: Routing | None
    parts: tuple[Part, ...]
    step: int


@dataclass(frozen=True)
class ConnectorSpec:
    """All that a link needs to know. Both roles build it from agreed values; only ``rank`` and ``abort`` differ.

    ``max_tokens`` bounds the rows one Attention rank sends for one ubatch. ``layers`` are the model layers whose FFN is
    remote, ascending. ``ids`` is the ids mode of the run and ``ids_dtype`` (int32 or int64) the one type ids cross in.
    ``attention_tp`` Attention ranks form a tensor-parallel group: they share one announced step, and each sends its own
    range of its rows (:func:`afd.connectors.slicing.split_rows`). A wait without progress for ``step_s`` seconds raises
    :class:`afd.errors.PeerLostError`. ``spin_us`` is how long a wait may poll before it sleeps. ``poison`` (debugging)
    overwrites transport memory as soon as its view has become invalid.
    """

    epoch: str
    topology: Topology
    rank: Rank
    hidden_size: int
    dtype: torch.dtype
    max_tokens: int
    layers: tuple[int, ...]
    abort: Abort = field(compare=False)
    ids: bool = False
    ids_dtype: torch.dtype = torch.int32
    num_ubatches: int = 1
    attention_tp: int = 1
    step_s: float = 60.0
    spin_us: int = 0
    poison: bool = False


@dataclass(slots=True)
class LinkCounters:
    """What a link has done so far: payloads and bytes per direction, and seconds spent waiting for peers."""

    sent: int = 0
    received: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    wait_s: float = 0.0


class Exchange(Protocol):
    """Gather one JSON-able value per rank of both roles: returns ``{"A0": …, "F0": …}`` once all have offered."""

    def __call__(self, key: str, value: Any, /) -> Mapping[str, Any]: ...


class AttentionLink(Protocol):
    """The Attention end. One thread per ubatch may send and receive at the same time as those of other ubatches.

    All methods raise :class:`afd.errors.ClosedError` after :meth:`close`, the cause of the abort after an abort,
    :class:`afd.errors.PeerLostError` when the peer makes no progress and :class:`afd.errors.MisuseError` when the
    arguments break the protocol (nothing has crossed then).
    """

    @property
    def counters(self) -> LinkCounters: ...

    @property
    def closed(self) -> bool: ...

    def begin(self, step: Step) -> None:
        """Start the step that was announced to the FFN ranks. Every ubatch's rows are those of ``step.padded``."""
        ...

    def send(
        self, slot: Slot, hidden: Tensor, token_ids: Tensor | None = None, routing: Routing | None = None
    ) -> None:
        """Send ``hidden`` [rows, hidden] (and, in ids mode, ``token_ids`` [rows]); both may be reused on return.

        At least two sends of a ubatch may be out before their replies are received; then, and while the peer has not
        read what was sent, it waits. ``hidden`` may be the view that the last :meth:`receive` returned.
        """
        ...

    def receive(self, slot: Slot, out: Tensor | None = None) -> Tensor:
        """The reply to what was sent for ``slot``, [rows, hidden], in the order of sending.

        With ``out`` [rows, hidden] (contiguous) the reply is copied there and ``out`` returned. Without, the result may
        be a view of transport memory that is valid, and may be changed in place, until the next :meth:`send` or
        :meth:`receive` of the same ubatch: enough for a layer that consumes it before the next hop, not for the output
        of a model.
        """
        ...

    def close(self, reason: str) -> None:
        """End the link and wake everything that waits in it. Twice is fine."""
        ...


class FFNLink(Protocol):
    """The FFN end. Used by one thread; :meth:`close` may come from any. Errors as for :class:`AttentionLink`."""

    @property
    def counters(self) -> LinkCounters: ...

    @property
    def closed(self) -> bool: ...

    def works(self, steps: Mapping[Rank, Step]) -> Iterator[Work]:
        """All works of one step, as they are to be computed; each must be replied to before its ubatch's next one.

        ``steps`` has the announced step of every Attention rank that announces (one per tensor-parallel group).
        """
        ...

    def reply(self, work: Work, out: Tensor) -> None:
        """Send ``out`` [rows, hidden] back to the ranks that the rows of ``work`` came from."""
        ...

    def close(self, reason: str) -> None:
        """End the link and wake everything that waits in it. Twice is fine."""
        ...


class Connector(Protocol):
    """Makes links. Both calls return once both roles have opened their ends (two exchanges over the control plane)."""

    @property
    def name(self) -> str: ...

    def open_attention(self, spec: ConnectorSpec, exchange: Exchange) -> AttentionLink: ...

    def open_ffn(self, spec: ConnectorSpec, exchange: Exchange) -> FFNLink: ...
