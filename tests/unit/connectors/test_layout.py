# SPDX-License-Identifier: Apache-2.0
"""The bytes of a segment fit together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd.connectors.payload import HEADER_BYTES, Header, epoch_hash
from afd.connectors.shm import layout
from afd.connectors.shm.layout import Geometry
from afd.errors import MisuseError

geometries = st.builds(
    Geometry,
    epoch=st.integers(0, 2**64 - 1),
    max_rows=st.integers(1, 5000),
    row_bytes=st.integers(1, 20000),
    id_bytes=st.sampled_from([0, 4, 8]),
    cells=st.sampled_from([1, 2, 4]),
)


@given(geometries)
def test_nothing_in_a_segment_overlaps_and_everything_is_aligned(geometry: Geometry) -> None:
    assert HEADER_BYTES <= layout.HIDDEN_AT
    assert geometry.ids_at >= layout.HIDDEN_AT + geometry.max_rows * geometry.row_bytes
    assert geometry.stride >= geometry.ids_at + geometry.max_rows * geometry.id_bytes
    assert geometry.to_attention == geometry.to_ffn + geometry.cells * geometry.stride
    assert geometry.size == geometry.to_attention + geometry.cells * geometry.stride
    assert (
        layout.HIDDEN_AT % 64 == geometry.ids_at % 64 == geometry.stride % 4096 == geometry.to_ffn % 4096 == 0
    )


@given(geometries)
def test_a_preamble_says_its_geometry(geometry: Geometry) -> None:
    preamble = geometry.preamble()
    assert len(preamble) == layout.PREAMBLE_BYTES <= layout.ATTENTION_SIDE
    assert Geometry.parse(preamble) == geometry


def test_a_foreign_or_older_segment_is_no_geometry() -> None:
    preamble = Geometry(epoch=1, max_rows=1, row_bytes=4, id_bytes=0).preamble()
    assert Geometry.parse(b"\0" * len(preamble)) is None
    assert Geometry.parse(preamble[:8] + b"\xff" + preamble[9:]) is None


def test_a_header_reads_back_as_written() -> None:
    header = Header(2**64 - 1, 2**63, -1, 1, 2**32 - 1, 1)
    buffer = memoryview(bytearray(100))
    header.pack_into(buffer, 8)
    assert Header.unpack_from(buffer, 8) == header


def test_different_epochs_have_different_hashes() -> None:
    assert len({epoch_hash(f"epoch {number}") for number in range(1000)}) == 1000


@pytest.mark.parametrize("cells", [-2, 0, 3, 6])
def test_a_number_of_cells_that_does_not_divide_the_range_of_the_counters_is_refused(cells: int) -> None:
    with pytest.raises(MisuseError, match=f"^{cells} cells in a ring: it must be a power of two$"):
        Geometry(epoch=1, max_rows=1, row_bytes=1, id_bytes=0, cells=cells)
