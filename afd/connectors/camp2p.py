# SPDX-License-Identifier: Apache-2.0
"""The synchronous connector: FFN rank j serves Attention ranks jr to jr+r-1, driven by announced steps.

For every layer, and inside it every ubatch, each Attention rank with rows sends them; its FFN rank takes the rows of
all its Attention ranks as one work and sends each its rows back. Counts come from the announcements alone; what
crosses is compared with them. Routing stays on FFN: only hidden states (in ids mode also token ids) cross.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from afd.connectors.base import (
    ConnectorSpec,
    Exchange,
    LinkCounters,
    Part,
    Routing,
    Slot,
    Work,
)
from afd.connectors.slicing import check_ids, split_rows
from afd.connectors.transport import (
    AttentionEnd,
    AttentionLane,
    FFNEnd,
    FFNLane,
    Transport,
    establish,
)
from afd.control.messages import Step
from afd.errors import ClosedError, MisuseError
from afd.topology import Rank, Role


class CAMP2pAFDConnector:
    """Makes the links of the synchronous connector over ``transport``."""

    name = "CAMP2pAFDConnector"

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def open_attention(self, spec: ConnectorSpec, exchange: Exchange) -> CAMP2pAttentionLink:
        """Connect an Attention rank to its FFN rank; returns when every rank of both roles is connected."""
        _check_spec(spec, Role.ATTENTION)
        end = self._transport.attention(spec)
        establish(end, exchange)
        return CAMP2pAttentionLink(spec, end, self._transport.uneven)

    def open_ffn(self, spec: ConnectorSpec, exchange: Exchange) -> CAMP2pFFNLink:
        """Connect an FFN rank to its Attention ranks; returns when every rank of both roles is connected."""
        _check_spec(spec, Role.FFN)
        end = self._transport.ffn(spec)
        establish(end, exchange)
        return CAMP2pFFNLink(spec, end)


def _check_spec(spec: ConnectorSpec, role: Role) -> None:
    if spec.rank.role is not role:
        raise MisuseError(f"{spec.rank} cannot open the {role} end of a link")
    if spec.num_ubatches < 1 or spec.max_tokens < 1 or spec.hidden_size < 1 or not spec.layers:
        raise MisuseError(f"{spec.rank}: ubatches, tokens, hidden size and layers must be at least 1: {spec}")
    if spec.ids_dtype not in (torch.int32, torch.int64):
        raise MisuseError(f"{spec.rank}: token ids cross as int32 or int64, not {spec.ids_dtype}")
    if spec.attention_tp < 1 or spec.topology.num_attention % spec.attention_tp:
        raise MisuseError(
            f"{spec.rank}: {spec.topology} has no tensor-parallel groups of {spec.attention_tp}"
        )


def _rows_of(spec: ConnectorSpec, step: Step, attention: int, ubatch: int) -> int:
    """Rows that one Attention rank sends for ``ubatch`` in the step that its tensor-parallel group announced."""
    padded = step.padded[ubatch] if ubatch < len(step.padded) else 0
    start, stop = split_rows(padded, spec.attention_tp)[attention % spec.attention_tp]
    return stop - start


def _check_step(spec: ConnectorSpec, step: Step, attention: int) -> None:
    """Raise :class:`MisuseError` unless ``step`` is a step of this run for Attention rank ``attention``'s group."""
    leader = Rank(Role.ATTENTION, attention - attention % spec.attention_tp)
    for field, expected, found in (
        ("epoch", spec.epoch, step.epoch),
        ("rank", str(leader), step.rank),
        ("ids", spec.ids, step.ids),
    ):
        if expected != found:
            raise MisuseError(
                f"{spec.rank}: step {step.step} of A{attention}: {field} {expected} expected, {found} found"
            )
    if len(step.padded) > spec.num_ubatches:
        raise MisuseError(
            f"{spec.rank}: step {step.step} of {step.rank} has {len(step.padded)} ubatches; "
            f"this link has {spec.num_ubatches}"
        )
    for ubatch in range(len(step.padded)):
        rows = _rows_of(spec, step, attention, ubatch)
        if not 0 <= rows <= spec.max_tokens:
            raise MisuseError(
                f"{spec.rank}: step {step.step} of {step.rank} has {rows} rows for A{attention} in ubatch {ubatch}; "
                f"at most {spec.max_tokens} fit"
            )


def _check_rows(spec: ConnectorSpec, tensor: Tensor, rows: int, what: str) -> None:
    if tensor.shape != (rows, spec.hidden_size) or tensor.dtype is not spec.dtype:
        raise MisuseError(
            f"{spec.rank}: {what} must be ({rows}, {spec.hidden_size}) {spec.dtype}, "
            f"not {tuple(tensor.shape)} {tensor.dtype}"
        )


