# SPDX-License-Identifier: Apache-2.0
"""Ends and lanes over process groups.

For each ubatch an FFN rank and the Attention ranks it serves form one group: FFN is member 0. Each end
offers what its groups published (see ``meeting``) and connects when it has the offers of all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from afd.connectors.base import ConnectorSpec
from afd.connectors.collective.channel import Channel
from afd.connectors.collective.group import Group, open_device
from afd.connectors.collective.message import Message
from afd.errors import MisuseError
from afd.topology import Rank, Role

LOOPBACK = "127.0.0.1"


def _require_cpu(tensor: Tensor) -> None:
    if not tensor.is_cpu:
        raise MisuseError(f"transport collective over Gloo moves CPU tensors, not those of {tensor.device}")


class CollectiveAttentionLane:
    """One ubatch of an Attention rank."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._step = self._rows = 0
        self._held = False

    def begin(self, step: int, rows: int) -> None:
        self._step, self._rows = step, rows
        self._channel.begin(rows)

    def send(self, layer: int, hidden: Tensor, token_ids: Tensor | None) -> None:
        _require_cpu(hidden)
        self._channel.send(self._step, layer, self._rows, hidden, token_ids, "sending to")
        self._give_back()  # after the copy: ``hidden`` may be the view that is given back

    def receive(self, layer: int, out: Tensor | None) -> Tensor:
        self._give_back()
        message = self._channel.receive(self._step, layer, self._rows, "receiving from")
        if out is None:
            self._held = True
            return message.hidden
        out.copy_(message.hidden)
        self._channel.release()
        return out

    def _give_back(self) -> None:
        """End the life of the view that the last receive returned."""
        if self._held:
            self._held = False
            self._channel.release()


