# SPDX-License-Identifier: Apache-2.0
"""FFN on one host and Attention on another, as far as one Linux can be two: ``python -m tests.system.two_hosts``.

Each host is a network namespace with its own loopback, its own /dev/shm and one end of a cable. ``near`` runs FFN,
makes the other host and the cable, and prints what both found as JSON, on the last line; ``far`` runs Attention there.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from afd.testing.completions import Answer, ask_all
from afd.testing.questions import one_at_a_time, sampled
from afd.testing.reference import Reference
from afd.testing.stack import Group, Layout, SharedLauncher, status
from afd.topology import Role
from tests.system.conftest import layout
from tests.system.rig import Client, decoding, differences, until

SHM = Path("/dev/shm")
NEAR, FAR, MASK = "10.77.0.1", "10.77.0.2", "/24"
PORTS = {"api": 8010, "rendezvous": 9310, "ffn": 9311, "attention": 9312}
UNSHARE = ("unshare", "--mount", "--net")
READY_S = 240.0
"""Each host imports vLLM for itself."""


def run(*argv: str) -> None:
    """Run a command of the system's."""
    subprocess.run(argv, check=True)


def chosen(directory: Path) -> Layout:
    """1A1F, whose rendezvous is at the near end of the cable, with a token."""
    token = directory / "token"
    return layout(afd_args=("--afd-host", NEAR, "--afd-auth-token-file", str(token)))


def own_shared_memory() -> None:
    run("mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(SHM))


def listening() -> list[str]:
    """Addresses at which anything on this host listens, without loopback."""
    lines = subprocess.run(["ss", "-Hltn"], check=True, capture_output=True, text=True).stdout.splitlines()
    found = {line.split()[3].rpartition(":")[0] for line in lines}
    return sorted(found - {"127.0.0.1", "[::1]"})


def left() -> list[str]:
    return sorted(path.name for path in SHM.iterdir())


def report(group: Group, role: Role) -> dict[str, Any]:
    """What one side says of itself while it serves."""
    process = group.roles[role]
    body = asyncio.run(status(process.agent_url))
    lines = [line for line in process.text().splitlines() if "transport " in line]
    return {
        "transport": body["transport"],
        "reason": lines[0] if lines else "",
        "listening": listening(),
    }


# ---- the cable -----------------------------------------------------------------------------------------------


def begin_near(directory: Path) -> None:
    """What the near host has before anything starts: loopback, memory, the token of both, a directory for each."""
    run("ip", "link", "set", "lo", "up")
    own_shared_memory()
    (directory / "token").write_text("a secret of both hosts\n")
    (directory / "token").chmod(0o600)
    for place in ("near", "far"):
        (directory / place).mkdir()


@contextmanager
def other_host(module: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The far host, running a module, at the other end of a cable. Killed at the end."""
    other = subprocess.Popen(
        [*UNSHARE, sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: _is_elsewhere(other.pid), 10, "the other host")
        run("ip", "link", "add", "near", "type", "veth", "peer", "name", "far", "netns", str(other.pid))
        run("ip", "addr", "add", f"{NEAR}{MASK}", "dev", "near")
        run("ip", "link", "set", "near", "up")
        yield other
    finally:
        other.kill()
        other.wait()


def tell(other: subprocess.Popen[str], word: str = "") -> None:
    """Say a line to the far host: the first one says that the cable is there."""
    assert other.stdin is not None
    other.stdin.write(f"{word}\n")
    other.stdin.flush()


def begin_far() -> None:
    """What the far host does first: its loopback and memory, then wait for the cable."""
    run("ip", "link", "set", "lo", "up")
    own_shared_memory()
    sys.stdin.readline()
    run("ip", "addr", "add", f"{FAR}{MASK}", "dev", "far")
    run("ip", "link", "set", "far", "up")


# ---- the far host --------------------------------------------------------------------------------------------


def far(deed: str, directory: Path) -> None:
    """Attention, and the native vLLM it is compared with. Begins when the cable is there; prints one line of JSON."""
    begin_far()
    mine, directory = chosen(directory), directory / "far"
    launcher = SharedLauncher(directory, mine.runner)
    try:
        launcher.wait()
        questions = [*one_at_a_time()[:4], *sampled()[:2]]
        native = asyncio.run(native_answers(mine, directory, launcher.path, questions))
        with Group(mine, directory, launcher.path, ports=PORTS) as group:
            group.start(Role.ATTENTION)
            asyncio.run(group.ready(READY_S))
            found = report(group, Role.ATTENTION)
            found["wrong"] = differences(group.attention.api_url, questions, native)
            found["tokens"] = sum(len(answer.tokens) for answer in native)
            if deed == "cut":
                Client(group.attention.api_url).start()
                decoding(group.attention)
                run("ip", "link", "set", "far", "down")
            else:
                group.attention.signal(signal.SIGTERM)
            cut = time.monotonic()
            found["code"] = group.attention.wait(30)
            found["seconds"] = time.monotonic() - cut
            found["error"] = group.attention.error()
    finally:
        launcher.close()
    print(json.dumps({**found, "left": left()}), flush=True)


async def native_answers(mine: Layout, directory: Path, launcher: str, questions: list[Any]) -> list[Answer]:
    reference = await Reference.start(mine, directory, launcher)
    try:
        await reference.ready(60)
        return await ask_all(reference.url, mine.served, questions, concurrency=1, timeout_s=60)
    finally:
        await reference.close()


# ---- the near host -------------------------------------------------------------------------------------------


def near(deed: str, directory: Path) -> None:
    """FFN, the cable, and the account of both hosts."""
    begin_near(directory)
    with other_host("tests.system.two_hosts", "far", deed, str(directory)) as other:
        tell(other)
        with Group(chosen(directory), directory / "near", ports=PORTS) as group:
            group.start(Role.FFN)
            asyncio.run(group.ready(READY_S))
            found = report(group, Role.FFN)
            found["code"] = group.ffn.wait(120)
            found["error"] = group.ffn.error()
        said, _ = other.communicate(timeout=60)
        assert other.returncode == 0
    print(json.dumps({"ffn": {**found, "left": left()}, "attention": json.loads(said.splitlines()[-1])}))


def _is_elsewhere(pid: int) -> bool:
    """Whether a process is in a network namespace of its own by now."""
    return os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")


if __name__ == "__main__":
    {"near": near, "far": far}[sys.argv[1]](sys.argv[2], Path(sys.argv[3]))
