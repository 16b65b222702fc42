# SPDX-License-Identifier: Apache-2.0
"""The step channel, FFN's side: each Attention rank announces each forward to every FFN rank.

The FFN side waits for hours when there is nothing to do, but once one Attention rank has announced a step the
others owe theirs within ``step_s``. Both sides notice a closed connection and an abort at once.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import time
from collections import deque
from collections.abc import Collection, Mapping

from afd.control.abort import Abort
from afd.control.channel import (
    READABLE,
    Connection,
    Deadline,
    Waker,
    format_address,
    prove,
    proven,
)
from afd.control.messages import AnyMessage, Bye, Challenge, Refusal, Step, StepHello, StepReady
from afd.control.ports import listen
from afd.errors import (
    AFDError,
    ClosedError,
    MisuseError,
    PeerAbsentError,
    PeerLostError,
)
from afd.topology import Rank

log = logging.getLogger(__name__)

STRANGERS = 32
"""Connections that may be open at once without having said who they are; the oldest is closed first."""
HELLO_S = 5.0
"""How long a connection may take to say who it is."""
AHEAD = 256
"""Steps that one Attention rank may be ahead of the FFN rank. It waits for replies, so more is a bug."""


class _Stranger:
    def __init__(self, sock: socket.socket, name: str) -> None:
        self.connection = Connection(sock, limit=4096)
        self.name = name
        self.nonce = os.urandom(16)
        self.deadline = Deadline(HELLO_S)


class _Source:
    """One Attention rank that has said who it is."""

    def __init__(self, rank: Rank, connection: Connection) -> None:
        self.rank = rank
        self.connection = connection
        self.steps: deque[Step] = deque()
        self.last = -1
        self.bye: str | None = None


class StepListener:
    """The FFN side: collects one step from each rank of ``expected``.

    Not thread-safe: one thread calls it. ``address`` ("host:port") is what to publish; it listens from construction
    on. ``host`` is the address to listen on and ``advertise`` the one to publish when it differs. ``step_s`` is in
    seconds.
    """

    def __init__(
        self,
        rank: Rank,
        epoch: str,
        expected: Collection[Rank],
        *,
        abort: Abort,
        step_s: float,
        token: bytes | None = None,
        host: str = "127.0.0.1",
        advertise: str | None = None,
    ) -> None:
        self._rank, self._epoch, self._token = rank, epoch, token
        self._expected = tuple(sorted(expected))
        self._abort, self._step_s = abort, step_s
        self._listener = listen(host, 0, "the step channel", "give an address of this machine")
        self._listener.setblocking(False)
        self.address = format_address(advertise or host, self._listener.getsockname()[1])
        self._sources: dict[Rank, _Source] = {}
        self._strangers: dict[int, _Stranger] = {}
        self._by_fd: dict[int, _Source] = {}
        self._waker = Waker(abort)
        self._poller = select.poll()
        self._poller.register(self._waker, select.POLLIN)
        self._poller.register(self._listener, select.POLLIN)
        self._closed = False
        self._announced: float | None = None

    def connect_all(self, timeout_s: float) -> None:
        """Wait until every expected rank has connected. Raises :class:`PeerAbsentError` naming the missing ranks."""
        deadline = Deadline(timeout_s)
        while missing := [r for r in self._expected if r not in self._sources]:
            if deadline.passed:
                raise PeerAbsentError(
                    f"{_names(missing)} did not open a step connection to {self._rank} within {timeout_s:g} s"
                )
            self._poll(deadline)

    def next(self, timeout_s: float | None = None) -> Mapping[Rank, Step] | None:
        """The next step of every expected rank; empty after ``timeout_s`` seconds without any announcement (None:
        wait for ever); None when every expected rank has said goodbye.

        Raises the abort's cause; :class:`PeerLostError` when a rank closes its connection without a goodbye, leaves
        while others go on, or does not announce within ``step_s`` what another has announced;
        :class:`MisuseError` when ranks announce different steps.
        """
        if self._closed:
            raise ClosedError(f"the step channel of {self._rank} is closed")
        self._abort.check()
        idle = Deadline(timeout_s)
        while True:
            if len(self._sources) == len(self._expected):
                if all(s.steps for s in self._sources.values()):
                    return self._take()
                if all(s.bye is not None and not s.steps for s in self._sources.values()):
                    return None
            if (first := self._first_announced()) is None:
                if idle.passed:
                    return {}
                self._poll(idle)
            else:
                self._poll(self._owed(first))

    def close(self, reason: str) -> None:
        """Say goodbye to every Attention rank and close. Harmless when called again."""
        if self._closed:
            return
        self._closed = True
        self._listener.close()
        for source in self._sources.values():
            source.connection.send_now(Bye(epoch=self._epoch, ranks=(str(self._rank),), reason=reason))
            source.connection.close()
        for stranger in self._strangers.values():
            stranger.connection.close()
        self._waker.close()

    # ---- waiting ----------------------------------------------------------------------------------------

    def _poll(self, deadline: Deadline) -> None:
        for fd, _ in self._poller.poll(deadline.poll_ms(HELLO_S if self._strangers else None)):
            if source := self._by_fd.get(fd):
                self._read(source)
            elif stranger := self._strangers.get(fd):
                self._meet(fd, stranger)
            elif fd == self._listener.fileno():
                self._accept()
        self._abort.check()
        if self._strangers:
            for fd, stranger in list(self._strangers.items()):
                if stranger.deadline.passed:
                    self._drop(fd, f"it did not say who it is within {HELLO_S:g} s")

    def _first_announced(self) -> _Source | None:
        """A source with a step while another has none yet. Starts the clock of ``step_s``."""
        first = next((s for s in self._sources.values() if s.steps), None)
        if first is None:
            self._announced = None
        elif self._announced is None:
            self._announced = time.monotonic()
        return first

    def _owed(self, first: _Source) -> Deadline:
        """The deadline for those who have not announced the step of ``first``; raises when they cannot or did not."""
        step = first.steps[0].step
        late = [r for r in self._expected if r not in self._sources or not self._sources[r].steps]
        for rank in late:
            if rank in self._sources and (reason := self._sources[rank].bye) is not None:
                raise PeerLostError(
                    f"{rank} said goodbye ({reason}) but {first.rank} announces step {step}", str(rank)
                )
        assert self._announced is not None
        left = self._announced + self._step_s - time.monotonic()
        if left <= 0:
            raise PeerLostError(
                f"{_names(late)} did not announce step {step} to {self._rank} within {self._step_s:g} s; "
                f"{first.rank} did",
                str(late[0]),
            )
        return Deadline(left)

    def _take(self) -> Mapping[Rank, Step]:
        steps = {rank: self._sources[rank].steps.popleft() for rank in self._expected}
        self._announced = None
        if len({step.step for step in steps.values()}) > 1:
            found = ", ".join(f"step {step.step} by {rank}" for rank, step in steps.items())
            raise MisuseError(f"Attention ranks announce different steps to {self._rank}: {found}")
        return steps

    # ---- those we know ----------------------------------------------------------------------------------

    def _read(self, source: _Source) -> None:
        for message in source.connection.receive():
            self._handle(source, message)
        if source.connection.eof:
            self._poller.unregister(source.connection)
            del self._by_fd[source.connection.fileno()]
            if source.bye is None:
                raise PeerLostError(
                    f"{source.rank} closed its step connection to {self._rank} without a goodbye",
                    str(source.rank),
                )

    def _handle(self, source: _Source, message: AnyMessage) -> None:
        if isinstance(message, Bye):
            source.bye = message.reason
            return
        if not isinstance(message, Step):
            raise MisuseError(f"{source.rank} sent {type(message).__name__} on the step channel")
        if (message.epoch, message.rank) != (self._epoch, str(source.rank)):
            raise MisuseError(
                f"{source.rank} of epoch {self._epoch} announced a step as {message.rank} of epoch {message.epoch}"
            )
        if message.step <= source.last:
            raise MisuseError(f"{source.rank} announced step {message.step} after step {source.last}")
        if len(source.steps) >= AHEAD:
            raise MisuseError(f"{source.rank} is {AHEAD} steps ahead of {self._rank}")
        source.last = message.step
        source.steps.append(message)

    # ---- those we do not know yet -------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            sock, address = self._listener.accept()
        except OSError as error:  # gone again already, or out of file descriptors: not worth an epoch
            log.debug("could not accept a step connection: %s", error)
            return
        if len(self._strangers) >= STRANGERS:
            self._drop(
                next(iter(self._strangers)), f"more than {STRANGERS} connections did not say who they are"
            )
        stranger = _Stranger(sock, format_address(*address[:2]))
        self._strangers[sock.fileno()] = stranger
        self._poller.register(sock, READABLE)
        stranger.connection.send_now(Challenge(nonce=stranger.nonce, token=self._token is not None))

    def _drop(self, fd: int, why: str, refusal: Refusal | None = None) -> None:
        stranger = self._strangers.pop(fd)
        log.info("%s: closed a step connection from %s: %s", self._rank, stranger.name, why)
        self._poller.unregister(fd)
        if refusal is not None:
            stranger.connection.send_now(refusal)
        stranger.connection.close()

    def _meet(self, fd: int, stranger: _Stranger) -> None:
        try:
            messages = stranger.connection.receive()
        except AFDError as error:
            self._drop(fd, str(error))
            return
        if messages:
            self._introduce(fd, stranger, messages)
        elif stranger.connection.eof:
            self._drop(fd, "it left without saying who it is")

    def _introduce(self, fd: int, stranger: _Stranger, messages: list[AnyMessage]) -> None:
        hello = messages[0]
        if not isinstance(hello, StepHello):
            self._drop(fd, f"it began with {type(hello).__name__}")
            return
        said = (stranger.nonce, hello.nonce, hello.epoch, hello.rank, str(self._rank))
        if not proven(self._token, hello.proof, "step", *said):
            text = f"the token of {hello.rank} is not that of {self._rank}"
            self._drop(fd, text, Refusal(kind="MismatchError", message=text))
            return
        rank = next((r for r in self._expected if str(r) == hello.rank), None)
        if rank is None:
            text = f"{self._rank} expects steps from {_names(self._expected)}, not from {hello.rank}"
            self._drop(fd, text, Refusal(kind="MisuseError", message=text))
            return
        restarted = None
        if hello.epoch != self._epoch:
            restarted = (
                f"rank restarted: {rank} speaks epoch {hello.epoch}, {self._rank} is in epoch {self._epoch}"
            )
        elif rank in self._sources:
            restarted = f"rank restarted: {rank} opened a second step connection to {self._rank}"
        if restarted is not None:
            self._drop(fd, restarted, Refusal(kind="PeerLostError", message=restarted))
            raise PeerLostError(restarted, str(rank))
        del self._strangers[fd]
        source = self._sources[rank] = self._by_fd[fd] = _Source(rank, stranger.connection)
        proof = prove(self._token, "steps", *said)
        source.connection.send_now(StepReady(epoch=self._epoch, rank=str(self._rank), proof=proof))
        for message in messages[1:]:
            self._handle(source, message)


def _names(ranks: Collection[Rank]) -> str:
    return ", ".join(str(rank) for rank in ranks)
