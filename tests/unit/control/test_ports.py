# SPDX-License-Identifier: Apache-2.0
"""Whose port is it?"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from afd.control.ports import listen, owner
from afd.errors import ConfigError
from afd.testing.free_ports import free_port


def test_the_owner_of_a_port_is_named_with_pid_and_command() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        found = owner(taken.getsockname()[1])
    assert found.startswith(f"pid {os.getpid()} (")
    assert "python" in found


def test_a_port_without_an_owner_is_said_to_have_none_any_more() -> None:
    assert owner(free_port()) == "a process that is gone by now, or one in another container"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_user_who_may_not_see_the_owner_is_told_so() -> None:
    # Loaded before it changes the user: the checkout may be closed to others.
    code = (
        "import encodings.idna, os, sys\n"
        "from afd.control.ports import listen\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "try: listen('127.0.0.1', int(sys.argv[1]), 'the agent port', 'choose another')\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        found = subprocess.run(
            [sys.executable, "-c", code, port],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    expected = (
        f"the agent port needs 127.0.0.1:{port}, which is in use by a process that this user may not see"
    )
    assert found.stdout.strip() == f"ConfigError {expected}; choose another"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may use every port")
def test_a_port_that_needs_privileges_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on 127.0.0.1:1: Permission denied"):
        listen("127.0.0.1", 1, "the agent port", "choose another")


def test_a_port_is_free_again_as_soon_as_its_connections_are_cut() -> None:
    port = free_port()
    for _ in range(3):
        with (
            listen("127.0.0.1", port, "the agent port", "choose another") as server,
            socket.create_connection(("127.0.0.1", port)),
        ):
            server.accept()[0].close()
