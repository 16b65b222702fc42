# SPDX-License-Identifier: Apache-2.0
"""A process's line to its agent: exchange values with all ranks, report counters, learn of the abort.

For code with threads and no event loop. One daemon thread reads the socket, so that an abort arrives while the
process computes; it needs the interpreter lock only for the moment a message takes.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from afd.control.abort import Abort, Cause
from afd.control.channel import READABLE, SOCKET_ENV, Connection, Deadline, Waker, socket_path
from afd.control.messages import (
    AbortNotice,
    AnyMessage,
    Attach,
    Attached,
    Bye,
    Command,
    Gathered,
    Offer,
    Outcome,
    Report,
)
from afd.errors import AFDError, ClosedError, ConfigError, MisuseError, PeerLostError
from afd.topology import Rank

log = logging.getLogger(__name__)

ATTACH_S = 10.0
SLACK_S = 5.0
"""How much longer a process waits for its agent than the agents wait for the ranks."""
VERDICT_S = 1.5
"""How long a process that reports a failure waits to hear the root cause."""
SEND_S = 5.0


class RankSession:
    """One process attached to its agent. Methods may be called from any thread.

    ``epoch`` is the id of the group; ``abort`` is triggered when the epoch ends or the agent is gone.
    """

    def __init__(
        self,
        connection: Connection,
        rank: Rank | None,
        kind: str,
        epoch: str,
        abort: Abort,
        heard: Sequence[AnyMessage] = (),
    ) -> None:
        self.epoch, self.abort = epoch, abort
        self._rank, self._kind = rank, kind
        self._connection = connection
        self._waker = Waker(abort)
        self._send_lock = threading.Lock()
        self._condition = threading.Condition()
        self._gathered: dict[str, dict[str, Any]] = {}
        self._report: Report | None = None
        self._commands: deque[Command] = deque()
        self._closing = False
        self._unsubscribe = abort.subscribe(self._wake_exchanges)
        for message in heard:
            self._handle(message)
        self._thread = threading.Thread(target=self._run, name="afd-session", daemon=True)
        self._thread.start()

    @classmethod
    def attach(
        cls,
        address: str | None = None,
        rank: Rank | None = None,
        kind: str = "rank",
        *,
        abort: Abort | None = None,
        timeout_s: float = ATTACH_S,
    ) -> RankSession:
        """Attach this process to the agent at ``address`` (default: the variable ``AFD_AGENT_SOCKET``).

        Do this in the process that does the work: a child forked later would keep the connection open, and the
        agent would not notice this process's death. Raises :class:`ConfigError` without an address,
        :class:`PeerLostError` when no agent answers within ``timeout_s`` seconds, and the cause of an abort.
        """
        address = address or os.environ.get(SOCKET_ENV)
        if not address:
            raise ConfigError(f"{SOCKET_ENV} is not set: this process was not started by `afd serve`")
        abort = abort or Abort()
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(timeout_s)
            sock.connect(socket_path(address))
            connection = Connection(sock)
        except OSError as error:
            sock.close()
            raise PeerLostError(f"no agent answers at {address}: {error}") from error
        waker = Waker(abort)
        try:
            deadline = Deadline(timeout_s)
            hello = Attach(rank=str(rank) if rank else "", pid=os.getpid(), kind=kind)
            connection.send(hello, waker, abort, deadline, "the agent")
            epoch, more = _await_attached(connection, waker, abort, deadline)
        except BaseException:
            connection.close()
            raise
        finally:
            waker.close()
        return cls(connection, rank, kind, epoch, abort, more)

    def exchange(self, key: str, value: Any, timeout_s: float, *, must_agree: bool = False) -> dict[str, Any]:
        """Give this rank's value for ``key`` and get those of all ranks, by name ("A0", "F0").

        Values are plain data (msgpack). Raises the abort's cause: a rank that offers nothing within ``timeout_s``
        seconds, or, with ``must_agree``, values that differ (maps are compared field by field).
        """
        self._check_open()
        if self._rank is None:
            raise MisuseError(f"exchange {key!r}: a process of kind {self._kind!r} is no rank")
        self._send(
            Offer(
                epoch=self.epoch,
                key=key,
                values={str(self._rank): value},
                deadline_s=timeout_s,
                must_agree=must_agree,
            )
        )
        with self._condition:
            self._condition.wait_for(
                lambda: key in self._gathered or self.abort.cause is not None or self._closing,
                timeout_s + SLACK_S,
            )
            if key in self._gathered:
                return self._gathered.pop(key)
        self._check_open()
        raise PeerLostError(f"the agent did not answer the exchange {key!r} within {timeout_s + SLACK_S:g} s")

    def report(self, counters: Mapping[str, float], state: str | None = None) -> None:
        """Hand absolute counter values (and a state) to the agent. Never waits; a newer report replaces one that is
        still unsent."""
        with self._condition:
            if self._report is not None and state is None:
                state = self._report.state
            self._report = Report(counters=dict(counters), state=state)
        self._waker.wake()

    def next_command(self) -> Command | None:
        """What the agent wants done now, or None. Say what came of it with :meth:`answer`."""
        return self._commands.popleft() if self._commands else None

    def answer(self, command: Command, done: bool, text: str) -> None:
        """What came of a command. An agent that is gone needs no answer."""
        try:
            self._send(Outcome(epoch=self.epoch, id=command.id, done=done, text=text))
        except PeerLostError as error:
            log.debug("no answer to %s: %s", command.name, error)

    def fail(self, error: BaseException | Cause) -> Cause:
        """Report a failure of (or seen by) this process and return the root cause that everybody is told."""
        blamed = str(self._rank) if self._rank else ""
        cause = error if isinstance(error, Cause) else Cause.of(error, blamed)
        try:
            self._send(AbortNotice(epoch=self.epoch, cause=cause))
        except (PeerLostError, OSError):
            self.abort.trigger(cause)
        with self._condition:
            self._condition.wait_for(lambda: self.abort.cause is not None, VERDICT_S)
        self.abort.trigger(cause)
        assert self.abort.cause is not None
        return self.abort.cause

    def close(self, reason: str) -> None:
        """Say goodbye and detach. Harmless when called again."""
        with self._condition:
            if self._closing:
                return
            self._closing = True
            self._condition.notify_all()
        self._waker.wake()
        self._thread.join(SEND_S)
        self._flush_report()
        with self._send_lock:
            self._connection.send_now(Bye(epoch=self.epoch, ranks=(), reason=reason))
            self._connection.close()
        self._unsubscribe()
        self._waker.close()

    # ---- the thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        poller = select.poll()
        poller.register(self._connection, READABLE)
        poller.register(self._waker, select.POLLIN)
        while not self._closing:
            poller.poll()
            self._waker.drain()
            self._flush_report()
            try:
                messages = self._connection.receive()
            except AFDError as error:
                self.abort.trigger(Cause("MisuseError", f"the agent broke the protocol: {error}"))
                return
            for message in messages:
                self._handle(message)
            if self._connection.eof:
                if not self._closing:
                    self.abort.trigger(Cause("PeerLostError", "the agent of this process is gone"))
                return

    def _handle(self, message: AnyMessage) -> None:
        if isinstance(message, Gathered):
            with self._condition:
                self._gathered[message.key] = dict(message.values)
                self._condition.notify_all()
        elif isinstance(message, AbortNotice):
            self.abort.trigger(message.cause)
        elif isinstance(message, Command):
            self._commands.append(message)
        elif isinstance(message, Bye):
            self.abort.trigger(Cause("PeerLostError", f"the agent of this process closed ({message.reason})"))
        else:
            log.warning("the agent sent an unexpected %s", type(message).__name__)

    def _flush_report(self) -> None:
        with self._condition:
            report, self._report = self._report, None
        if report is not None:
            try:
                self._send(report)
            except PeerLostError:
                pass  # the reader sees the end of the connection and says so

    # ---- sending -----------------------------------------------------------------------------------------

    def _send(self, message: AnyMessage) -> None:
        with self._send_lock:
            # No abort here: a report, or a failure, must still get through after one.
            self._connection.send(message, self._waker, _NO_ABORT, Deadline(SEND_S), "the agent")

    def _wake_exchanges(self) -> None:
        with self._condition:
            self._condition.notify_all()

    def _check_open(self) -> None:
        self.abort.check()
        if self._closing:
            raise ClosedError("the session with the agent is closed")


_NO_ABORT = Abort()


def _await_attached(
    connection: Connection, waker: Waker, abort: Abort, deadline: Deadline
) -> tuple[str, list[AnyMessage]]:
    """The epoch, and what the agent said right after it: an abort may follow at once, in the same read."""
    poller = select.poll()
    poller.register(connection, READABLE)
    poller.register(waker, select.POLLIN)
    while True:
        messages = connection.receive()
        for number, message in enumerate(messages, 1):
            if isinstance(message, Attached):
                return message.epoch, messages[number:]
            if isinstance(message, AbortNotice):
                raise message.cause.error()
            raise MisuseError(f"the agent answered with {type(message).__name__}")
        if connection.eof:
            raise PeerLostError(
                "the agent closed the connection: it is ending, or this process is not one of its ranks"
            )
        if deadline.passed:
            raise PeerLostError("the agent does not answer")
        poller.poll(deadline.poll_ms())
        abort.check()
