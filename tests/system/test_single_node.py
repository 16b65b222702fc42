# SPDX-License-Identifier: Apache-2.0
"""Both roles under one entry point and supervisord, as in a container: requests, losses, stops, and what is left."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from afd.agent.leftovers import title
from afd.testing.completions import Answer, Question
from afd.testing.node import Node
from afd.testing.stack import status
from tests.system.conftest import layout
from tests.system.rig import READY_S, STREAMED, Client, differences, until

LIMIT_S = 10.0
"""From the loss of a role to the exit of the container."""
KEY = "sk-of-a-test-that-nobody-may-read"
IN_FLIGHT = Question("in flight", "Attention keeps the cache,", max_tokens=120, stream=True)

Nodes = Callable[..., Node]
Proofs = Callable[[str], tuple[list[Question], list[Answer]]]
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def nodes(tmp_path: Path, launchers: Callable[[str], str]) -> Iterator[Nodes]:
    """Starts single-node; what still runs is killed at the end of the test."""
    with ExitStack() as scope:
        made = 0

        def node(**changes: object) -> Node:
            nonlocal made
            made += 1
            chosen = layout()
            changes.setdefault("launcher", launchers(chosen.runner))
            started = Node(chosen, tmp_path / f"node{made}", **changes)  # type: ignore[arg-type]
            return scope.enter_context(started)

        yield node


def ready(node: Node) -> Node:
    asyncio.run(node.ready(3 * READY_S))
    return node


def agent(node: Node, role: str) -> psutil.Process:
    """The process of a role's agent."""
    below = psutil.Process(node.process.pid).children(recursive=True)
    return next(process for process in below if ["serve", role] == process.cmdline()[3:5])


def steps(node: Node) -> int:
    found: int = asyncio.run(status(node.agent_urls["attention"]))["steps"]
    return found


def busy(node: Node, question: Question = STREAMED) -> Client:
    """A client whose request is being answered now."""
    client = Client(node.api_url, (question,)).start()
    before = steps(node)
    until(lambda: steps(node) > before + 4, 30, "a few steps")
    return client


def test_requests_get_native_tokens_and_a_stop_finishes_what_is_in_flight(
    nodes: Nodes, proofs: Proofs
) -> None:
    node = ready(nodes(arguments=("--shutdown-timeout", "60")))
    assert differences(node.api_url, *proofs("v2")) == []
    health = [sys.executable, "-m", "afd.container.healthcheck", "--ready"]
    checked = subprocess.run(health, env=node.environment, capture_output=True, text=True, timeout=30)
    assert (checked.returncode, checked.stdout) == (0, "healthy: attention: ready, ffn: ready\n")
    client = busy(node, IN_FLIGHT)
    assert node.stop(90) == 0, node.verdict()
    (answer,) = client.answers(5)
    assert (len(answer.tokens), answer.finish) == (120, "length")
    assert sorted(re.findall(r"(ffn|attention) stopped \(0\)", node.verdict())) == ["attention", "ffn"]
    assert node.left() == ([], [])
    assert not node.run_directory.exists()


@pytest.mark.parametrize("role", ["ffn", "attention"])
def test_an_agent_that_is_killed_ends_the_container_with_70(role: str, nodes: Nodes) -> None:
    node = ready(nodes())
    client = busy(node)
    victim = agent(node, role)
    node.observe()
    killed = time.monotonic()
    victim.kill()
    assert node.wait(30) == 70, node.text()
    seconds = time.monotonic() - killed
    print(f"\n{role}'s agent was killed: exit 70 after {seconds:.2f} s; {node.verdict()}")
    assert seconds < LIMIT_S
    assert f"{role} was killed" in node.verdict()
    client.join(5)
    assert isinstance(client.ends[STREAMED.name], Exception)
    assert node.left() == ([], [])


def test_a_role_that_says_why_it_failed_ends_the_container_with_its_code(
    nodes: Nodes, launchers: Callable[[str], str]
) -> None:
    node = ready(nodes())
    rank = int(re.findall(r"rank F0 is process (\d+)", node.text())[-1])
    killed = time.monotonic()
    os.kill(rank, signal.SIGKILL)
    assert node.wait(30) == 71
    assert time.monotonic() - killed < LIMIT_S
    assert "ffn failed (71)" in node.verdict()
    assert f"afd ffn: error: F0: the rank F0 (process {rank}) was killed by SIGKILL" in node.text()
    assert node.left() == ([], [])


def test_a_stop_while_the_roles_start_is_a_stop(nodes: Nodes) -> None:
    node = nodes()
    until(lambda: "state: rendezvous" in node.text(), 60, "a role that starts")
    assert node.stop(30) == 0, node.text()
    assert node.left() == ([], [])


def test_a_second_signal_does_not_wait_for_requests(nodes: Nodes) -> None:
    node = ready(nodes(arguments=("--shutdown-timeout", "120")))
    client = busy(node)
    node.observe()
    node.process.send_signal(signal.SIGTERM)
    until(lambda: "state: draining" in node.text(), 20, "a drain")
    hurried = time.monotonic()
    node.process.send_signal(signal.SIGTERM)
    assert node.wait(30) == 71
    assert time.monotonic() - hurried < LIMIT_S
    client.join(5)
    assert node.left() == ([], [])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ("--ffn-model", "builtin:nonsense"),
            "afd ffn: error: there is no built-in model 'builtin:nonsense'",
        ),
        (("--dbo-decode-token-threshold", "x"), "afd attention: error: "),
        (("--quantization", "fp8"), "afd attention: error: "),
    ],
)
def test_what_only_a_role_can_refuse_ends_the_container_with_64_at_once(
    arguments: tuple[str, ...], says: str, nodes: Nodes
) -> None:
    node = nodes(arguments=arguments)
    assert node.wait(60) == 64, node.text()
    assert says in node.text()
    assert "found a wrong configuration (64)" in node.verdict()
    assert node.left() == ([], [])


