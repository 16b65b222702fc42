# SPDX-License-Identifier: Apache-2.0
"""Whose port is it?"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from afd.control import ports
from afd.control.ports import listen, owner, privileged
from afd.errors import ConfigError
from afd.launch.free_ports import free_port


def test_the_owner_of_a_port_is_named_with_pid_and_command() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        found = owner(taken.getsockname()[1])
    assert found.startswith(f"pid {os.getpid()} (")
    assert "python" in found


def test_a_port_without_an_owner_is_said_to_have_none_any_more() -> None:
    assert owner(free_port()) == "a process that is gone by now, or one in another container"


# Listens, and lets nobody but root see its open files.
HIDDEN = """
import ctypes, socket, time
PR_SET_DUMPABLE = 4
assert ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
time.sleep(60)
"""

# Everything is loaded before the user changes: the checkout may be closed to others.
AS_A_USER = """
import encodings.idna, os, sys
from afd.control.ports import listen
if os.geteuid() == 0:
    os.setgid(65534); os.setuid(65534)
try: listen("127.0.0.1", int(sys.argv[1]), "the agent port", "choose another")
except Exception as error: print(type(error).__name__, error)
"""


def as_a_user(port: int) -> str:
    """What somebody who is not root hears about listening on ``port``."""
    found = subprocess.run(
        [sys.executable, "-c", AS_A_USER, str(port)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[3]), *sys.path])},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return found.stdout.strip()


def test_a_user_who_may_not_see_the_owner_is_told_so() -> None:
    with subprocess.Popen([sys.executable, "-c", HIDDEN], stdout=subprocess.PIPE, text=True) as taken:
        try:
            assert taken.stdout is not None
            port = int(taken.stdout.readline())
            said = as_a_user(port)
        finally:
            taken.kill()
    expected = (
        f"the agent port needs 127.0.0.1:{port}, which is in use by a process that this user may not see"
    )
    assert said == f"ConfigError {expected}; choose another"


def test_a_port_for_root_is_refused_with_the_lowest_number_for_others() -> None:
    first = int(ports._UNPRIVILEGED.read_text())
    expected = f"the agent port cannot listen on 127.0.0.1:{first - 1}: ports below {first} are for root"
    if first > 1:
        assert as_a_user(first - 1) == f"ConfigError {expected}; choose {first} or more"
    else:  # as in many containers
        assert "are for root" not in as_a_user(1)


@pytest.mark.parametrize(
    ("content", "port", "says"),
    [
        ("1024\n", 80, "ports below 1024 are for root; choose 1024 or more"),
        ("90\n", 89, "ports below 90 are for root; choose 90 or more"),
        (
            "0\n",
            80,
            "this user may not listen on port 80 (a rule of this machine, such as SELinux); choose another",
        ),
        ("", 80, "ports below 1024 are for root; choose 1024 or more"),
    ],
)
def test_which_ports_are_for_root_is_a_setting_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, port: int, says: str
) -> None:
    (tmp_path / "first").write_text(content)
    monkeypatch.setattr(ports, "_UNPRIVILEGED", tmp_path / "first")
    assert privileged(port) == says


@pytest.mark.parametrize("port", [-1, 65536, 99999, 10**30])
def test_a_number_that_is_no_port_is_refused(port: int) -> None:
    with pytest.raises(ConfigError, match=rf"^the agent port: {port} is not a port \(1-65535\); choose"):
        listen("127.0.0.1", port, "the agent port", "choose another")


@pytest.mark.parametrize("host", ["a..b", "x" * 64, "no such host", "192.0.2.1"])
def test_a_host_that_is_not_here_is_refused_with_advice_about_the_host(host: str) -> None:
    with pytest.raises(ConfigError, match=r"^the agent port cannot listen on .*; give (an address|one, or)"):
        listen(host, free_port(), "the agent port", "choose another")


def test_a_port_is_free_again_as_soon_as_its_connections_are_cut() -> None:
    port = free_port()
    for _ in range(3):
        with (
            listen("127.0.0.1", port, "the agent port", "choose another") as server,
            socket.create_connection(("127.0.0.1", port)),
        ):
            server.accept()[0].close()
