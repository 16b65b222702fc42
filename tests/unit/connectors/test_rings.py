# SPDX-License-Identifier: Apache-2.0
"""A ring keeps order, room and headers, and loses no wake-up, with either implementation on either side."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable

import pytest

from afd.connectors.payload import Header
from afd.connectors.shm import layout
from afd.connectors.shm.pyring import Futex, problem
from afd.connectors.shm.rings import Ring, spin_us
from afd.connectors.waits import ABORTED, AGAIN, CLOSED, HEADER, OK, PEER_CLOSED
from tests.unit.connectors.conftest import MakeEnds

PAIRS = [("c", "c"), ("python", "python"), ("c", "python"), ("python", "c")]
IMPLEMENTATIONS = ["c", "python", "polling"]
both = pytest.mark.parametrize(("writer", "reader"), PAIRS)
each = pytest.mark.parametrize("name", IMPLEMENTATIONS)


class Rows:
    """Room for 4 rows of 8 bytes and their ids, with addresses."""

    def __init__(self, value: int = 0) -> None:
        self.hidden = (ctypes.c_int64 * 4)(*[value + row for row in range(4)])
        self.ids = (ctypes.c_int32 * 4)(*[value + row for row in range(4)])

    @property
    def at(self) -> tuple[int, int]:
        return ctypes.addressof(self.hidden), ctypes.addressof(self.ids)


def send(ring: Ring, value: int, *, step: int = 1, layer: int = 2, rows: int = 3) -> int:
    source = Rows(value)
    return ring.send(step, layer, rows, *source.at)


def take(ring: Ring, *, step: int = 1, layer: int = 2, rows: int = 3) -> tuple[int, list[int], list[int]]:
    into = Rows(-9)
    code = ring.take(step, layer, rows, *into.at)
    return code, list(into.hidden), list(into.ids)


@both
def test_payloads_come_out_as_they_went_in(ends: MakeEnds, writer: str, reader: str) -> None:
    pair = ends(writer, reader)
    for value in range(0, 50, 10):
        assert send(pair.writer, value) == OK
        assert take(pair.reader) == (
            OK,
            [value, value + 1, value + 2, -6],
            [value, value + 1, value + 2, -6],
        )


@both
def test_a_full_ring_makes_its_writer_wait_and_keeps_what_it_holds(
    ends: MakeEnds, writer: str, reader: str
) -> None:
    pair = ends(writer, reader, slice_s=0.02)
    assert send(pair.writer, 10) == OK
    assert send(pair.writer, 20) == OK
    assert send(pair.writer, 30) == AGAIN
    assert take(pair.reader)[1][0] == 10
    assert send(pair.writer, 30) == OK
    assert take(pair.reader)[1][0] == 20
    assert take(pair.reader)[1][0] == 30
    assert take(pair.reader)[0] == AGAIN


@both
def test_counters_may_wrap_around(ends: MakeEnds, writer: str, reader: str) -> None:
    pair = ends(writer, reader, start=0xFFFFFFFD)
    for value in range(8):
        assert send(pair.writer, value) == OK
        if value:
            assert take(pair.reader)[1][0] == value - 1


@both
def test_a_payload_read_in_place_stays_until_it_is_released(ends: MakeEnds, writer: str, reader: str) -> None:
    pair = ends(writer, reader, slice_s=0.02)
    for value in (10, 20):
        send(pair.writer, value)
    at = pair.geometry.to_ffn + pair.reader.cell * pair.geometry.stride + layout.HIDDEN_AT
    assert pair.reader.peek(1, 2, 3) == OK
    assert send(pair.writer, 30) == AGAIN
    assert pair.segment.bytes[at] == 10
    pair.reader.release()
    assert send(pair.writer, 30) == OK
    assert pair.segment.bytes[at] == 30


@pytest.mark.parametrize("reader", ["c", "python"])
def test_a_poisoned_cell_holds_nothing_that_looks_like_data(ends: MakeEnds, reader: str) -> None:
    pair = ends("c", reader, poison=True)
    send(pair.writer, 10)
    at = pair.geometry.to_ffn + pair.reader.cell * pair.geometry.stride
    assert take(pair.reader)[0] == OK
    cell = bytes(pair.segment.bytes[at + layout.HIDDEN_AT : at + pair.geometry.stride])
    assert cell == b"\xff" * len(cell)


@both
@pytest.mark.parametrize("field", Header._fields)
def test_a_difference_in_any_header_field_is_found(
    ends: MakeEnds, writer: str, reader: str, field: str
) -> None:
    pair = ends(writer, reader)
    at = pair.geometry.to_ffn + pair.reader.cell * pair.geometry.stride
    send(pair.writer, 10)
    good = Header.unpack_from(pair.segment.bytes, at)
    assert good == Header(epoch=7, step=1, layer=2, ubatch=1, rows=3, ids=1)
    good._replace(**{field: 0}).pack_into(pair.segment.bytes, at)
    code, hidden, _ = take(pair.reader)
    assert code == HEADER
    assert hidden[0] == -9, "nothing is copied from a wrong payload"
    assert pair.reader.header() == good._replace(**{field: 0})


def in_background(call: Callable[[], int]) -> Callable[[], int]:
    """Start ``call`` in a thread; the result is waited for by calling what this returns."""
    result: list[int] = []
    thread = threading.Thread(target=lambda: result.append(call()), daemon=True)
    thread.start()

    def join() -> int:
        thread.join(30)
        assert not thread.is_alive(), "it never woke up"
        return result[0]

    return join


@each
def test_abort_wakes_a_reader_at_once_and_for_good(ends: MakeEnds, name: str) -> None:
    pair = ends(name, name)
    waiting = in_background(lambda: pair.reader.peek(1, 2, 3))
    time.sleep(0.1)
    pair.ffn.abort()
    assert waiting() == ABORTED
    send(pair.writer, 10)
    assert pair.reader.peek(1, 2, 3) == ABORTED


@each
def test_abort_wakes_a_writer_at_once(ends: MakeEnds, name: str) -> None:
    pair = ends(name, name)
    for value in (10, 20):
        send(pair.writer, value)
    waiting = in_background(lambda: send(pair.writer, 30))
    time.sleep(0.1)
    pair.attention.abort()
    assert waiting() == ABORTED


@both
def test_abort_stays_on_its_own_side(ends: MakeEnds, writer: str, reader: str) -> None:
    pair = ends(writer, reader)
    pair.attention.abort()
    assert send(pair.writer, 10) == ABORTED
    pair = ends(writer, reader, slice_s=0.02)
    pair.attention.abort()
    assert pair.reader.peek(1, 2, 3) == AGAIN


@both
def test_closing_wakes_both_sides_after_what_is_left_was_read(
    ends: MakeEnds, writer: str, reader: str
) -> None:
    pair = ends(writer, reader)
    waiting = in_background(lambda: pair.reader.peek(1, 2, 3))
    time.sleep(0.1)
    pair.attention.close()
    assert waiting() == PEER_CLOSED
    assert send(pair.writer, 10) == CLOSED

    pair = ends(writer, reader)
    send(pair.writer, 10)
    pair.attention.close()
    assert take(pair.reader)[0] == OK
    assert take(pair.reader)[0] == PEER_CLOSED


@both
@pytest.mark.parametrize("spin", [0, 50])
def test_no_wake_up_is_lost(ends: MakeEnds, writer: str, reader: str, spin: int) -> None:
    """Thousands of hand-overs with a slice far longer than the test: one lost wake-up and it does not finish."""
    pair = ends(writer, reader, spin_us=spin)
    rounds = 3000

    def read() -> int:
        for value in range(rounds):
            code, hidden, _ = take(pair.reader, step=value)
            if code != OK or hidden[0] != value:
                pair.ffn.close()  # ends the writer too
                return -1
        return OK

    reading = in_background(read)
    for value in range(rounds):
        assert send(pair.writer, value, step=value) == OK
    assert reading() == OK


def test_the_python_ring_is_refused_where_it_cannot_order_memory() -> None:
    assert problem("x86_64") is None
    for machine in ("aarch64", "arm64", "riscv64", "ppc64le"):
        trouble = problem(machine)
        assert trouble is not None
        assert "C compiler" in trouble


def test_without_a_futex_waits_are_short_sleeps() -> None:
    assert Futex(machine="without a futex").polls
    assert not Futex(machine="x86_64").polls


def test_waits_poll_only_when_there_are_cores_to_spare() -> None:
    cores = len(os.sched_getaffinity(0))
    assert spin_us(processes=cores - 1) > 0
    assert spin_us(processes=cores) == 0