class _Source:
    """What an FFN lane has for one Attention rank."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.step = self.start = self.rows = 0


class CollectiveFFNLane:
    """One ubatch of an FFN rank.

    When one rank has rows, they are handed out in place. When several have, they are copied behind each other into a
    buffer that was allocated once.
    """

    def __init__(self, spec: ConnectorSpec, channels: Sequence[Channel]) -> None:
        self._sources = [_Source(channel) for channel in channels]
        self._live: list[_Source] = []
        rows = spec.max_tokens * len(channels) if len(channels) > 1 else 0
        self._buffer = torch.empty(rows, spec.hidden_size, dtype=spec.dtype)
        self._id_buffer = torch.empty(rows, dtype=spec.ids_dtype) if spec.ids else None
        self._rows = 0

    def begin(self, steps: Sequence[int], counts: Sequence[int]) -> None:
        start = 0
        for source, step, rows in zip(self._sources, steps, counts, strict=True):
            source.step, source.start, source.rows = step, start, rows
            source.channel.begin(rows)
            start += rows
        self._rows = start
        self._live = [source for source in self._sources if source.rows]

    def receive(self, layer: int) -> tuple[Tensor, Tensor | None]:
        if len(self._live) == 1:
            only = self._live[0]
            message = self._take(only, layer)
            return message.hidden, message.ids
        for source in self._live:
            message = self._take(source, layer)
            own = slice(source.start, source.start + source.rows)
            self._buffer[own] = message.hidden
            if self._id_buffer is not None and message.ids is not None:
                self._id_buffer[own] = message.ids
            source.channel.release()
        ids = None if self._id_buffer is None else self._id_buffer[: self._rows]
        return self._buffer[: self._rows], ids

    def _take(self, source: _Source, layer: int) -> Message:
        return source.channel.receive(source.step, layer, source.rows, "receiving from")

    def reply(self, layer: int, out: Tensor) -> None:
        _require_cpu(out)
        for source in self._live:
            rows = out[source.start : source.start + source.rows]
            source.channel.send(source.step, layer, source.rows, rows, None, "replying to")
        if len(self._live) == 1:  # after the copy: ``out`` may be what was received, changed in place
            self._live[0].channel.release()


class _CollectiveEnd(ABC):
    """What both ends share: one group for each ubatch."""

    def __init__(self, spec: ConnectorSpec, host: str) -> None:
        self._spec = spec
        topology = spec.topology
        ffn = spec.rank.index if spec.rank.role is Role.FFN else topology.ffn_of(spec.rank.index)
        self._members = (
            Rank(Role.FFN, ffn),
            *(Rank(Role.ATTENTION, index) for index in topology.attention_of(ffn)),
        )
        self._groups: list[Group] = []
        self._unsubscribe: list[Callable[[], None]] = []
        self._published: list[dict[str, str]] = []
        device = open_device(host)
        place, size = self._members.index(spec.rank), len(self._members)
        try:
            for _ in range(spec.num_ubatches):
                group = Group(device, place, size)
                self._groups.append(group)
                self._unsubscribe.append(spec.abort.subscribe(group.wake))
            for group in self._groups:
                self._published.append({key: value.hex() for key, value in group.published().items()})
        except BaseException:
            self.close()
            raise

    @property
    def offer(self) -> Any:
        return {"transport": "collective", "epoch": self._spec.epoch, "groups": self._published}

    def connect(self, offers: Mapping[str, Any]) -> None:
        others = [rank for rank in self._members if rank != self._spec.rank]
        for rank in others:
            for group, values in zip(self._groups, self._groups_in(offers, rank), strict=True):
                group.bring({key: bytes.fromhex(value) for key, value in values.items()})
        who = ", ".join(str(rank) for rank in others)
        for ubatch, group in enumerate(self._groups):
            group.join(self._spec.abort, f"{self._spec.rank}: {who}")
            self._add_lane(
                [
                    Channel(self._spec, ubatch, rank, group, self._members.index(rank))
                    for rank in self._peers()
                ]
            )

    def _peers(self) -> Sequence[Rank]:
        """The members that this rank exchanges rows with."""
        return self._members[1:] if self._spec.rank.role is Role.FFN else self._members[:1]

    @abstractmethod
    def _add_lane(self, channels: Sequence[Channel]) -> None:
        """The group of the next ubatch is connected: ``channels`` are this rank's paths in it."""

    def _groups_in(self, offers: Mapping[str, Any], rank: Rank) -> Sequence[Mapping[str, str]]:
        """What ``rank`` published, one map for each ubatch."""
        offer = offers.get(str(rank))
        groups = offer.get("groups") if isinstance(offer, Mapping) else None
        if (
            not isinstance(offer, Mapping)
            or (offer.get("transport"), offer.get("epoch")) != ("collective", self._spec.epoch)
            or not isinstance(groups, (list, tuple))
            or len(groups) != self._spec.num_ubatches
        ):
            raise MisuseError(
                f"{self._spec.rank} needs {self._spec.num_ubatches} groups of epoch {self._spec.epoch} from {rank}, "
                f"got {offer!r}"
            )
        return groups

    def confirm(self) -> None:  # noqa: B027 (most of the seam, but not this part, has something to do here)
        """Groups are connected from both sides already; nothing to do here."""

    def close(self) -> None:
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        for group in self._groups:
            group.close()
        # A thread that waits holds its channel, and the channel its group, until the wait has failed.
        self._unsubscribe, self._groups = [], []


class CollectiveAttentionEnd(_CollectiveEnd):
    def __init__(self, spec: ConnectorSpec, host: str) -> None:
        self._lanes: list[CollectiveAttentionLane] = []
        super().__init__(spec, host)

    @property
    def lanes(self) -> Sequence[CollectiveAttentionLane]:
        return self._lanes

    def _add_lane(self, channels: Sequence[Channel]) -> None:
        self._lanes.append(CollectiveAttentionLane(channels[0]))

    def close(self) -> None:
        super().close()
        self._lanes = []


class CollectiveFFNEnd(_CollectiveEnd):
    def __init__(self, spec: ConnectorSpec, host: str) -> None:
        self._lanes: list[CollectiveFFNLane] = []
        super().__init__(spec, host)

    @property
    def lanes(self) -> Sequence[CollectiveFFNLane]:
        return self._lanes

    def _add_lane(self, channels: Sequence[Channel]) -> None:
        self._lanes.append(CollectiveFFNLane(self._spec, channels))

    def close(self) -> None:
        super().close()
        self._lanes = []


class CollectiveTransport:
    """Sends and receives of torch.distributed (Gloo). Ranks without rows stay out of a transfer.

    ``host`` is the address of this machine at which the peers reach this rank.
    """

    name = "collective"
    uneven = True

    def __init__(self, host: str = LOOPBACK) -> None:
        self._host = host

    def attention(self, spec: ConnectorSpec) -> CollectiveAttentionEnd:
        return CollectiveAttentionEnd(spec, self._host)

    def ffn(self, spec: ConnectorSpec) -> CollectiveFFNEnd:
        return CollectiveFFNEnd(spec, self._host)
