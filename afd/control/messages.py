# SPDX-License-Identifier: Apache-2.0
"""What AFD's processes say to each other, and how it is framed.

A frame is the magic ``AFD``, one byte of protocol version, the body's length as a big-endian u32 and the
body: one msgpack map, tagged with the message's name. The same frames travel between agents (TCP), between
an agent and its rank processes (unix socket) and from Attention ranks to FFN ranks (TCP, :class:`Step`
only). Nothing is pickled, a body is at most :data:`MAX_BODY` bytes, and a frame that is not exactly one of
these messages is refused:

* :class:`afd.errors.MismatchError` when the other side is AFD of another protocol version,
* :class:`afd.errors.MisuseError` when the bytes are no AFD frame, too long, or no message of this protocol.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from afd.control.abort import Cause
from afd.errors import Difference, MismatchError, MisuseError

MAGIC = b"AFD"
PROTOCOL = 1
MAX_BODY = 1 << 20
_HEADER = struct.Struct("!3sBI")


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True):
    """Base of all messages."""


# ---- handshake, between agents ----------------------------------------------------------------------------


class Host(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where an agent runs. Two agents with equal ``memory`` can share memory through /dev/shm."""

    name: str
    memory: str
    pid: int


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model as both roles must understand it. ``config_digest`` covers the whole checkpoint
    configuration."""

    architecture: str
    hidden_size: int
    layers: int
    experts: int
    top_k: int
    dtype: str
    quantisation: str
    config_digest: str


class Layout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Counts of ranks, the order of the two roles in the world (``ffn_first`` or ``attention_first``), and how many
    Attention ranks form a tensor-parallel group: 0 from FFN, which is not told and learns it from Attention's hello."""

    num_attention: int
    num_ffn: int
    order: str
    attention_tp: int = 0


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True):
    """Everything an agent declares about its ranks before any model process exists.

    ``ranks`` are indices inside ``role``. ``gate`` is the role that owns the router ("ffn" or "attention"), ``ids``
    whether token ids travel with the hidden states. ``versions`` and ``ubatch`` map names to printable
    values. Which fields must agree is the table ``afd.control.handshake.AGREED``; the rest is for people.
    """

    role: str
    ranks: tuple[int, ...]
    versions: Mapping[str, str]
    model: Fingerprint
    layout: Layout
    connector: str
    transport: str
    gate: str
    ids: bool
    ubatch: Mapping[str, int]
    platform: str
    runner: str
    host: Host
    heartbeat_s: float
    config_revision: str = ""
    notes: Mapping[str, str] = {}


class Challenge(Message, frozen=True, kw_only=True):
    """Root, or FFN rank on its step channel, to whoever connects: prove the token over ``nonce`` when ``token`` is
    set."""

    nonce: bytes
    token: bool


class Join(Message, frozen=True, kw_only=True):
    """A joiner's answer: its hello, its own nonce, and its proof (empty without a token)."""

    hello: Hello
    nonce: bytes
    proof: bytes = b""


class Waiting(Message, frozen=True, kw_only=True):
    """Root to joiners until the group is complete: ranks still missing, and seconds waited. ``proof`` is
    the root's answer to the joiner's nonce."""

    missing: tuple[str, ...]
    elapsed_s: float
    proof: bytes = b""


class Welcome(Message, frozen=True, kw_only=True):
    """The group is complete. ``hellos`` has one entry per agent, the root's first."""

    epoch: str
    hellos: tuple[Hello, ...]
    proof: bytes = b""


class Refusal(Message, frozen=True, kw_only=True):
    """No group for you, with the reason. ``kind`` is a class of :mod:`afd.errors`, or "retry" when a new
    attempt may succeed (the old epoch is about to end)."""

    kind: str
    message: str
    differences: tuple[Difference, ...] = ()


# ---- in a group: between agents, and between an agent and its rank processes -------------------------------


class Offer(Message, frozen=True, kw_only=True):
    """Values of some ranks for the exchange ``key``; complete when every rank of both roles has offered.

    ``value`` is any msgpack value. With ``must_agree`` the root compares the values (field by field when
    they are maps). ``deadline_s`` counts from the first offer for the key.
    """

    epoch: str
    key: str
    values: Mapping[str, Any]
    deadline_s: float
    must_agree: bool = False


class Gathered(Message, frozen=True, kw_only=True):
    """The completed exchange: one value per rank name."""

    epoch: str
    key: str
    values: Mapping[str, Any]


class PeerRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One agent as the root sees it; ``last_seen_s`` is the age of its last sign of life."""

    role: str
    ranks: tuple[int, ...]
    host: str
    state: str
    last_seen_s: float


class Heartbeat(Message, frozen=True, kw_only=True):
    """A sign of life. The root's carry the table of all agents."""

    epoch: str
    state: str = ""
    peers: tuple[PeerRow, ...] = ()


class AbortNotice(Message, frozen=True, kw_only=True):
    """The epoch ends with ``cause``. From a joiner or a rank process it is a claim, from the root the
    verdict."""

    epoch: str
    cause: Cause


class Bye(Message, frozen=True, kw_only=True):
    """These ranks leave on purpose; what follows on this connection is EOF, and it is no loss."""

    epoch: str
    ranks: tuple[str, ...]
    reason: str