class _Lane:
    """The protocol state of one ubatch of an Attention link."""

    def __init__(self, lane: AttentionLane) -> None:
        self.lane = lane
        self.rows = 0
        self.begun = False
        self.sent: deque[int] = deque()
        self.counters = LinkCounters()


class CAMP2pAttentionLink:
    """See :class:`afd.connectors.base.AttentionLink`. Several sends of one ubatch may be out before their replies."""

    def __init__(self, spec: ConnectorSpec, end: AttentionEnd, uneven: bool) -> None:
        self._spec = spec
        self._end = end
        self._skip_empty = uneven
        self._layers = frozenset(spec.layers)
        self._lanes: Sequence[_Lane] = [_Lane(lane) for lane in end.lanes]
        self._counters = [lane.counters for lane in self._lanes]
        self._row_bytes = spec.hidden_size * spec.dtype.itemsize
        self._id_bytes = spec.ids_dtype.itemsize if spec.ids else 0
        self._reason: str | None = None

    @property
    def counters(self) -> LinkCounters:
        return _sum(self._counters)

    @property
    def closed(self) -> bool:
        return self._reason is not None

    def begin(self, step: Step) -> None:
        lanes = self._open_lanes()
        spec = self._spec
        spec.abort.check()
        _check_step(spec, step, spec.rank.index)
        for ubatch, lane in enumerate(lanes):
            if lane.sent:
                raise MisuseError(
                    f"{spec.rank}: step {step.step} begins before the replies to layers {list(lane.sent)} of ubatch "
                    f"{ubatch} were received"
                )
            lane.rows = _rows_of(spec, step, spec.rank.index, ubatch)
            lane.begun = True
            lane.lane.begin(step.step, lane.rows)

    def send(
        self, slot: Slot, hidden: Tensor, token_ids: Tensor | None = None, routing: Routing | None = None
    ) -> None:
        lane = self._lane(slot)
        spec = self._spec
        if routing is not None:
            raise MisuseError(f"{spec.rank}: {CAMP2pAFDConnector.name} routes on FFN; a routing cannot cross")
        if slot.layer not in self._layers:
            raise MisuseError(f"{spec.rank}: layer {slot.layer} has no remote FFN (those are {spec.layers})")
        rows = lane.rows
        _check_rows(spec, hidden, rows, "hidden states")
        check_ids(rows, token_ids, spec.ids)
        if token_ids is not None:
            if token_ids.dtype is not spec.ids_dtype:
                raise MisuseError(f"{spec.rank}: token ids cross as {spec.ids_dtype}, not {token_ids.dtype}")
            token_ids = token_ids.contiguous()
        if rows or not self._skip_empty:
            lane.lane.send(slot.layer, hidden.contiguous(), token_ids)
            lane.counters.sent += 1
            lane.counters.sent_bytes += rows * (self._row_bytes + self._id_bytes)
        lane.sent.append(slot.layer)

    def receive(self, slot: Slot, out: Tensor | None = None) -> Tensor:
        lane = self._lane(slot)
        spec = self._spec
        if not lane.sent or lane.sent[0] != slot.layer:
            raise MisuseError(
                f"{spec.rank}: no reply of layer {slot.layer}, ubatch {slot.ubatch} is next; "
                f"sent and not yet received: {list(lane.sent)}"
            )
        if out is not None:
            _check_rows(spec, out, lane.rows, "the tensor for a reply")
            if not out.is_contiguous():
                raise MisuseError(f"{spec.rank}: the tensor for a reply must be contiguous")
        if lane.rows or not self._skip_empty:
            started = time.monotonic()
            out = lane.lane.receive(slot.layer, out)
            lane.counters.wait_s += time.monotonic() - started
            lane.counters.received += 1
            lane.counters.received_bytes += lane.rows * self._row_bytes
        elif out is None:
            out = torch.empty(0, spec.hidden_size, dtype=spec.dtype)
        lane.sent.popleft()
        return out

    def close(self, reason: str) -> None:
        if self._reason is None:
            self._reason = reason
            self._lanes = ()
            self._end.close()

    def _open_lanes(self) -> Sequence[_Lane]:
        lanes = self._lanes
        if self._reason is not None:
            raise ClosedError(f"{self._spec.rank}: the link is closed ({self._reason})")
        return lanes

    def _lane(self, slot: Slot) -> _Lane:
        lanes = self._open_lanes()
        if not 0 <= slot.ubatch < len(lanes):
            raise MisuseError(f"{self._spec.rank}: no ubatch {slot.ubatch}; this link has {len(lanes)}")
        lane = lanes[slot.ubatch]
        if not lane.begun:
            raise MisuseError(f"{self._spec.rank}: begin() a step before sending or receiving")
        return lane


