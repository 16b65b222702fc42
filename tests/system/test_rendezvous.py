# SPDX-License-Identifier: Apache-2.0
"""Roles that look for each other: in either order, for a bounded time, on ports that somebody else may have."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from afd.testing.completions import Answer, Question
from afd.topology import Role
from tests.system.conftest import Groups
from tests.system.rig import census, deed, differences, ends, start, tree, until

Proofs = Callable[[str], tuple[list[Question], list[Answer]]]

RENDEZVOUS_S = 3.0
EARLIER_S = 8.0


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which this process listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.pairwise
@pytest.mark.parametrize(
    ("here", "missing"), [(Role.FFN, "A0"), (Role.ATTENTION, "F0")], ids=["attention-missing", "ffn-missing"]
)
def test_a_role_that_waits_in_vain_names_who_is_missing_at_the_deadline(
    groups: Groups, here: Role, missing: str
) -> None:
    group = groups(arguments={here: ("--afd-timeouts-rendezvous-s", str(RENDEZVOUS_S))})
    with census() as watch:
        group.start(here)
        role = group.roles[here]
        waits = until(lambda: "waiting for" in role.text(), 20, "waiting")
        found = ends(group, waits)
    print(f"{found}: {role.error()}")
    assert found.codes == {here: 69}
    assert RENDEZVOUS_S - 0.5 < found.seconds[here] < RENDEZVOUS_S + 1.5
    assert f"waiting for {missing} … 0 s of {RENDEZVOUS_S:g} s" in role.text()
    assert role.error().startswith(
        f"{missing} did not arrive at 127.0.0.1:{group.ports['rendezvous']} within 3 s"
    )
    assert set(watch.seen) == {role.process.pid}
    assert not watch.shm


@pytest.mark.parametrize(
    "order", [(Role.FFN, Role.ATTENTION), (Role.ATTENTION, Role.FFN)], ids=["ffn-first", "attention-first"]
)
def test_roles_may_start_in_either_order_seconds_apart(
    groups: Groups, proofs: Proofs, order: tuple[Role, Role]
) -> None:
    first, second = order
    questions, native = proofs("v2")
    group = groups()
    group.start(first)
    until(lambda: "waiting for" in group.roles[first].text(), 20, "waiting")
    time.sleep(EARLIER_S)
    assert "is process" not in group.roles[first].text()
    taken_s = start(group, second)
    print(f"ready {taken_s:.1f} s after the later role started")
    assert differences(group.attention.api_url, questions, native) == []
    assert group.stop() == {first: 0, second: 0}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: signal.Signals(n).name)
@pytest.mark.parametrize("here", list(Role), ids=str)
def test_a_role_that_waits_ends_with_0_when_it_is_told_to(groups: Groups, here: Role, number: int) -> None:
    group = groups()
    group.start(here)
    until(lambda: "waiting for" in group.roles[here].text(), 20, "waiting")
    found = ends(group, deed(group.roles[here].process.pid, number))
    assert found.codes == {here: 0}
    assert found.seconds[here] < 2
    assert group.roles[here].error() == ""


@pytest.mark.pairwise
@pytest.mark.parametrize(
    ("here", "port", "what"),
    [
        (Role.FFN, "rendezvous", "the rendezvous needs"),
        (Role.FFN, "ffn", "the agent port needs"),
        (Role.ATTENTION, "attention", "the agent port needs"),
        (Role.ATTENTION, "api", "the API server needs"),
    ],
    ids=["rendezvous", "agent-port-of-ffn", "agent-port-of-attention", "api"],
)
def test_a_port_in_use_is_named_with_its_owner_before_anything_else(
    groups: Groups, taken: int, here: Role, port: str, what: str
) -> None:
    group = groups()
    group.ports = {**group.ports, port: taken}
    with census() as watch:
        group.start(here)
        role = group.roles[here]
        found = ends(group, role.started)
    print(f"{found}: {role.error()}")
    assert found.codes == {here: 64}
    assert found.seconds[here] < 6
    assert f"{what} 127.0.0.1:{taken}, which is in use by pid {os.getpid()} (" in role.error()
    assert "Traceback" not in role.text()
    assert set(watch.seen) == {role.process.pid}
    # Between fork and exec the role's process has what this one listens on.
    assert watch.ports <= {group.ports[str(here)], taken}
    assert not watch.shm


@pytest.mark.parametrize("lost", list(Role), ids=str)
def test_a_role_killed_before_it_said_hello_may_be_started_again(groups: Groups, lost: Role) -> None:
    group = groups()
    other = Role.FFN if lost is Role.ATTENTION else Role.ATTENTION
    group.start(other)
    until(lambda: "waiting for" in group.roles[other].text(), 20, "waiting")
    group.start(lost)
    deed(group.roles[lost].process.pid)
    group.roles[lost].wait(5)
    group.roles[lost].close()
    assert group.roles[other].exit_code is None
    start(group, lost)
    assert group.stop() == {Role.FFN: 0, Role.ATTENTION: 0}


def test_ranks_listen_on_the_loopback_interface_only(groups: Groups) -> None:
    group = groups()
    start(group)
    listening = {
        name: {c.laddr.ip for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
        for name, process in tree(group).items()
    }
    assert listening["rank F0"] == {"127.0.0.1"}  # its step channel
    assert group.stop() == {Role.FFN: 0, Role.ATTENTION: 0}
