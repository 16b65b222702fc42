# SPDX-License-Identifier: Apache-2.0
"""How the ranks of a group reach each other: which transport, and at which address.

All agents decide it together, after their hellos were compared and before the first model process exists. That two
hosts name their shared memory alike does not prove that they share it, so each agent writes a number that nobody can
guess to a file in /dev/shm, and says what it finds in the files of the other role's agents.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import logging
import os
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from afd.connectors.shm.segment import DIRECTORY, segment_name
from afd.control.group import Control
from afd.control.handshake import ANY, ranks_of
from afd.control.messages import Hello
from afd.errors import ConfigError, Difference, MismatchError
from afd.topology import Rank

log = logging.getLogger(__name__)

EXCHANGE_S = 10.0
"""How long the other agents may take; they have just said hello."""
LOOPBACK = "127.0.0.1"
_NONCE_BYTES = 32
_PROBES = "afd-*-probe-*"
_ATTEMPTS = 5
"""A file without its lock may be swept while it is made: then it is made again."""


@dataclass(frozen=True)
class Reach:
    """``transport`` for the whole group and why; ``host`` is where peers reach the ranks of this agent."""

    transport: str
    reason: str
    host: str


async def agree(control: Control, directory: Path = DIRECTORY) -> Reach:
    """Settle with all other agents how ranks reach each other.

    Raises MismatchError when shared memory was asked for and is not there, and the cause of an abort.
    """
    host = await _address(control)
    transport, reason = _named(control.hellos)
    if transport == "shm" or not transport:
        missing = await _missing(control, directory)
        if missing and transport:
            raise MismatchError(
                f"transport shm was asked for, but {missing}; give both roles the same {directory} (containers: "
                "--ipc=host, or one pod), or set --afd-transport auto",
                (
                    Difference(
                        "shared memory", {str(rank): str(directory) for rank in control.topology.ranks}
                    ),
                ),
            )
        if not transport:
            transport, reason = "collective", missing
            if not missing:
                transport, reason = "shm", f"all ranks share {directory}"
    log.info("transport %s: %s", transport, reason)
    return Reach(transport, reason, host)


def _named(hellos: Sequence[Hello]) -> tuple[str, str]:
    """The transport that agreeing hellos mean, and why; "" when it is to be found out."""
    if named := {hello.transport for hello in hellos} - {ANY}:
        return named.pop(), "it was asked for"
    if platforms := {hello.platform for hello in hellos} - {"cpu"}:
        return "cam", f"the platform is {platforms.pop()}"
    if len({hello.host.memory for hello in hellos}) > 1:
        where = ", ".join(f"{ranks_of(hello)[0]} on {hello.host.name}" for hello in hellos)
        return "collective", f"not all ranks are on one host with one /dev/shm: {where}"
    return "", ""


# ---- addresses -------------------------------------------------------------------------------------------------


async def _address(control: Control) -> str:
    """Where peers reach this agent's ranks: at the address that its own connections to other agents have."""
    own = _first_outside(control.addresses)
    offers = await _tell(control, "addresses", own)
    at_root = str(offers[control.topology.root])
    # Who reaches the root through loopback is on its host, and those on others reach it as they reach the root.
    return at_root if _is_loopback(own) else own


def network(host: str, spread: bool) -> dict[str, str]:
    """Variables by which vLLM and Gloo use the same network for what they connect within Attention.

    Left alone they ask where the host's own name leads, and which way the internet is. ``host`` is where peers reach
    these ranks; ``spread`` says that the role's ranks are with several agents, else they meet on loopback.
    """
    if not spread or _is_loopback(host):
        return {"GLOO_SOCKET_IFNAME": interface_of(LOOPBACK)}
    return {"GLOO_SOCKET_IFNAME": interface_of(host), "VLLM_HOST_IP": host}


def interface_of(address: str) -> str:
    """The network interface that has this address. Raises ConfigError when there is none any more."""
    for name, found in psutil.net_if_addrs().items():
        if any(one.address.partition("%")[0] == address.partition("%")[0] for one in found):
            return name
    raise ConfigError(f"no network interface of this host has the address {address}")


def _first_outside(addresses: Sequence[str]) -> str:
    return next((address for address in addresses if not _is_loopback(address)), LOOPBACK)


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


async def _tell(control: Control, key: str, value: Any) -> Mapping[Rank, Any]:
    """One value of each agent, by its ranks."""
    return await control.exchange(key, dict.fromkeys(control.ranks, value), EXCHANGE_S)


# ---- shared memory ---------------------------------------------------------------------------------------------


async def _missing(control: Control, directory: Path) -> str:
    """What keeps ranks of different roles from sharing memory; "" when nothing does."""
    with _written(directory / _probe_name(control.epoch, control.ranks[0])) as nonce:
        await _tell(control, "probe written", True)
        found = {
            str(rank): _read(directory / _probe_name(control.epoch, ranks_of(hello)[0]))
            for hello in control.hellos
            if hello.role != control.hello.role
            for rank in ranks_of(hello)
        }
        told = await _tell(control, "probe read", {"wrote": nonce, "found": found})
    for reader in control.topology.ranks:
        for writer, nonce in told[reader]["found"].items():
            if not nonce or nonce != told[Rank.parse(writer)]["wrote"]:
                return f"{reader} did not find in its {directory} what {writer} wrote to its own"
    return ""


def _probe_name(epoch: str, rank: Rank) -> str:
    """A name of the epoch: whoever survives sweeps it with everything else of that epoch."""
    return segment_name(epoch, f"probe-{rank}".lower())


@contextlib.contextmanager
def _written(path: Path) -> Iterator[str]:
    """A file with the yielded nonce while the block runs; "" when it cannot be written.

    Removes what killed agents left first.
    """
    try:
        sweep_probes(path.parent)
        descriptor = _create(path)
    except OSError as error:
        log.warning("cannot write to %s: %s", path.parent, error.strerror)
        yield ""
        return
    try:
        nonce = secrets.token_hex(_NONCE_BYTES // 2)
        written = _fill(descriptor, nonce)
        yield nonce if written else ""
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _create(path: Path) -> int:
    """A new file of this user, locked for as long as this process holds it open."""
    for _ in range(_ATTEMPTS):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)
    raise OSError(0, "what is written there is removed at once")


def _fill(descriptor: int, nonce: str) -> bool:
    try:
        return os.write(descriptor, nonce.encode()) == len(nonce)
    except OSError as error:
        log.warning("cannot write to shared memory: %s", error.strerror)
        return False


def _read(path: Path) -> str:
    """The nonce in a file of another agent; "" when there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(descriptor, _NONCE_BYTES).decode("ascii", "replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def sweep_probes(directory: Path = DIRECTORY) -> list[str]:
    """Remove the files of agents that were killed before they could do it themselves; their lock is free. Returns the
    names."""
    removed = []
    for path in directory.glob(_PROBES):
        with contextlib.suppress(OSError):  # somebody else's, in use, or gone already
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                found = os.fstat(descriptor)
                if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    # Its owner may have removed it since it was opened, and what has its name now is another's.
                    if os.fstat(descriptor).st_nlink:
                        path.unlink()
                        removed.append(path.name)
            finally:
                os.close(descriptor)
    return removed
