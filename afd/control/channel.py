# SPDX-License-Identifier: Apache-2.0
"""What the threads of a rank process wait with: a waker for aborts and a framed, never-blocking socket."""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import select
import socket
import threading
import time
from collections.abc import Callable

from afd.control.abort import Abort
from afd.control.messages import MAX_BODY, AnyMessage, FrameReader, encode
from afd.errors import PeerLostError
from afd.topology import Rank

READABLE = select.POLLIN | select.POLLHUP | select.POLLERR
"""Poll events after which a receive does not block."""

SOCKET_ENV = "AFD_AGENT_SOCKET"
"""Environment variable that tells a process where its agent listens: a path, or "@name" in Linux's abstract
namespace, which leaves no file behind."""


class Waker:
    """A file descriptor that becomes, and stays, readable once ``abort`` is triggered."""

    def __init__(self, abort: Abort) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._lock = threading.Lock()
        self._open = True
        self._unsubscribe = abort.subscribe(self.wake)

    def fileno(self) -> int:
        return self._read

    def wake(self) -> None:
        # Another thread may close us meanwhile; its number may then name somebody else's file.
        with self._lock:
            if self._open:
                try:
                    os.write(self._write, b"!")
                except BlockingIOError:
                    pass  # full, so it is readable already

    def drain(self) -> None:
        """Make it unreadable again, for users that wake it for other reasons than an abort."""
        try:
            os.read(self._read, 4096)
        except BlockingIOError:
            pass

    def close(self) -> None:
        self._unsubscribe()
        with self._lock:
            if self._open:
                self._open = False
                os.close(self._read)
                os.close(self._write)


class Deadline:
    """A point in time that a wait must not pass. ``None`` seconds is no limit."""

    def __init__(self, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = None if seconds is None else clock() + seconds

    @property
    def passed(self) -> bool:
        return self._end is not None and self._clock() >= self._end

    def remaining(self) -> float | None:
        return None if self._end is None else max(0.0, self._end - self._clock())

    def poll_ms(self, at_most: float | None = None) -> int | None:
        """What to give to ``poll``: rounded up, so that a wait does not end just before its deadline."""
        left = [s for s in (self.remaining(), at_most) if s is not None]
        return int(min(left) * 1000) + 1 if left else None


class Connection:
    """One socket that carries frames. Reading and writing never block; the owner polls and gives deadlines."""

    def __init__(self, sock: socket.socket, limit: int = MAX_BODY) -> None:
        sock.setblocking(False)
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._reader = FrameReader(limit)
        self.eof = False

    def fileno(self) -> int:
        return self._sock.fileno()

    def receive(self) -> list[AnyMessage]:
        """Messages that one read completes; possibly none. Sets ``eof`` when the other side is gone.

        Raises :class:`afd.errors.MisuseError` or :class:`afd.errors.MismatchError` for what is no frame.
        """
        try:
            data = self._sock.recv(1 << 16)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError:  # reset, timed out, unreachable: gone in each case
            data = b""
        if not data:
            self.eof = True
            return []
        return list(self._reader.feed(data))

    def send(
        self, message: AnyMessage, waker: Waker, abort: Abort, deadline: Deadline, peer: Rank | str
    ) -> None:
        """Send one frame whole, or raise: the abort's cause, or :class:`afd.errors.PeerLostError` naming ``peer``."""
        view = memoryview(encode(message))
        while view:
            try:
                view = view[self._sock.send(view) :]
                continue
            except (BlockingIOError, InterruptedError):
                pass
            except OSError as error:
                raise PeerLostError(
                    f"{peer} closed the connection while this side was sending ({error})", _rank(peer)
                ) from error
            if deadline.passed:
                raise PeerLostError(f"{peer} took no message from this side before the deadline", _rank(peer))
            poller = select.poll()
            poller.register(self._sock, select.POLLOUT)
            poller.register(waker, select.POLLIN)
            poller.poll(deadline.poll_ms())
            abort.check()

    def send_now(self, message: AnyMessage) -> None:
        """Send one frame if the socket takes it at once; for a last word before closing."""
        try:
            self._sock.send(encode(message))
        except OSError:
            pass  # a peer that is gone needs no last word

    def close(self) -> None:
        """Close; what was sent is still delivered, because nothing unread is left to make it a reset."""
        try:
            self._sock.shutdown(socket.SHUT_WR)
            while self._sock.recv(1 << 16):
                pass
        except OSError:
            pass  # nothing to read, or gone already
        self._sock.close()


def dial(address: str, waker: Waker, abort: Abort, deadline: Deadline, peer: Rank | str) -> Connection:
    """A connection to ``peer`` at ``address`` ("host:port"). Raises the abort's cause, or :class:`PeerLostError`."""
    host, port = parse_address(address)
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise PeerLostError(f"{peer} cannot be reached at {address}: {error}", _rank(peer)) from error
    sock.setblocking(False)
    code = sock.connect_ex(target)
    if code == errno.EINPROGRESS:
        poller = select.poll()
        poller.register(sock, select.POLLOUT)
        poller.register(waker, select.POLLIN)
        poller.poll(deadline.poll_ms())
        code = errno.ETIMEDOUT if deadline.passed else sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if abort.cause is not None or code:
        sock.close()
        abort.check()
        raise PeerLostError(f"{peer} does not answer at {address}: {os.strerror(code)}", _rank(peer))
    return Connection(sock)


def _rank(peer: Rank | str) -> str:
    """The rank to blame; none when the other side is "the agent" of this process."""
    return str(peer) if isinstance(peer, Rank) else ""


def prove(token: bytes | None, *parts: str | bytes) -> bytes:
    """Evidence of knowing ``token``, bound to ``parts``; empty without a token. It does not reveal the token."""
    if token is None:
        return b""
    mac = hmac.new(token, digestmod=hashlib.sha256)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        mac.update(len(data).to_bytes(4, "big") + data)
    return mac.digest()


def proven(token: bytes | None, proof: bytes, *parts: str | bytes) -> bool:
    """Whether ``proof`` shows the token. Without a token everything is accepted."""
    return token is None or hmac.compare_digest(prove(token, *parts), proof)


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of "host:port" or "[v6]:port"."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def format_address(host: str, port: int) -> str:
    """The inverse of :func:`parse_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def socket_path(address: str) -> str:
    """What to bind or connect a unix socket to for an address as in :data:`SOCKET_ENV`."""
    return "\0" + address[1:] if address.startswith("@") else address
