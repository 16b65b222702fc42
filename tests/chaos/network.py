# SPDX-License-Identifier: Apache-2.0
"""A small machine room out of namespaces: one host per role, a switch between them, a /dev/shm of its own.

Needs mount and network namespaces of its own (:data:`UNSHARE`). Each role lives in a network namespace, and a bridge
connects it to the other one and to the driver. A cut isolates the two ports of the bridge from each other: every packet
between the roles is lost on its way, no interface goes down and no connection is closed, and the driver still reaches
both.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from afd.topology import Role

UNSHARE = ("unshare", "--mount", "--net", "--map-root-user")
ADDRESSES: Mapping[Role, str] = {Role.ATTENTION: "10.77.0.2", Role.FFN: "10.77.0.3"}
DRIVER = "10.77.0.1"
SHM = Path("/dev/shm")
SHM_BYTES = 24 << 20
PROBE_S = 0.3
_CLONE_NEWNET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)


def unavailable() -> str:
    """Why this user cannot have such namespaces; "" when it can."""
    missing = [tool for tool in ("unshare", "ip", "mount") if shutil.which(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    probe = subprocess.run(
        [*UNSHARE, "ip", "link", "add", "br0", "type", "bridge"], capture_output=True, text=True, timeout=30
    )
    return f"no namespaces for this user: {probe.stderr.strip()}" if probe.returncode else ""


def _run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr.strip()}"
    return done.stdout


def _enter(descriptor: int) -> None:
    """Move this thread to another network namespace."""
    if _LIBC.setns(descriptor, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")


@dataclass(frozen=True)
class MachineRoom:
    """The namespaces, by the descriptors that keep them alive."""

    home: int
    hosts: Mapping[Role, int]

    @contextmanager
    def inside(self, role: Role) -> Iterator[None]:
        """Inside the block this thread, and what it forks, is on the role's host."""
        _enter(self.hosts[role])
        try:
            yield
        finally:
            _enter(self.home)

    def cut(self) -> None:
        """Lose every packet between the roles."""
        self._isolate("on")

    def heal(self) -> None:
        """Let them through again."""
        self._isolate("off")

    def _isolate(self, value: str) -> None:
        for role in self.hosts:
            _run("ip", "link", "set", f"to-{role}", "type", "bridge_slave", "isolated", value)

    def reaches(self, origin: Role, target: Role, port: int) -> bool:
        """Whether a connection from one host to the other is answered, with a yes or a no, within PROBE_S."""
        answered: list[bool] = []

        def probe() -> None:
            _enter(self.hosts[origin])  # of this thread, which ends with it
            try:
                socket.create_connection((ADDRESSES[target], port), PROBE_S).close()
            except ConnectionRefusedError:
                answered.append(True)
            except OSError:
                answered.append(False)
            else:
                answered.append(True)

        thread = threading.Thread(target=probe, daemon=True)
        thread.start()
        thread.join(PROBE_S + 5)
        assert answered, "the probe hangs"
        return answered[0]


def furnish() -> MachineRoom:
    """Set everything up in the namespaces of this process."""
    _run("mount", "-t", "tmpfs", "-o", f"size={SHM_BYTES}", "tmpfs", str(SHM))
    _run("ip", "link", "set", "lo", "up")
    _run("ip", "link", "add", "br0", "type", "bridge")
    _run("ip", "address", "add", f"{DRIVER}/24", "dev", "br0")
    _run("ip", "link", "set", "br0", "up")
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    hosts = {role: _host(role) for role in Role}
    return MachineRoom(home, hosts)


def _host(role: Role) -> int:
    """A namespace with one interface, at the switch."""
    keeper = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert keeper.stdin is not None and keeper.stdout is not None
    try:
        keeper.stdin.write(b"there\n")
        keeper.stdin.flush()
        assert keeper.stdout.readline() == b"there\n", "no namespace"
        namespace = os.open(f"/proc/{keeper.pid}/ns/net", os.O_RDONLY)
        port, inner = f"to-{role}", str(keeper.pid)
        _run("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", inner)
        _run("ip", "link", "set", port, "master", "br0", "up")
        enter = ("nsenter", f"--net=/proc/{inner}/ns/net")
        _run(*enter, "ip", "link", "set", "lo", "up")
        _run(*enter, "ip", "address", "add", f"{ADDRESSES[role]}/24", "dev", "eth0")
        _run(*enter, "ip", "link", "set", "eth0", "up")
        return namespace
    finally:
        keeper.stdin.close()
        keeper.stdout.close()
        keeper.wait()


def fill_shared_memory() -> Path:
    """Write until nothing more fits, and return the file that takes it all."""
    path = SHM / "chaos-fill"
    with open(path, "wb", buffering=0) as file:
        try:
            while file.write(bytes(1 << 12)):
                pass
        except OSError:
            return path
    raise AssertionError("unreachable")


def free_shared_memory() -> int:
    """Bytes that still fit."""
    found = os.statvfs(SHM)
    return found.f_bavail * found.f_frsize
