# SPDX-License-Identifier: Apache-2.0
"""Both ends of a segment or of a link inside the test's own process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from afd.connectors.base import ConnectorSpec
from afd.connectors.camp2p import CAMP2pAFDConnector, CAMP2pAttentionLink, CAMP2pFFNLink
from afd.connectors.shm import helper
from afd.connectors.shm.cring import CKit
from afd.connectors.shm.layout import Geometry
from afd.connectors.shm.pyring import Futex, PyKit
from afd.connectors.shm.rings import Bells, Kit, Ring, to_ffn
from afd.connectors.shm.segment import Segment
from afd.connectors.shm.transport import ShmTransport
from afd.control.abort import Abort
from afd.topology import Rank, Topology

EPOCH = "feedfacecafe0123"


def kit(name: str, slice_s: float = 30.0) -> Kit:
    """A kit whose waits sleep so long that a lost wake-up fails the test."""
    if name == "python":
        return PyKit(Futex(slice_s=slice_s))
    if name == "polling":
        return PyKit(Futex(machine="without a futex", slice_s=slice_s))
    library = helper.load()
    assert library is not None, "these tests need a C compiler"
    return CKit(library, slice_s)


@dataclass
class Ends:
    """One ring Attention → FFN with both of its ends, and the bells of both sides."""

    writer: Ring
    reader: Ring
    attention: Bells
    ffn: Bells
    geometry: Geometry
    segment: Segment


MakeEnds = Callable[..., Ends]


@pytest.fixture
def ends(tmp_path: Path) -> MakeEnds:
    def make(
        writer: str,
        reader: str,
        *,
        slice_s: float = 30.0,
        poison: bool = False,
        spin_us: int = 0,
        start: int = 0,
    ) -> Ends:
        geometry = Geometry(epoch=7, max_rows=4, row_bytes=8, id_bytes=4)
        segment = Segment.create(tmp_path / "ring", geometry.size, "the test")
        segment.unlink()
        attention, ffn = to_ffn(geometry, True), to_ffn(geometry, False)
        for counter in (attention.head, attention.tail):
            segment.words[counter // 4] = start
        return Ends(
            kit(writer, slice_s).ring(segment, attention, geometry, ubatch=1, ids=True, spin_us=spin_us),
            kit(reader, slice_s).ring(
                segment, ffn, geometry, ubatch=1, ids=True, spin_us=spin_us, poison=poison
            ),
            kit(writer).bells(segment, attention),
            kit(reader).bells(segment, ffn),
            geometry,
            segment,
        )

    return make


class Hub:
    """The control plane's exchange between threads of one process."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._changed = threading.Condition()
        self._values: dict[str, dict[str, Any]] = {}

    def of(self, rank: Rank) -> Callable[[str, Any], Mapping[str, Any]]:
        def exchange(key: str, value: Any, /) -> Mapping[str, Any]:
            with self._changed:
                values = self._values.setdefault(key, {})
                values[str(rank)] = value
                self._changed.notify_all()
                if not self._changed.wait_for(lambda: len(values) == self._ranks, 5):
                    raise TimeoutError(f"{rank} is alone with {key}")
                return values

        return exchange


def spec(rank: str, **changes: Any) -> ConnectorSpec:
    values: dict[str, Any] = {
        "epoch": EPOCH,
        "topology": Topology(1, 1),
        "rank": Rank.parse(rank),
        "hidden_size": 8,
        "dtype": torch.float32,
        "max_tokens": 16,
        "layers": (0, 1, 2),
        "abort": Abort(),
        "step_s": 5.0,
        "poison": True,
    }
    return ConnectorSpec(**(values | changes))


MakeLinks = Callable[..., tuple[CAMP2pAttentionLink, CAMP2pFFNLink]]


@pytest.fixture
def links(tmp_path: Path) -> Any:
    """Makes a connected pair of links of A0 and F0."""
    opened: list[CAMP2pAttentionLink | CAMP2pFFNLink] = []

    def make(helper: Any = "auto", **changes: Any) -> tuple[CAMP2pAttentionLink, CAMP2pFFNLink]:
        hub = Hub(2)
        connector = CAMP2pAFDConnector(ShmTransport(helper, tmp_path))
        ffn: list[CAMP2pFFNLink] = []
        f0, a0 = spec("F0", **changes), spec("A0", **changes)
        other = threading.Thread(target=lambda: ffn.append(connector.open_ffn(f0, hub.of(f0.rank))))
        other.start()
        attention = connector.open_attention(a0, hub.of(a0.rank))
        other.join()
        opened.extend((attention, ffn[0]))
        return attention, ffn[0]

    yield make
    for link in opened:
        link.close("the test has ended")
