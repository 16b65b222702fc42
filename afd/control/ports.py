# SPDX-License-Identifier: Apache-2.0
"""Listening on a port that the user chose, with an answer to "who has it?"."""

from __future__ import annotations

import errno
import logging
import socket

import psutil

from afd.control.channel import format_address
from afd.errors import ConfigError

log = logging.getLogger(__name__)


def listen(host: str, port: int, what: str, advice: str, *, elsewhere: bool = False) -> socket.socket:
    """A listening TCP socket at ``host``:``port`` (0: any port) for ``what``.

    With ``elsewhere`` a host that is no address of this machine (a service name, or a name that does not resolve
    yet) means all addresses. Raises :class:`ConfigError` naming the owner of a port in use, with ``advice``.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
    except OSError as error:
        if not elsewhere:
            raise ConfigError(f"{what} cannot listen on {host}: {error}; {advice}") from error
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
        raise ConfigError(f"{what} cannot listen on {where}: {error.strerror}; {advice}") from error


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
                command = " ".join(psutil.Process(connection.pid).cmdline())
            except psutil.Error:
                command = "its command line is hidden"
            return f"pid {connection.pid} ({command[:160]})"
    return "a process that is gone by now, or one in another container"
