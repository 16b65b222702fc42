# SPDX-License-Identifier: Apache-2.0
"""Listening on a port that the user chose, with an answer to "who has it?"."""

from __future__ import annotations

import errno
import logging
import re
import socket
from pathlib import Path

import psutil

from afd.config import kinds
from afd.control.channel import format_address
from afd.errors import ConfigError

log = logging.getLogger(__name__)

_SECRET = re.compile(r"(--?[\w.-]*(?:key|token|secret|password)[\w.-]*[= ])\S+", re.IGNORECASE)
"""A word of a command line that its flag says is nobody's business."""
_UNPRIVILEGED = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")


def listen(host: str, port: int, what: str, advice: str, *, elsewhere: bool = False) -> socket.socket:
    """A listening TCP socket at ``host``:``port`` (0: any port) for ``what``.

    With ``elsewhere`` a host that is no address of this machine (a service name, or a name that does not resolve
    yet) means all addresses. Raises :class:`ConfigError`: for a number that is no port, a port in use with its owner
    and ``advice``, and one that this user may not listen on.
    """
    if port != 0:
        try:
            kinds.PORT.read(port)
        except ValueError as error:
            raise ConfigError(f"{what}: {error}; {advice}") from None
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
    except (OSError, UnicodeError) as error:  # the latter for a label that is empty or too long
        if not elsewhere:
            raise ConfigError(
                f"{what} cannot listen on {host}: no address of this machine has that name ({error}); give an address"
            ) from error
        log.warning("%s: %s does not resolve (%s); listening on all addresses", what, host, error)
        family, address = socket.AF_INET, ("", port)
    try:
        return socket.create_server((str(address[0]), port), family=family, backlog=256)
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL and elsewhere:
            log.info("%s: %s is no address of this machine; listening on all addresses", what, host)
            return listen("::" if family == socket.AF_INET6 else "0.0.0.0", port, what, advice)
        where = format_address(host, port)
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(f"{what} needs {where}, which is in use by {owner(port)}; {advice}") from error
        if error.errno == errno.EACCES:
            raise ConfigError(f"{what} cannot listen on {where}: {privileged(port)}") from error
        if error.errno == errno.EADDRNOTAVAIL:
            raise ConfigError(
                f"{what} cannot listen on {where}: {host} is no address of this machine; give one, or 0.0.0.0 for all"
            ) from error
        raise ConfigError(f"{what} cannot listen on {where}: {error.strerror}; {advice}") from error


def privileged(port: int) -> str:
    """Why this user may not listen on ``port``, and what to do."""
    try:
        first = int(_UNPRIVILEGED.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        first = 1024
    if port >= first:
        return f"this user may not listen on port {port} (a rule of this machine, such as SELinux); choose another"
    return f"ports below {first} are for root; choose {first} or more"


def owner(port: int) -> str:
    """Who listens on TCP ``port``, as "pid 12 (python server.py)", as far as this user may know."""
    hidden = "a process that this user may not see"
    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.AccessDenied, OSError):
        return hidden
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
            if connection.pid is None:
                return hidden
            try:
                command = _SECRET.sub(r"\1***", " ".join(psutil.Process(connection.pid).cmdline()))
            except psutil.Error:
                command = "its command line is hidden"
            return f"pid {connection.pid} ({command[:160]})"
    return "a process that is gone by now, or one in another container"
