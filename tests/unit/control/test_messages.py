# SPDX-License-Identifier: Apache-2.0
"""Frames: what is sent arrives, and everything else is refused in plain words."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd.control import messages
from afd.control.abort import Cause
from afd.control.messages import AbortNotice, FrameReader, Gathered, Offer, Step, decode, encode
from afd.errors import AFDError, Difference, MismatchError, MisuseError

STEP = Step(
    epoch="e1", step=7, rank="A0", phase="eager", real=(3, 0), padded=(4, 1), graph_key=None, ids=True
)

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def frame(
    body: bytes, magic: bytes = b"AFD", protocol: int = messages.PROTOCOL, length: int | None = None
) -> bytes:
    return magic + struct.pack("!BI", protocol, len(body) if length is None else length) + body


def test_a_step_arrives_as_it_was_sent() -> None:
    assert list(FrameReader().feed(encode(STEP))) == [STEP]


def test_a_cause_with_differences_survives_the_wire() -> None:
    cause = Cause(
        "MismatchError",
        "text",
        rank="A0",
        host="h",
        differences=(Difference("dtype", {"A0": "x", "F0": "y"}),),
    )
    notice = AbortNotice(epoch="e", cause=cause)
    assert list(FrameReader().feed(encode(notice))) == [notice]


@given(st.dictionaries(st.text(max_size=5), plain, max_size=4), st.integers(1, 40))
def test_frames_cut_anywhere_give_the_same_messages(values: dict[str, Any], size: int) -> None:
    sent: list[messages.AnyMessage] = [Gathered(epoch="e", key="k", values=values), STEP]
    stream = b"".join(encode(m) for m in sent)
    reader = FrameReader()
    got = [m for i in range(0, len(stream), size) for m in reader.feed(stream[i : i + size])]
    assert got == sent
    assert reader.pending == 0


@given(st.binary(max_size=300))
def test_random_bytes_are_refused_or_waited_for(data: bytes) -> None:
    try:
        list(FrameReader().feed(data))
    except (MisuseError, MismatchError) as error:
        assert str(error)


@given(st.binary(max_size=300))
def test_a_well_framed_random_body_is_refused(body: bytes) -> None:
    with pytest.raises(AFDError, match="not a message of AFD protocol"):
        list(FrameReader().feed(frame(body)))


@given(plain)
def test_a_well_formed_body_that_is_no_message_is_refused(value: Any) -> None:
    try:
        body = msgspec.msgpack.encode(value)
    except OverflowError:
        return
    with pytest.raises(MisuseError):
        decode(body)


@given(st.integers(0, len(encode(STEP)) - 1), st.integers(1, 255))
def test_one_flipped_byte_never_does_worse_than_a_refusal(position: int, flip: int) -> None:
    data = bytearray(encode(STEP))
    data[position] ^= flip
    try:
        list(FrameReader().feed(data))
    except AFDError as error:
        assert isinstance(error, (MisuseError, MismatchError))


@pytest.mark.parametrize(
    "body",
    [
        b"\x91" * 100_000,  # nested arrays
        b"\x81\xa4type" * 50_000,
        b"\xdd\xff\xff\xff\xff",  # an array that claims 4 billion elements
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x82\xa4type\xa8Gathered\xa6values\xdd\xff\xff\xff\xff",
        b"\x81\xa4type\xa3\xff\xfe\xfd",  # not UTF-8
        b"\x84\xa4type\xa8Gathered\xa5epoch\xa1e\xa3key\xa1k\xa6values\x81\xa1x" + b"\x91" * 100_000,
    ],
)
def test_hostile_bodies_are_refused_without_using_memory(body: bytes) -> None:
    with pytest.raises(MisuseError):
        list(FrameReader().feed(frame(body)))


def test_another_protocol_version_is_named_with_both_versions() -> None:
    with pytest.raises(MismatchError, match="speaks protocol 2, this side speaks 1"):
        list(FrameReader().feed(frame(b"whatever", protocol=2)))


def test_another_protocol_is_noticed_at_its_first_bytes() -> None:
    with pytest.raises(MisuseError, match="does not speak AFD: it sent b'GET / HT'"):
        list(FrameReader().feed(b"GET / HTTP/1.1\r\n"))
    with pytest.raises(MisuseError, match="does not speak AFD"):
        list(FrameReader().feed(b"G"))


def test_an_announced_length_over_the_limit_is_refused_before_it_arrives() -> None:
    with pytest.raises(MisuseError, match=r"announces a frame of 1048577 bytes; the limit is 1048576"):
        list(FrameReader().feed(frame(b"", length=messages.MAX_BODY + 1)))


def test_a_message_over_the_limit_is_not_sent() -> None:
    with pytest.raises(MisuseError, match="the limit is"):
        encode(Offer(epoch="e", key="k", values={"A0": b"x" * messages.MAX_BODY}, deadline_s=1.0))


def test_a_value_that_is_no_plain_data_is_not_sent() -> None:
    with pytest.raises(MisuseError, match="Offer holds a value that cannot be sent"):
        encode(Offer(epoch="e", key="k", values={"A0": object()}, deadline_s=1.0))
