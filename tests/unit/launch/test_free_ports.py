# SPDX-License-Identifier: Apache-2.0
"""Ports for groups and tests."""

from __future__ import annotations

import socket

import pytest

from afd.launch import free_ports
from afd.launch.free_ports import candidates, free_port


def test_no_port_is_given_twice() -> None:
    ports = [free_port() for _ in range(500)]
    assert len(set(ports)) == len(ports)


def test_a_port_that_somebody_listens_on_at_any_address_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(free_ports, "candidates", lambda first, last: range(port, port + 1))
        with pytest.raises(OSError, match=f"no free TCP port between {port} and {port}"):
            free_port()


def test_ports_of_outgoing_connections_are_avoided() -> None:
    assert candidates(32_768, 60_999) == range(10_000, 32_768)
    assert candidates(10_240, 50_000) == range(50_001, 65_536)


def test_every_port_may_be_given_where_outgoing_connections_use_them_all() -> None:
    assert candidates(1024, 65_535) == range(10_000, 65_536)
