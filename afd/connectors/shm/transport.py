# SPDX-License-Identifier: Apache-2.0
"""Ends and lanes over shared-memory rings.

The FFN end creates one segment per Attention rank it serves and ubatch, offers their names, and removes the names
once all Attention ranks have mapped them: from then on nothing is in ``/dev/shm``, however the processes end. What a
process that was killed before that leaves, its agent removes with :func:`afd.connectors.shm.segment.sweep`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from afd.connectors.base import ConnectorSpec
from afd.connectors.payload import Header, epoch_hash
from afd.connectors.shm import helper, layout, rings
from afd.connectors.shm.cring import CKit
from afd.connectors.shm.layout import Geometry
from afd.connectors.shm.pyring import PyKit
from afd.connectors.shm.rings import Bells, Kit, Ring
from afd.connectors.shm.segment import DIRECTORY, Segment, check_room, segment_name
from afd.connectors.waits import HEADER, Patience
from afd.errors import ConfigError, MisuseError, ResourceError
from afd.topology import Rank, Role

Helper = Literal["auto", "c", "python"]


def geometry_of(spec: ConnectorSpec) -> Geometry:
    """The sizes of every segment of a run. Both roles derive them from agreed values."""
    return Geometry(
        epoch=epoch_hash(spec.epoch),
        max_rows=spec.max_tokens,
        row_bytes=spec.hidden_size * spec.dtype.itemsize,
        id_bytes=spec.ids_dtype.itemsize if spec.ids else 0,
    )


def _cell_views(segment: Segment, spec: ConnectorSpec, geometry: Geometry, first: int) -> list[Tensor]:
    """The hidden states [max_rows, hidden] of each cell of the ring that starts at ``first``."""
    return [
        torch.frombuffer(
            segment.buffer,
            dtype=spec.dtype,
            count=geometry.max_rows * spec.hidden_size,
            offset=first + cell * geometry.stride + layout.HIDDEN_AT,
        ).view(geometry.max_rows, spec.hidden_size)
        for cell in range(geometry.cells)
    ]


def _id_views(segment: Segment, spec: ConnectorSpec, geometry: Geometry) -> list[Tensor]:
    """The token ids [max_rows] of each cell of the ring Attention → FFN."""
    return [
        torch.frombuffer(
            segment.buffer,
            dtype=spec.ids_dtype,
            count=geometry.max_rows,
            offset=geometry.to_ffn + cell * geometry.stride + geometry.ids_at,
        )
        for cell in range(geometry.cells)
    ]


def _require_cpu(tensor: Tensor) -> None:
    if not tensor.is_cpu:
        raise MisuseError(f"transport shm moves CPU tensors, not those of {tensor.device}")


class ShmAttentionLane:
    """One ubatch of an Attention rank: a segment shared with its FFN rank."""

    def __init__(self, spec: ConnectorSpec, ubatch: int, peer: Rank, kit: Kit, segment: Segment) -> None:
        geometry = geometry_of(spec)
        self._epoch, self._ubatch = geometry.epoch, ubatch
        make = partial(
            kit.ring, segment, geometry=geometry, ubatch=ubatch, spin_us=spec.spin_us, poison=spec.poison
        )
        self._to_ffn: Ring = make(ends=rings.to_ffn(geometry, attention=True), ids=spec.ids)
        self._to_attention: Ring = make(ends=rings.to_attention(geometry, attention=True), ids=False)
        self._cells = _cell_views(segment, spec, geometry, geometry.to_attention)
        self._views = self._cells
        self._patience = Patience(spec, peer, ubatch)
        self._step = self._rows = 0
        self._held = False

    def begin(self, step: int, rows: int) -> None:
        self._step, self._rows = step, rows
        self._views = [cell[:rows] for cell in self._cells]

    def send(self, layer: int, hidden: Tensor, token_ids: Tensor | None) -> None:
        _require_cpu(hidden)
        ids = 0 if token_ids is None else token_ids.data_ptr()
        arguments = (self._step, layer, self._rows, hidden.data_ptr(), ids)
        code = self._to_ffn.send(*arguments)
        if code:
            self._patience.persist(
                code, partial(self._to_ffn.send, *arguments), "sending to", self._step, layer
            )
        self._give_back()  # after the copy: ``hidden`` may be the view that is given back

    def receive(self, layer: int, out: Tensor | None) -> Tensor:
        self._give_back()
        if out is None:
            self._await(layer, partial(self._to_attention.peek, self._step, layer, self._rows))
            self._held = True
            return self._views[self._to_attention.cell]
        _require_cpu(out)
        address = out.data_ptr()
        self._await(layer, partial(self._to_attention.take, self._step, layer, self._rows, address, 0))
        return out

    def _await(self, layer: int, call: Callable[[], int]) -> None:
        code = call()
        if code and self._patience.persist(code, call, "receiving from", self._step, layer) == HEADER:
            expected = Header(self._epoch, self._step, layer, self._ubatch, self._rows, 0)
            raise self._patience.mismatch(expected, self._to_attention.header())

    def _give_back(self) -> None:
        """End the life of the view that the last receive returned."""
        if self._held:
            self._held = False
            self._to_attention.release()


class _Source:
    """What an FFN lane has for one Attention rank."""

    def __init__(self, spec: ConnectorSpec, ubatch: int, peer: Rank, kit: Kit, segment: Segment) -> None:
        geometry = geometry_of(spec)
        make = partial(
            kit.ring, segment, geometry=geometry, ubatch=ubatch, spin_us=spec.spin_us, poison=spec.poison
        )
        self.to_ffn: Ring = make(ends=rings.to_ffn(geometry, attention=False), ids=spec.ids)
        self.to_attention: Ring = make(ends=rings.to_attention(geometry, attention=False), ids=False)
        self.cells = _cell_views(segment, spec, geometry, geometry.to_ffn)
        self.ids = _id_views(segment, spec, geometry) if spec.ids else None
        self.patience = Patience(spec, peer, ubatch)
        self.step = self.start = self.rows = 0


class ShmFFNLane:
    """One ubatch of an FFN rank: a segment shared with each Attention rank it serves.

    When one rank has rows, they are handed out in place. When several have, they are copied behind each other into a
    buffer that was allocated once.
    """

    def __init__(self, spec: ConnectorSpec, ubatch: int, sources: Sequence[_Source]) -> None:
        self._epoch, self._ubatch, self._ids = epoch_hash(spec.epoch), ubatch, spec.ids
        self._row_bytes = spec.hidden_size * spec.dtype.itemsize
        self._id_bytes = spec.ids_dtype.itemsize
        self._sources = sources
        self._live: list[_Source] = []
        rows = spec.max_tokens * len(sources) if len(sources) > 1 else 0
        self._buffer = torch.empty(rows, spec.hidden_size, dtype=spec.dtype)
        self._id_buffer = torch.empty(rows, dtype=spec.ids_dtype) if spec.ids else None
        self._views: list[tuple[Tensor, Tensor | None]] = []

    def begin(self, steps: Sequence[int], counts: Sequence[int]) -> None:
        start = 0
        for source, step, rows in zip(self._sources, steps, counts, strict=True):
            source.step, source.start, source.rows = step, start, rows
            start += rows
        self._live = [source for source in self._sources if source.rows]
        if len(self._live) == 1:
            only = self._live[0]
            ids: Sequence[Tensor | None] = only.ids or [None] * len(only.cells)
            self._views = [
                (cell[: only.rows], None if own is None else own[: only.rows])
                for cell, own in zip(only.cells, ids, strict=True)
            ]
        else:
            self._views = [
                (self._buffer[:start], None if self._id_buffer is None else self._id_buffer[:start])
            ]

    def receive(self, layer: int) -> tuple[Tensor, Tensor | None]:
        if len(self._live) == 1:
            only = self._live[0]
            self._await(only, layer, partial(only.to_ffn.peek, only.step, layer, only.rows))
            return self._views[only.to_ffn.cell]
        base = self._buffer.data_ptr()
        id_base = 0 if self._id_buffer is None else self._id_buffer.data_ptr()
        for source in self._live:
            hidden, ids = base + source.start * self._row_bytes, id_base + source.start * self._id_bytes
            self._await(
                source, layer, partial(source.to_ffn.take, source.step, layer, source.rows, hidden, ids)
            )
        return self._views[0]

    def _await(self, source: _Source, layer: int, call: Callable[[], int]) -> None:
        code = call()
        if code and source.patience.persist(code, call, "receiving from", source.step, layer) == HEADER:
            expected = Header(self._epoch, source.step, layer, self._ubatch, source.rows, int(self._ids))
            raise source.patience.mismatch(expected, source.to_ffn.header())

    def reply(self, layer: int, out: Tensor) -> None:
        _require_cpu(out)
        base = out.data_ptr()
        for source in self._live:
            arguments = (source.step, layer, source.rows, base + source.start * self._row_bytes, 0)
            code = source.to_attention.send(*arguments)
            if code:
                again = partial(source.to_attention.send, *arguments)
                source.patience.persist(code, again, "replying to", source.step, layer)
        if len(self._live) == 1:  # after the copy: ``out`` may be what was received, changed in place
            self._live[0].to_ffn.release()


class _ShmEnd:
    """What both ends share: segments, and the bells that wake their waiters."""

    def __init__(self, spec: ConnectorSpec) -> None:
        self._spec = spec
        self._segments: list[Segment] = []
        self._bells: list[Bells] = []
        self._unsubscribe: list[Callable[[], None]] = []
        self._named = False

    def _add(self, kit: Kit, segment: Segment) -> None:
        attention = self._spec.rank.role is Role.ATTENTION
        bells = kit.bells(segment, rings.to_ffn(geometry_of(self._spec), attention))
        self._segments.append(segment)
        self._bells.append(bells)
        self._unsubscribe.append(self._spec.abort.subscribe(bells.abort))

    def _unlink(self) -> None:
        if self._named:
            self._named = False
            for segment in self._segments:
                segment.unlink()

    def close(self) -> None:
        self._unlink()
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        for bells in self._bells:
            bells.close()
        # A thread that waits holds its ring, and the ring its segment, until the bell has brought it back.
        self._unsubscribe, self._bells, self._segments = [], [], []


class ShmFFNEnd(_ShmEnd):
    def __init__(self, spec: ConnectorSpec, kit: Kit, directory: Path) -> None:
        super().__init__(spec)
        topology, geometry = spec.topology, geometry_of(spec)
        attention = topology.attention_of(spec.rank.index)
        self._names: dict[str, list[str]] = {}
        self._lanes: list[ShmFFNLane] = []
        number = len(attention) * spec.num_ubatches
        what = f"{spec.rank}: {number} x {spec.max_tokens} rows of {spec.hidden_size} {spec.dtype} both ways"
        check_room(number * geometry.size, what, directory)
        self._named = True
        try:
            for ubatch in range(spec.num_ubatches):
                sources = []
                for index in attention:
                    peer = Rank(Role.ATTENTION, index)
                    name = segment_name(spec.epoch, topology.pair_key(index, spec.rank.index, ubatch))
                    segment = Segment.create(directory / name, geometry.size, what)
                    self._add(kit, segment)
                    preamble = geometry.preamble()
                    segment.bytes[: len(preamble)] = preamble
                    self._names.setdefault(str(peer), []).append(name)
                    sources.append(_Source(spec, ubatch, peer, kit, segment))
                self._lanes.append(ShmFFNLane(spec, ubatch, sources))
        except BaseException:
            self.close()
            raise

    @property
    def offer(self) -> Any:
        return {"transport": "shm", "segments": self._names}

    @property
    def lanes(self) -> Sequence[ShmFFNLane]:
        return self._lanes

    def connect(self, offers: Mapping[str, Any]) -> None:
        """The Attention side maps; nothing to do here."""

    def confirm(self) -> None:
        self._unlink()

    def close(self) -> None:
        super().close()
        self._lanes = []


class ShmAttentionEnd(_ShmEnd):
    def __init__(self, spec: ConnectorSpec, kit: Kit, directory: Path) -> None:
        super().__init__(spec)
        self._kit = kit
        self._directory = directory
        self._lanes: list[ShmAttentionLane] = []

    @property
    def offer(self) -> Any:
        return None

    @property
    def lanes(self) -> Sequence[ShmAttentionLane]:
        return self._lanes

    def connect(self, offers: Mapping[str, Any]) -> None:
        spec = self._spec
        peer = Rank(Role.FFN, spec.topology.ffn_of(spec.rank.index))
        names = _names_in(offers, peer, spec)
        for ubatch, name in enumerate(names):
            segment = self._open(self._directory / name, peer)
            self._add(self._kit, segment)
            self._lanes.append(ShmAttentionLane(spec, ubatch, peer, self._kit, segment))

    def _open(self, path: Path, peer: Rank) -> Segment:
        try:
            segment = Segment.open(path)
        except FileNotFoundError as error:
            raise ConfigError(
                f"{self._spec.rank} does not find shared memory {path} of {peer}: transport shm needs both roles on "
                "one host with the same /dev/shm (containers: --ipc=host, or one pod)"
            ) from error
        found = Geometry.parse(bytes(segment.bytes[: layout.PREAMBLE_BYTES]))
        expected = geometry_of(self._spec)
        if found != expected or segment.size != expected.size:
            raise MisuseError(f"{self._spec.rank} expected {expected} in {path} of {peer}, found {found}")
        return segment

    def confirm(self) -> None:
        """The FFN side removes the names; nothing to do here."""

    def close(self) -> None:
        super().close()
        self._lanes = []


def _names_in(offers: Mapping[str, Any], peer: Rank, spec: ConnectorSpec) -> list[str]:
    """The names of this rank's segments, one per ubatch, in what ``peer`` offered."""
    offer = offers.get(str(peer))
    names = None
    if isinstance(offer, Mapping) and offer.get("transport") == "shm":
        segments = offer.get("segments")
        names = segments.get(str(spec.rank)) if isinstance(segments, Mapping) else None
    prefix = segment_name(spec.epoch, "")
    if (
        not isinstance(names, (list, tuple))
        or len(names) != spec.num_ubatches
        or not all(isinstance(name, str) and name.startswith(prefix) and "/" not in name for name in names)
    ):
        raise MisuseError(
            f"{spec.rank} needs {spec.num_ubatches} segments of this epoch from {peer}, got {offer!r}"
        )
    return list(names)


class ShmTransport:
    """Shared memory between processes of one host. Ranks without rows stay out of a transfer.

    ``helper`` chooses the ring: "c" (raises :class:`ResourceError` without a compiler), "python", or "auto": C when
    it can be had. Either side of a pair may use either.
    """

    name = "shm"
    uneven = True

    def __init__(self, helper: Helper = "auto", directory: Path = DIRECTORY) -> None:
        self._helper = helper
        self._directory = directory

    def attention(self, spec: ConnectorSpec) -> ShmAttentionEnd:
        return ShmAttentionEnd(spec, self._kit(), self._directory)

    def ffn(self, spec: ConnectorSpec) -> ShmFFNEnd:
        return ShmFFNEnd(spec, self._kit(), self._directory)

    def _kit(self) -> Kit:
        if self._helper == "python":
            return PyKit()
        library = helper.load()
        if library is not None:
            return CKit(library)
        if self._helper == "c":
            raise ResourceError(
                "the C helper of transport shm cannot be built: install a C compiler (the log says what failed)"
            )
        return PyKit()
