# SPDX-License-Identifier: Apache-2.0
"""The seam between connectors and transports.

A transport gives each rank an *end*, and an end has one *lane* per ubatch: its own communicator, never shared. A
lane moves the rows of one layer in one call per direction and knows nothing of models or order. On the FFN side one
call covers all Attention ranks it serves, so that the same seam fits point-to-point rings (``shm``), sends and
receives of a process group (``collective``) and collective operators (``cam``: ``a2e`` is an Attention send and an FFN
receive, ``e2a`` the way back; the lane keeps the sizes that the one returns and the other needs).

Opening takes two exchanges over the control plane, the same for every transport:

    end = transport.attention(spec) or transport.ffn(spec)      may allocate; raises before anything is published
    offers = exchange("endpoints", end.offer)                   what peers need to find this end, or None
    end.connect(offers)                                         shm: Attention maps; process groups: both join
    exchange("opened", True)                                    all ends are connected
    end.confirm()                                               shm: FFN removes the names

After ``connect`` the lanes work; ``close`` undoes everything at any point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from afd.connectors.base import ConnectorSpec, Exchange


class AttentionLane(Protocol):
    """One ubatch of an Attention rank. Arguments were checked by the connector; used by one thread at a time."""

    def begin(self, step: int, rows: int) -> None:
        """All payloads from here on belong to ``step`` and have ``rows`` rows. Per-step preparation happens here."""
        ...

    def send(self, layer: int, hidden: Tensor, token_ids: Tensor | None) -> None:
        """Send contiguous rows; they may be reused on return."""
        ...

    def receive(self, layer: int, out: Tensor | None) -> Tensor:
        """The next reply: copied to ``out``, or a view valid until the next send or receive on this lane."""
        ...


class FFNLane(Protocol):
    """One ubatch of an FFN rank, for all Attention ranks it serves."""

    def begin(self, steps: Sequence[int], counts: Sequence[int]) -> None:
        """What comes next has ``counts[i]`` rows of step ``steps[i]`` from the i-th Attention rank this end serves."""
        ...

    def receive(self, layer: int) -> tuple[Tensor, Tensor | None]:
        """Rows of all ranks in rank order, [sum(counts), hidden], and their ids; valid until :meth:`reply`."""
        ...

    def reply(self, layer: int, out: Tensor) -> None:
        """Send each rank its rows of ``out`` (contiguous) and give up what :meth:`receive` returned."""
        ...


class End(Protocol):
    """What both roles' ends have in common."""

    @property
    def offer(self) -> Any:
        """JSON-able description for the peers."""
        ...

    def connect(self, offers: Mapping[str, Any]) -> None: ...

    def confirm(self) -> None: ...

    def close(self) -> None:
        """Wake all waiters with :class:`afd.errors.ClosedError` and give everything back. Twice is fine."""
        ...


class AttentionEnd(End, Protocol):
    @property
    def lanes(self) -> Sequence[AttentionLane]: ...


class FFNEnd(End, Protocol):
    @property
    def lanes(self) -> Sequence[FFNLane]: ...


class Transport(Protocol):
    """A way to move rows. ``uneven``: ranks without rows stay out of a transfer (else all take part, padded)."""

    @property
    def name(self) -> str: ...

    @property
    def uneven(self) -> bool: ...

    def attention(self, spec: ConnectorSpec) -> AttentionEnd: ...

    def ffn(self, spec: ConnectorSpec) -> FFNEnd: ...


def establish(end: End, exchange: Exchange) -> None:
    """Run the two exchanges that connect ``end`` to its peers. On any error the end is closed."""
    try:
        end.connect(exchange("endpoints", end.offer))
        exchange("opened", True)
        end.confirm()
    except BaseException:
        end.close()
        raise