def test_the_supervisor_and_the_listener_may_be_killed_too(nodes: Nodes, proofs: Proofs) -> None:
    node = ready(nodes())
    below = psutil.Process(node.process.pid).children(recursive=True)
    listener = next(process for process in below if "afd.container.watch" in process.cmdline())
    listener.kill()
    until(lambda: not listener.is_running(), 5, "the end of the listener")
    assert differences(node.api_url, *proofs("v2")) == []
    supervisord = next(process for process in below if "afd.container.supervisord" in process.cmdline())
    node.observe()
    supervisord.kill()
    assert node.wait(20) == 71
    assert "supervisord ended with -9" in node.verdict()
    assert node.left(5.0) == ([], [])


def test_whole_lines_come_out_and_no_secret_is_among_them_or_in_any_file_or_command_line(
    nodes: Nodes,
) -> None:
    node = ready(nodes(arguments=("--api-key", KEY)))
    files = [path for path in node.run_directory.iterdir() if path.is_file()]
    assert {"supervisord.conf", "ffn.json", "attention.json"} <= {path.name for path in files}
    assert [path.name for path in files if KEY in path.read_text(errors="replace")] == []
    entry = psutil.Process(node.process.pid)
    everybody = [entry, *entry.children(recursive=True)]
    assert [title(process) for process in everybody if KEY in " ".join(process.cmdline())] == []
    assert node.stop() == 0
    text = node.text()
    assert KEY not in text
    ours = r"afd-entrypoint: |\d\d:\d\d:\d\d\.\d{3} afd (ffn|attention) "
    theirs = r"\((APIServer|EngineCore|A0|F0)\b|Loading safetensors checkpoint shards: |$"
    known = re.compile(f"{ours}|{theirs}")
    assert [line for line in text.splitlines() if not known.match(line)] == []


@pytest.mark.isolated
def test_as_pid_1_it_serves_on_the_cores_of_each_role_stops_and_leaves_nothing(
    nodes: Nodes, proofs: Proofs
) -> None:
    """In a PID namespace and with a /dev/shm of its own; without the shared launcher, which is outside."""
    assert shutil.which("unshare"), "unshare is not installed"
    mount = 'mount -t tmpfs tmpfs /dev/shm && exec "$@"'
    under = (
        "unshare",
        "--pid",
        "--fork",
        "--mount-proc",
        "--map-root-user",
        "--kill-child",
        "sh",
        "-c",
        mount,
        "sh",
    )
    first_core, second_core = sorted(os.sched_getaffinity(0))[:2]
    cores = {"AFD_ATTENTION_DEVICES": str(first_core), "AFD_FFN_DEVICES": str(second_core)}
    node = nodes(launcher=None, under=under, environment=cores)
    asyncio.run(node.ready(280))
    (first,) = psutil.Process(node.process.pid).children()
    for role, core in (("attention", first_core), ("ffn", second_core)):
        tree = [agent(node, role), *agent(node, role).children(recursive=True)]
        assert len(tree) > 2 and {tuple(process.cpu_affinity()) for process in tree} == {(core,)}
    assert differences(node.api_url, *proofs("v2")) == []
    node.observe()
    first.terminate()
    assert node.wait(30) == 0, node.text()
    assert node.left() == ([], [])


@pytest.mark.isolated
def test_a_user_that_nobody_knows_needs_only_a_temporary_directory(nodes: Nodes, proofs: Proofs) -> None:
    """A read-only root with a tmpfs at /tmp, no home, no name; needs the real root to become somebody else."""
    assert os.geteuid() == 0, "only root can become another user; leave it out with -m 'not isolated'"
    place = Path(sys.base_prefix)
    closed = [path for path in reversed(place.parents) if not path.stat().st_mode & 0o001]
    shown = (  # an interpreter in the home of root is for root only: show it alone
        "mkdir /tmp/python",
        f"mount --bind {place} /tmp/python",
        f"mount -t tmpfs -o mode=755 tmpfs {next(iter(closed), place)}",
        f"mkdir -p {place}",
        f"mount --bind /tmp/python {place}",
    )
    mounts = " && ".join(
        (
            *(f"mount -t tmpfs -o mode=1777 tmpfs {place}" for place in ("/dev/shm", "/tmp")),
            *(shown if closed else ()),
            "mount -o remount,bind,ro /",
            'exec setpriv --reuid 54321 --regid 54321 --clear-groups "$@"',
        )
    )
    under = (
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--mount-proc",
        "--kill-child",
        "sh",
        "-c",
        mounts,
        "sh",
    )
    environment = {"HOME": "/nonexistent", "AFD_CACHE_DIR": "", "TMPDIR": "/tmp", "AFD_RUN_DIR": ""}
    node = nodes(launcher=None, under=under, environment=environment)
    asyncio.run(node.ready(280))
    below = psutil.Process(node.process.pid).children(recursive=True)
    assert {process.uids().real for process in below[1:]} == {54321}
    assert differences(node.api_url, *proofs("v2")) == []
    below[0].terminate()
    assert node.wait(30) == 0, node.text()
    assert node.left() == ([], [])
