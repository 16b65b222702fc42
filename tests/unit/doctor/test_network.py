# SPDX-License-Identifier: Apache-2.0
"""Ports and interfaces."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from afd.doctor import network
from afd.doctor.check import FAIL, OK, SKIP, WARN
from afd.doctor.subject import Subject
from afd.errors import ConfigError
from afd.launch.free_ports import free_port
from tests.unit.doctor.roots import Root


def test_a_port_in_use_is_named_with_its_owner() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = int(taken.getsockname()[1])
        found = network.agent_port.run(Subject(agent_port=number))
    assert found.status == FAIL and f"in use by pid {os.getpid()}" in found.found
    assert network.agent_port.run(Subject(agent_port=free_port())).status == OK


def test_an_agent_port_in_use_at_another_address_than_the_loopback_one_is_found() -> None:
    with socket.create_server(("127.0.0.5", 0)) as taken:
        host, number = taken.getsockname()
        assert (
            network.agent_port.run(Subject(agent_port=number)).status == FAIL
        )  # all addresses: this one, too
        assert network.agent_port.run(Subject(agent_host=host, agent_port=number)).status == FAIL
        assert network.agent_port.run(Subject(agent_host="127.0.0.1", agent_port=number)).status == OK


def test_an_agent_host_that_is_not_this_ones_is_a_fault() -> None:
    found = network.agent_port.run(Subject(agent_host="192.0.2.1"))
    assert found.status == FAIL and "192.0.2.1 is no address of this host" in found.found


def test_the_rendezvous_on_another_host_is_not_judged_here() -> None:
    assert network.port("192.0.2.1", 9310, elsewhere=True).status == SKIP


def test_a_host_that_has_no_address_is_a_warning() -> None:
    assert network.port("no such host", 9310).status == WARN


def test_a_wrong_configuration_fails_with_its_message() -> None:
    found = network.config.run(Subject(config=ConfigError("flag --afd-port: 0 is not a port")))
    assert (found.status, found.found) == (FAIL, "flag --afd-port: 0 is not a port")
    assert network.rendezvous_port.run(Subject(config=ConfigError("x"))).status in (OK, FAIL)


@pytest.mark.parametrize(
    ("variable", "value", "status"),
    [
        ("HCCL_SOCKET_IFNAME", "eth", OK),
        ("HCCL_SOCKET_IFNAME", "=eth0", OK),
        ("HCCL_SOCKET_IFNAME", "=eth", FAIL),
        ("HCCL_SOCKET_IFNAME", "^docker", OK),
        ("HCCL_SOCKET_IFNAME", "eth,bond", FAIL),
        ("GLOO_SOCKET_IFNAME", "eth0,lo", OK),
        ("GLOO_SOCKET_IFNAME", "eth0,eth1", FAIL),
        ("TP_SOCKET_IFNAME", "eth1", FAIL),
        ("TP_SOCKET_IFNAME", "", OK),
    ],
)
def test_interfaces_are_compared_as_their_readers_do(
    tmp_path: Path, variable: str, value: str, status: str
) -> None:
    root = Root(tmp_path, "a2")
    root.env[variable] = value
    found = network.interfaces.run(root.subject())
    assert found.status == status and (status == OK or f"unset {variable}" in found.remedy)
