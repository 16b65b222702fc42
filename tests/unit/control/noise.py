# SPDX-License-Identifier: Apache-2.0
"""What strangers may send: bytes, frames that are cut or too long, and every message with values nobody thought of."""

from __future__ import annotations

import collections.abc
import socket
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from hypothesis import strategies as st

from afd.control import messages
from afd.control.messages import MAX_BODY, AnyMessage, encode
from afd.errors import AFDError

WORDS = st.sampled_from(
    ["", "A0", "A1", "F0", "F7", "A-1", "ffn", "attention", "auto", "retry", "\n", "e" * 12]
)
TEXTS = WORDS | st.text(max_size=30) | st.builds(lambda text: text * 300, st.text(min_size=1, max_size=8))
INTEGERS = (
    st.integers(-3, 9) | st.sampled_from([2**31, -(2**63), 2**64 - 1]) | st.integers(-(2**63), 2**64 - 1)
)
FLOATS = st.floats() | st.sampled_from([0.0, -1.0, 1e308, float("nan"), float("inf")])
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | FLOATS | TEXTS | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Values that the decoder takes for a field of this type."""
    origin, inside = get_origin(kind), get_args(kind)
    simple = {str: TEXTS, int: INTEGERS, float: FLOATS, bool: st.booleans(), bytes: st.binary(max_size=40)}
    if kind in simple:
        return simple[kind]
    if kind is Any:
        return PLAIN
    if origin is Literal:
        return st.sampled_from(inside)
    if origin in (Union, types.UnionType):
        return st.one_of(*map(values, inside))
    if origin is tuple:
        return st.lists(values(inside[0]), max_size=4).map(tuple)
    if origin in (dict, collections.abc.Mapping):
        return st.dictionaries(TEXTS, values(inside[1]), max_size=4)
    if kind is type(None):
        return st.none()
    return structs(kind)


def structs(kind: Any) -> st.SearchStrategy[Any]:
    """Objects of a msgspec class or a dataclass, with any values."""
    hints = get_type_hints(kind)
    return st.fixed_dictionaries({name: values(hint) for name, hint in hints.items()}).map(
        lambda fields: kind(**fields)
    )


MESSAGES: Mapping[str, st.SearchStrategy[AnyMessage]] = {
    kind.__name__: structs(kind) for kind in get_args(AnyMessage)
}


def frame(message: AnyMessage) -> bytes:
    """Its frame, or something else when these values cannot be sent."""
    try:
        return encode(message)
    except AFDError:
        return b"AFD\x01\x00\x00\x00\x00"


FRAMES = st.one_of(*MESSAGES.values()).map(frame)
ANSWERS = st.one_of(*(MESSAGES[name] for name in ("Waiting", "Welcome", "Refusal", "Heartbeat"))).map(frame)
"""What a root may say to a joiner, with any values."""


def _flip(data: bytes, place: int, bits: int) -> bytes:
    place %= len(data)
    return data[:place] + bytes((data[place] ^ bits,)) + data[place + 1 :]


def noise(*without: str) -> st.SearchStrategy[list[bytes]]:
    """What one connection says, piece by piece: bytes, broken frames, and messages, but no message of the kinds
    ``without``."""
    frames = st.one_of(*(made for name, made in MESSAGES.items() if name not in without)).map(frame)
    broken = st.one_of(
        # The name of the message is left alone: it could become one of those that are left out.
        st.builds(_flip, frames, st.integers(0, 7), st.integers(1, 255)),
        st.builds(lambda data, cut: data[: cut % len(data)], frames, st.integers(0, 10**6)),
        st.builds(lambda data: data[:4] + (MAX_BODY + 1).to_bytes(4, "big") + data[8:], frames),
        PLAIN.filter(_packs).map(lambda value: _framed(msgspec.msgpack.encode(value))),
        st.binary(max_size=200).map(_framed),
    )
    return st.lists(st.binary(max_size=200) | broken | frames, min_size=1, max_size=3)


def _framed(body: bytes) -> bytes:
    return b"AFD" + bytes((messages.PROTOCOL,)) + len(body).to_bytes(4, "big") + body


def _packs(value: Any) -> bool:
    try:
        msgspec.msgpack.encode(value)
    except (OverflowError, RecursionError):
        return False
    return True


NOISE = noise()


def say(connect: Callable[[], socket.socket], pieces: list[bytes], hear: bool = False) -> bytes:
    """Send the pieces on a connection of their own and close it; with ``hear``, return what comes until its end."""
    heard = b""
    with connect() as sock, suppress(OSError):  # whoever is refused may find the connection closed
        sock.settimeout(8)
        for piece in pieces:
            sock.sendall(piece)
        sock.shutdown(socket.SHUT_WR)
        while hear and (data := sock.recv(1 << 16)):
            heard += data
    return heard