class CAMP2pFFNLink:
    """See :class:`afd.connectors.base.FFNLink`. Works come layer by layer, and inside a layer ubatch by ubatch."""

    def __init__(self, spec: ConnectorSpec, end: FFNEnd) -> None:
        self._spec = spec
        self._end = end
        self._lanes: Sequence[FFNLane] = end.lanes
        self._attention = spec.topology.attention_of(spec.rank.index)
        self._open: list[Work | None] = [None] * spec.num_ubatches
        self._counters = LinkCounters()
        self._row_bytes = spec.hidden_size * spec.dtype.itemsize
        self._id_bytes = spec.ids_dtype.itemsize if spec.ids else 0
        self._reason: str | None = None

    @property
    def counters(self) -> LinkCounters:
        return _sum([self._counters])

    @property
    def closed(self) -> bool:
        return self._reason is not None

    def works(self, steps: Mapping[Rank, Step]) -> Iterator[Work]:
        lanes = self._open_lanes()
        spec = self._spec
        spec.abort.check()
        own = [self._step_of(steps, index) for index in self._attention]
        # All FFN ranks run the largest count that any rank announced, so that their own collectives match.
        ubatches = max(len(step.padded) for step in steps.values())
        if ubatches > spec.num_ubatches:
            raise MisuseError(
                f"{spec.rank}: {ubatches} ubatches announced; this link has {spec.num_ubatches}"
            )
        parts = []
        for ubatch in range(ubatches):
            if self._open[ubatch] is not None:
                raise MisuseError(f"{spec.rank}: a step begins, but {self._open[ubatch]} was not replied to")
            counts = [
                _rows_of(spec, step, index, ubatch) for index, step in zip(self._attention, own, strict=True)
            ]
            lanes[ubatch].begin([step.step for step in own], counts)
            parts.append(_parts(self._attention, counts))
        return self._run(own[0].step, parts)

    def _run(self, step: int, parts: Sequence[tuple[Part, ...]]) -> Iterator[Work]:
        for layer in self._spec.layers:
            for ubatch, ubatch_parts in enumerate(parts):
                lanes = self._open_lanes()
                if self._open[ubatch] is not None:
                    raise MisuseError(f"{self._spec.rank}: {self._open[ubatch]} was not replied to")
                started = time.monotonic()
                hidden, token_ids = lanes[ubatch].receive(layer)
                self._counters.wait_s += time.monotonic() - started
                self._counters.received += 1
                self._counters.received_bytes += hidden.shape[0] * (self._row_bytes + self._id_bytes)
                work = Work(Slot(layer, ubatch), hidden, token_ids, None, ubatch_parts, step)
                self._open[ubatch] = work
                yield work

    def reply(self, work: Work, out: Tensor) -> None:
        lanes = self._open_lanes()
        layer, ubatch = work.slot
        if self._open[ubatch] is not work:
            raise MisuseError(
                f"{self._spec.rank}: layer {layer}, ubatch {ubatch} of step {work.step} does not wait for a reply"
            )
        _check_rows(self._spec, out, work.hidden.shape[0], "a reply")
        lanes[ubatch].reply(layer, out.contiguous())
        self._open[ubatch] = None
        self._counters.sent += 1
        self._counters.sent_bytes += out.shape[0] * self._row_bytes

    def close(self, reason: str) -> None:
        if self._reason is None:
            self._reason = reason
            self._lanes = ()
            self._open = [None] * len(self._open)
            self._end.close()

    def _open_lanes(self) -> Sequence[FFNLane]:
        lanes = self._lanes
        if self._reason is not None:
            raise ClosedError(f"{self._spec.rank}: the link is closed ({self._reason})")
        return lanes

    def _step_of(self, steps: Mapping[Rank, Step], attention: int) -> Step:
        leader = Rank(Role.ATTENTION, attention - attention % self._spec.attention_tp)
        step = steps.get(leader)
        if step is None:
            raise MisuseError(f"{self._spec.rank}: no step of {leader}; there are {sorted(map(str, steps))}")
        _check_step(self._spec, step, attention)
        return step


def _parts(attention: Sequence[int], counts: Sequence[int]) -> tuple[Part, ...]:
    parts, start = [], 0
    for index, rows in zip(attention, counts, strict=True):
        parts.append(Part(index, start, start + rows))
        start += rows
    return tuple(parts)


def _sum(counters: Sequence[LinkCounters]) -> LinkCounters:
    return LinkCounters(
        sent=sum(one.sent for one in counters),
        received=sum(one.received for one in counters),
        sent_bytes=sum(one.sent_bytes for one in counters),
        received_bytes=sum(one.received_bytes for one in counters),
        wait_s=sum(one.wait_s for one in counters),
    )
