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


def close(process: psutil.Process, wanted: set[Connection]) -> Deed:
    """Shut down connections of a process, of which it knows nothing."""
    found = {
        (connection.laddr.port, connection.raddr.port): connection.fd for connection in established(process)
    }
    if not wanted or not wanted <= found.keys():
        raise NoEffectError(f"it has no connections {sorted(wanted)}, only {sorted(found)}")
    sockets = [_duplicate(process.pid, found[ports]) for ports in sorted(wanted)]
    deed = Deed.now()
    for each in sockets:
        each.shutdown(socket.SHUT_RDWR)
        each.close()
    return deed.prove(
        lambda: not wanted & connections(process), f"{len(wanted)} connections are not established any more"
    )


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


def between(process: psutil.Process, others: Iterable[psutil.Process]) -> set[Connection]:
    """The connections of ``process`` whose other end belongs to one of ``others``."""
    far = set().union(*map(connections, others))
    return {(near, end) for near, end in connections(process) if (end, near) in far}


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
