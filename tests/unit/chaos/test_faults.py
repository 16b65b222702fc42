# SPDX-License-Identifier: Apache-2.0
"""The deeds of chaos take effect on processes, and one that does not is no experiment."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from afd.agent.leftovers import runs
from tests.chaos import faults
from tests.chaos.faults import Connections, NoEffectError
from tests.chaos.scene import usage

PROGRAM = """
import socket, sys
if len(sys.argv) > 1:
    connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
print("there", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        yield found


@pytest.fixture
def victim(listener: socket.socket) -> Iterator[psutil.Process]:
    """A process with a connection to the listener."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(listener.getsockname()[1])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None and process.stdout.readline() == b"there\n"
        yield psutil.Process(process.pid)
        process.kill()


def test_a_process_that_was_killed_is_gone_even_while_nobody_waits_for_it(victim: psutil.Process) -> None:
    assert faults.kill(victim).proof == "the process is gone"
    assert not runs(victim)


def test_a_process_that_was_stopped_goes_on_when_that_is_healed(victim: psutil.Process) -> None:
    deed = faults.stop(victim)
    assert victim.status() == psutil.STATUS_STOPPED
    deed.heal()
    assert victim.status() != psutil.STATUS_STOPPED


def test_a_connection_is_closed_under_a_process_that_knows_nothing_of_it(
    victim: psutil.Process, listener: socket.socket
) -> None:
    peer, _ = listener.accept()
    with peer:
        found = Connections.of(victim, [psutil.Process()])
        assert found.ports == {(peer.getpeername()[1], peer.getsockname()[1])}
        deed = found.shut()
        peer.settimeout(5)
        assert peer.recv(1) == b""
        assert deed.proof == "1 connections are not established any more"
        assert runs(victim)


def test_a_connection_that_is_not_there_is_no_fault(victim: psutil.Process) -> None:
    """Not even when there is one to another process."""
    for others in ([], [victim], [psutil.Process(), victim]):
        with pytest.raises(NoEffectError, match="not one to each of the others"):
            Connections.of(victim, others)


def test_a_deed_without_effect_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "PROOF_S", 0.05)
    process = subprocess.Popen(["sleep", "60"])
    try:
        process.send_signal(signal.SIGWINCH)  # which nothing minds
        with pytest.raises(NoEffectError, match=r"not seen within 0\.05 s: the process is gone"):
            faults.Deed.now().prove(lambda: not runs(psutil.Process(process.pid)), "the process is gone")
    finally:
        process.kill()
        process.wait()


def test_sockets_and_threads_of_a_process_are_counted(victim: psutil.Process) -> None:
    assert usage(victim.pid) == (1, 1)