RESTS = "it rests until the next epoch"
"""The reason in the goodbye of a rank process that keeps what it has loaded and attaches again in the next epoch."""


PROFILE_START, PROFILE_STOP = "profile start", "profile stop"
"""The commands that there are."""


class Command(Message, frozen=True, kw_only=True):
    """Something that every agent of the group does, all in the order in which the root sends them: from a joiner it is
    a wish, from the root the command, and so it is from an agent to its rank processes. ``id`` names this one."""

    epoch: str
    id: str
    name: str


class Outcome(Message, frozen=True, kw_only=True):
    """A rank process has done what the command ``id`` asks for; ``text`` says what came of it."""

    epoch: str
    id: str
    done: bool
    text: str


class Attach(Message, frozen=True, kw_only=True):
    """First frame of a process on the agent's unix socket. ``rank`` is empty for processes that are no
    rank."""

    rank: str
    pid: int
    kind: str


class Attached(Message, frozen=True, kw_only=True):
    """The agent's answer: the epoch this process is part of."""

    epoch: str


class Report(Message, frozen=True, kw_only=True):
    """Absolute counter values of a rank process (keys: ``afd.observe.counters``), and its state if it
    changed."""

    counters: Mapping[str, float]
    state: str | None = None


# ---- step channel, Attention rank to FFN rank --------------------------------------------------------------

Phase = Literal["profile", "warmup", "capture", "eager", "replay"]


class StepHello(Message, frozen=True, kw_only=True):
    """An Attention rank's answer to the :class:`Challenge` on a step connection: who it is, its own nonce, and its
    proof over both nonces (empty without a token)."""

    epoch: str
    rank: str
    nonce: bytes
    proof: bytes = b""


class StepReady(Message, frozen=True, kw_only=True):
    """The FFN rank took the connection. ``proof`` is its answer to the nonce of the Attention rank."""

    epoch: str
    rank: str
    proof: bytes = b""


class Step(Message, frozen=True, kw_only=True):
    """One forward of one Attention rank, announced before its first payload.

    ``real`` and ``padded`` are token counts, one per ubatch (zero is an ordinary count); ``step`` counts up
    from any start; ``graph_key`` names the graph to capture or replay; ``ids`` says that token ids travel
    with the rows.
    """

    epoch: str
    step: int
    rank: str
    phase: Phase
    real: tuple[int, ...]
    padded: tuple[int, ...]
    graph_key: str | None = None
    ids: bool = False


AnyMessage = (
    Challenge
    | Join
    | Waiting
    | Welcome
    | Refusal
    | Offer
    | Gathered
    | Heartbeat
    | AbortNotice
    | Bye
    | Attach
    | Attached
    | Report
    | Command
    | Outcome
    | StepHello
    | StepReady
    | Step
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)


def encode(message: AnyMessage) -> bytes:
    """One whole frame. Raises :class:`afd.errors.MisuseError` when the body cannot be sent."""
    try:
        body = _encoder.encode(message)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise MisuseError(f"{type(message).__name__} holds a value that cannot be sent: {error}") from error
    if len(body) > MAX_BODY:
        raise MisuseError(f"{type(message).__name__} is {len(body)} bytes; the limit is {MAX_BODY}")
    return _HEADER.pack(MAGIC, PROTOCOL, len(body)) + body


def decode(body: bytes | memoryview) -> AnyMessage:
    """The message of one frame's body. Raises :class:`afd.errors.MisuseError` for anything else."""
    try:
        return _decoder.decode(body)
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise MisuseError(f"not a message of AFD protocol {PROTOCOL}: {error}") from error


class FrameReader:
    """Cuts a byte stream into messages. Feed it what arrives; it never holds more than one frame's length
    plus what was fed at once, and refuses a stream at its first wrong byte. Once it raised, the stream is
    useless."""

    def __init__(self, limit: int = MAX_BODY) -> None:
        self._limit = limit
        self._buffer = bytearray()

    @property
    def pending(self) -> int:
        """Bytes of a frame that is not complete yet."""
        return len(self._buffer)

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[AnyMessage]:
        """Messages completed by ``data``, in order. The data counts as fed even when the iterator is not
        used up."""
        self._buffer += data
        return self._messages()

    def _messages(self) -> Iterator[AnyMessage]:
        while True:
            length = self._body_length()
            if length is None or len(self._buffer) < _HEADER.size + length:
                return
            end = _HEADER.size + length
            body = bytes(self._buffer[_HEADER.size : end])
            del self._buffer[:end]
            yield decode(body)

    def _body_length(self) -> int | None:
        head = bytes(self._buffer[: _HEADER.size])
        if head[:3] != MAGIC[: len(head)]:
            raise MisuseError(f"the other side does not speak AFD: it sent {head!r}")
        if len(head) > 3 and head[3] != PROTOCOL:
            raise MismatchError(f"the other side speaks protocol {head[3]}, this side speaks {PROTOCOL}")
        if len(head) < _HEADER.size:
            return None
        length: int = _HEADER.unpack(head)[2]
        if length > self._limit:
            raise MisuseError(
                f"the other side announces a frame of {length} bytes; the limit is {self._limit}"
            )
        return length
