# SPDX-License-Identifier: Apache-2.0
"""The configuration, the ports that the roles would listen on, and network interfaces."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable

from afd.config import AFDConfig
from afd.control.ports import owner, privileged
from afd.doctor.check import Check, Finding, Group, Need, check, fail, ok, skip, warn
from afd.doctor.subject import Subject
from afd.errors import ConfigError

# Gloo wants names; HCCL and its kind want beginnings of names, "=" for a whole name and "^" for all but these.
_EXACT = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_PREFIX = ("HCCL_SOCKET_IFNAME",)


@check(
    "AFD-NET-001",
    "config",
    Group.HOST,
    about="AFD's own settings: flags, variables, and the file with the token",
    expected="legal, and a combination that is supported",
    fix="see: afd config show",
)
def config(subject: Subject) -> Finding:
    if isinstance(subject.config, ConfigError):
        return fail(str(subject.config), "")
    return ok(f"topology {subject.config.topology}, connector {subject.config.connector}")


def _settings(subject: Subject) -> AFDConfig:
    return AFDConfig() if isinstance(subject.config, ConfigError) else subject.config


@check(
    "AFD-NET-002",
    "rendezvous-port",
    Group.HOST,
    about="the port of the rendezvous, where this host is the one that listens",
    expected="free",
    fix="end what listens there, or choose another port: --afd-port",
    needs=(Need.RUNNING,),
)
def rendezvous_port(subject: Subject) -> Finding:
    settings = _settings(subject)
    return port(settings.host, settings.port, elsewhere=True)


@check(
    "AFD-NET-003",
    "agent-port",
    Group.HOST,
    about="the agent's port",
    expected="free",
    fix="end what listens there, or choose another port: --agent-port",
    needs=(Need.RUNNING,),
)
def agent_port(subject: Subject) -> Finding:
    return port(subject.agent_host, subject.agent_port)


@check(
    "AFD-NET-004",
    "api-port",
    Group.HOST,
    about="the port of the API",
    expected="free",
    fix="end what listens there, or choose another port: --port of afd serve attention",
    needs=(Need.RUNNING,),
)
def api_port(subject: Subject) -> Finding:
    return port("0.0.0.0", subject.api_port)


def port(host: str, number: int, *, elsewhere: bool = False) -> Finding:
    """Whether ``host``:``number`` can be listened on now; ``elsewhere`` says that it may be of another host."""
    where = f"{host}:{number}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        return warn(f"{host} does not resolve here: {error}", "check the name")
    with socket.socket(family, kind, protocol) as probe:
        # As the listeners of AFD and vLLM do, so that connections that are about to end do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return fail(f"{where} is in use by {owner(number)}", "end it, or choose another port")
            if error.errno == errno.EADDRNOTAVAIL:
                if elsewhere:
                    return skip(f"{host} is an address of another host; the rendezvous is there")
                return fail(f"{host} is no address of this host", "give one of its own, or 0.0.0.0 for all")
            if error.errno == errno.EACCES:
                return fail(f"{where}: {error.strerror}", privileged(number))
            return fail(f"{where}: {error.strerror}", "choose another port")
    return ok(f"{where} is free")


@check(
    "AFD-NET-005",
    "interfaces",
    Group.HOST,
    about=f"the network interfaces that {', '.join((*_PREFIX, *_EXACT))} name",
    expected="there: a group of processes does not form over one that is absent",
    fix="name an interface of this container, or unset the variable",
)
def interfaces(subject: Subject) -> Finding:
    try:
        there = sorted(os.listdir(subject.path("/sys/class/net")))
    except OSError as error:
        return skip(f"/sys/class/net cannot be read: {error.strerror}")
    others = [name for name in there if name != "lo"] or there
    for variable in (*_PREFIX, *_EXACT):
        value = subject.env.get(variable)
        if not value:
            continue
        missing = _missing(value, there, prefixes=variable in _PREFIX)
        if missing:
            told = f"{variable}={value}: no {', '.join(missing)} here, only {', '.join(there)}"
            choice = f"use: docker run --env {variable}={others[0]}" if others else "give it a network"
            return fail(told, f"unset {variable}, or {choice}")
    return ok(f"{', '.join(there) or 'none'}")


def _missing(value: str, there: Iterable[str], prefixes: bool) -> list[str]:
    names = value
    if prefixes:
        if value.startswith("^"):
            return []  # those that are not to be used; nothing has to be there
        names = value.removeprefix("=")
        if not value.startswith("="):
            return [n for n in names.split(",") if n and not any(one.startswith(n) for one in there)]
    return [name for name in names.split(",") if name and name not in there]


CHECKS: tuple[Check, ...] = (
    config,
    rendezvous_port,
    agent_port,
    api_port,
    interfaces,
)
