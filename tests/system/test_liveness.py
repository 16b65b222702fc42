# SPDX-License-Identifier: Apache-2.0
"""Slow is not dead: heartbeats survive held interpreter locks and a busy machine. A stopped agent is missed in time."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from afd.testing.completions import Answer, Question
from afd.testing.stack import Group
from afd.topology import Role
from tests.system.conftest import Groups, layout
from tests.system.driver import driving
from tests.system.rig import Client, Traces, decoding, deed, differences, ends, start, until
from tests.system.variants import HOLD_S, ORDERS_DIRECTORY

HEARTBEAT_S = 0.66
"""The default of timeouts.heartbeat_s."""
BUSY_S = 8.0

Proofs = Callable[[str], tuple[list[Question], list[Answer]]]
OUTAGES = {
    Role.FFN: driving(target="tests.system.variants.outages:ffn"),
    Role.ATTENTION: driving(worker="tests.system.variants.outages.Worker"),
}


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """That many processes compute all the time."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def _well(group: Group) -> None:
    """No role has ended, and no agent took another for dead or itself for stopped."""
    for role in group.roles.values():
        assert role.exit_code is None, role.error()
        assert "ends:" not in role.text()


@pytest.mark.parametrize(
    "order", [pytest.param("ffn holds", marks=pytest.mark.pairwise), pytest.param("attention holds")]
)
def test_a_rank_that_holds_its_interpreter_lock_for_five_seconds_is_not_lost(
    groups: Groups, proofs: Proofs, tmp_path: Path, order: str
) -> None:
    group = groups(layout("v2"), programs=OUTAGES, environment={ORDERS_DIRECTORY: str(tmp_path)})
    start(group)
    client = Client(group.attention.api_url).start()
    decoding(group.attention)
    (tmp_path / order).touch()
    taken = until(lambda: not (tmp_path / order).exists(), 10, "the order was taken")
    answers = client.answers(60)
    assert time.monotonic() - taken > HOLD_S
    assert [len(answer.tokens) for answer in answers] == [
        question.max_tokens for question in client.questions
    ]
    _well(group)
    assert differences(group.attention.api_url, *proofs("v2")) == []
    assert group.stop() == {Role.FFN: 0, Role.ATTENTION: 0}


def test_four_busy_processes_on_the_machine_lose_nobody(groups: Groups, proofs: Proofs) -> None:
    group = groups()
    start(group)
    client = Client(group.attention.api_url).start()
    decoding(group.attention)
    with busy(4):
        time.sleep(BUSY_S)
        _well(group)
    assert [len(answer.tokens) for answer in client.answers(60)] == [q.max_tokens for q in client.questions]
    _well(group)
    assert differences(group.attention.api_url, *proofs("v2")) == []
    assert group.stop() == {Role.FFN: 0, Role.ATTENTION: 0}


@pytest.mark.parametrize("stopped", list(Role), ids=str)
def test_a_stopped_agent_is_noticed_by_its_silence(groups: Groups, stopped: Role) -> None:
    group = groups()
    start(group)
    client = Client(group.attention.api_url).start()
    decoding(group.attention)
    traces = Traces.of(group)
    other = Role.FFN if stopped is Role.ATTENTION else Role.ATTENTION
    at = deed(group.roles[stopped].process.pid, signal.SIGSTOP)
    group.roles[other].wait(15)
    noticed_s = time.monotonic() - at
    words = group.roles[other].error()
    print(f"{stopped} agent stopped: {other} exits after {noticed_s:.2f} s; {words}")
    assert group.roles[other].exit_code == 70
    assert noticed_s < 3 * HEARTBEAT_S + 2
    assert "its agent" in words and f"pid {group.roles[stopped].process.pid}" in words
    assert "gave no sign of life" in words
    if stopped is Role.FFN:
        client.join(1)
    # When it goes on it hears that it was given up, or finds itself alone, and ends.
    os.kill(group.roles[stopped].process.pid, signal.SIGCONT)
    assert group.roles[stopped].wait(15) in (70, 71)
    client.join(5)
    assert traces.left() == []


def test_a_rank_that_makes_no_progress_is_lost_after_step_s(groups: Groups) -> None:
    step_s = 3.0
    group = groups(layout(afd_args=("--afd-timeouts-step-s", str(step_s))))
    start(group)
    client = Client(group.attention.api_url).start()
    decoding(group.attention)
    traces = Traces.of(group)
    found = ends(group, deed(traces.pids["rank F0"], signal.SIGSTOP))
    print(f"rank F0 stopped: {found}; {group.attention.error()}")
    assert found.codes == {Role.FFN: 71, Role.ATTENTION: 70}
    assert step_s - 0.5 < found.seconds[Role.ATTENTION] < step_s + 2
    assert f"F0 made no progress for {step_s:g} s" in group.attention.error()
    assert group.ffn.error() == group.attention.error()
    client.join(5)
    assert traces.left() == []


@pytest.mark.parametrize("name", ["API server", "EngineCore", "Worker"])
def test_requests_for_which_nothing_is_computed_end_the_role(groups: Groups, name: str) -> None:
    """Stopped while nothing is announced, so that no rank waits for another."""
    step_s = 2.0
    group = groups(layout(afd_args=("--afd-timeouts-step-s", str(step_s))))
    start(group)
    traces = Traces.of(group)
    at = deed(traces.pids[name], signal.SIGSTOP)
    client = Client(group.attention.api_url).start()
    found = ends(group, at, timeout_s=20)
    print(f"{name} stopped: {found}; {group.attention.error()}")
    assert found.codes == {Role.FFN: 70, Role.ATTENTION: 71}
    assert found.seconds[Role.FFN] < 2 * step_s + 3
    says = (
        "A0: the API server has not answered for" if name == "API server" else "and nothing was computed for"
    )
    for role in group.roles.values():
        assert role.error().startswith("A0: ") and says in role.error()
    client.join(5)
    assert traces.left() == []


def test_a_client_that_does_not_read_its_answer_is_no_failure(groups: Groups, proofs: Proofs) -> None:
    group = groups(layout(afd_args=("--afd-timeouts-step-s", "2")))
    start(group)
    address = urllib.parse.urlsplit(group.attention.api_url)
    with socket.create_connection((address.hostname, address.port)) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        body = json.dumps(
            {"model": "afd", "prompt": "x", "max_tokens": 400, "stream": True, "logprobs": 5}
        ).encode()
        slow.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            + f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        time.sleep(8)
        _well(group)
    assert differences(group.attention.api_url, *proofs("v2")) == []
    assert group.stop() == {Role.FFN: 0, Role.ATTENTION: 0}
