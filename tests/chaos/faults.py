# SPDX-License-Identifier: Apache-2.0
"""The deeds, and the proof of each that it took effect."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import psutil

from afd.agent.leftovers import runs
from afd.topology import Role
from tests.chaos.network import MachineRoom, fill_shared_memory, free_shared_memory

PROOF_S = 2.0
"""How long a fault may take to be seen, by whoever looks from outside."""
_PIDFD_GETFD = 438
"""The system call, which has the same number on every architecture."""
_LIBC = ctypes.CDLL(None, use_errno=True)

Connection = tuple[int, int]
"""A TCP connection by the ports of its near and its far end."""


class NoEffectError(AssertionError):
    """The fault did not happen: an experiment without one proves nothing."""


@dataclass
class Deed:
    """What was done. ``at`` is the monotonic time just before it, ``clock`` the time of day; ``proof`` how it was seen,
    and ``heal`` undoes it, where that is possible."""

    at: float
    clock: float
    proof: str = ""
    heal: Callable[[], None] = lambda: None

    @classmethod
    def now(cls) -> Deed:
        return cls(time.monotonic(), time.time())

    def prove(self, seen: Callable[[], object], words: str) -> Deed:
        """Wait until the effect is ``seen``. Raises NoEffectError."""
        deadline = time.monotonic() + PROOF_S
        while not seen():
            if time.monotonic() > deadline:
                raise NoEffectError(f"not seen within {PROOF_S:g} s: {words}")
            time.sleep(0.002)
        self.proof = words
        return self


def kill(process: psutil.Process) -> Deed:
    """SIGKILL."""
    deed = Deed.now()
    os.kill(process.pid, signal.SIGKILL)
    return deed.prove(lambda: not runs(process), "the process is gone")


def stop(process: psutil.Process) -> Deed:
    """SIGSTOP."""

    def go_on() -> None:
        if runs(process):
            os.kill(process.pid, signal.SIGCONT)

    deed = Deed.now()
    deed.heal = go_on
    os.kill(process.pid, signal.SIGSTOP)
    return deed.prove(lambda: process.status() == psutil.STATUS_STOPPED, "the process is in state T")


def cut(room: MachineRoom, port: int) -> Deed:
    """Lose every packet between the roles. ``port`` is one at which FFN's host answers, if only with a refusal."""
    if not room.reaches(Role.ATTENTION, Role.FFN, port):
        raise NoEffectError("the roles do not reach each other before the cut")
    deed = Deed.now()
    deed.heal = room.heal
    room.cut()
    return deed.prove(
        lambda: not room.reaches(Role.ATTENTION, Role.FFN, port), "a connection between the hosts times out"
    )


def fill() -> Deed:
    """Leave no byte in /dev/shm."""
    deed = Deed.now()
    path = fill_shared_memory()
    deed.heal = lambda: path.unlink(missing_ok=True)
    return deed.prove(lambda: free_shared_memory() == 0, "no byte is free in /dev/shm")


@dataclass
class Connections:
    """TCP connections of a process, which can be shut down from outside, at once."""

    process: psutil.Process
    ports: set[Connection]
    sockets: list[socket.socket]

    @classmethod
    def of(cls, process: psutil.Process, others: Iterable[psutil.Process]) -> Connections:
        """Those to ``others``, which are the same sockets that the process has. Raises NoEffectError unless it has one
        to each of them."""
        found = {(one.laddr.port, one.raddr.port): one.fd for one in established(process)}
        each = [{(near, end) for near, end in found if (end, near) in connections(other)} for other in others]
        if not each or not all(each):
            raise NoEffectError(f"it has connections {sorted(found)}, and not one to each of the others")
        ports = set().union(*each)
        return cls(process, ports, [_duplicate(process.pid, found[pair]) for pair in sorted(ports)])

    def shut(self) -> Deed:
        """Shut them down. The process knows nothing of it."""
        deed = Deed.now()
        for each in self.sockets:
            each.shutdown(socket.SHUT_RDWR)
        self.release()
        return deed.prove(
            lambda: not self.ports & connections(self.process),
            f"{len(self.ports)} connections are not established any more",
        )

    def release(self) -> None:
        """Let go of the sockets."""
        for each in self.sockets:
            each.close()


def established(process: psutil.Process) -> list[Any]:
    """Its TCP connections; none when it is gone."""
    try:
        every = process.net_connections(kind="tcp")
    except psutil.Error:
        return []
    return [one for one in every if one.status == psutil.CONN_ESTABLISHED and one.laddr.port]


def connections(process: psutil.Process) -> set[Connection]:
    """Its TCP connections, by their ports."""
    return {(one.laddr.port, one.raddr.port) for one in established(process)}


def _duplicate(pid: int, descriptor: int) -> socket.socket:
    """A socket of another process, shared with it."""
    handle = os.pidfd_open(pid)
    try:
        copied = _LIBC.syscall(_PIDFD_GETFD, handle, descriptor, 0)
    finally:
        os.close(handle)
    if copied < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"pidfd_getfd: {os.strerror(number)}")
    return socket.socket(fileno=copied)
