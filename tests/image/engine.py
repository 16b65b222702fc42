# SPDX-License-Identifier: Apache-2.0
"""Containers of the image under test, through the command line of docker or podman."""

from __future__ import annotations

import json
import os
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from afd.errors import PeerAbsentError, RoleFailedError
from afd.testing.stack import POLL_S

API, AGENT = 8000, 9300
STARTS_S = 300.0
_SHORT_S = 120.0

# In the container: kills the agent of a role, as nobody who asks politely would.
_KILL = """
import os, psutil, signal, sys
(agent,) = (p for p in psutil.process_iter() if p.cmdline()[3:5] == ["serve", sys.argv[1]])
os.kill(agent.pid, signal.SIGKILL)
"""


@dataclass(frozen=True)
class Engine:
    """``image`` is the reference of the image under test."""

    name: str
    image: str

    def __call__(self, *words: str, timeout: float = _SHORT_S) -> subprocess.CompletedProcess[str]:
        return subprocess.run([self.name, *words], capture_output=True, text=True, timeout=timeout)

    def said(self, *words: str) -> str:
        """What a command of the engine prints. Raises RoleFailedError with its error."""
        done = self(*words)
        if done.returncode:
            raise RoleFailedError(
                f"{self.name} {words[0]} ended with {done.returncode}: {done.stderr.strip()}"
            )
        return done.stdout.strip()

    def run(
        self, *command: str, options: Sequence[str] = (), timeout: float = 600.0
    ) -> subprocess.CompletedProcess[str]:
        """A container that ends by itself; a deadline ends it, too."""
        name = fresh("run")
        words = ["run", "--rm", "--name", name, "--shm-size", "1g", *options, self.image, *command]
        try:
            done = self(*words, timeout=timeout)
        finally:
            self("rm", "--force", name)
        print(done.stdout[-4000:], done.stderr[-4000:])
        return done

    def python(self, script: str, *words: str, options: Sequence[str] = ()) -> str:
        """What a script prints in the image's Python, without the entry point."""
        done = self.run("-c", script, *words, options=("--entrypoint", "python", *options), timeout=_SHORT_S)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def inspect(self) -> dict[str, Any]:
        (found,) = json.loads(self.said("image", "inspect", self.image))
        return found  # type: ignore[no-any-return]

    @contextmanager
    def network(self) -> Iterator[str]:
        """A network of its own, with names."""
        name = fresh("net")
        self.said("network", "create", name)
        try:
            yield name
        finally:
            self("network", "rm", name)


class Container:
    """A container that goes on. A context manager: leaving it removes it."""

    def __init__(self, engine: Engine, *command: str, options: Sequence[str] = (), name: str = "") -> None:
        self.engine = engine
        self.name = name or fresh("node")
        words = ["run", "--detach", "--name", self.name, "--shm-size", "1g", *options, engine.image, *command]
        engine.said(*words)

    def __enter__(self) -> Container:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            print(f"--- {self.name}\n{self.text()[-6000:]}")
        self.engine("rm", "--force", "--volumes", self.name)

    def text(self) -> str:
        """Everything that was said, in order."""
        done = subprocess.run(
            [self.engine.name, "logs", self.name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        return done.stdout

    def exec(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.engine("exec", self.name, *words)

    def url(self, port: int = API) -> str:
        """Where a published port is, from outside."""
        first = self.engine.said("port", self.name, f"{port}/tcp").splitlines()[0]
        host, _, number = first.rpartition(":")
        return f"http://{'127.0.0.1' if host in ('0.0.0.0', '[::]', '::') else host}:{number}"

    def exit_code(self) -> int | None:
        """None while it runs."""
        state = json.loads(self.engine.said("inspect", "--format", "{{json .State}}", self.name))
        return None if state["Running"] else int(state["ExitCode"])

    def wait(self, timeout_s: float) -> int:
        """The exit code. Raises RoleFailedError when it runs on after ``timeout_s``."""
        try:
            return int(self.engine("wait", self.name, timeout=timeout_s).stdout)
        except subprocess.TimeoutExpired:
            raise RoleFailedError(f"{self.name} did not end within {timeout_s:.0f} s") from None

    def stop(self, seconds: int = 30) -> int:
        self.engine.said("stop", "--time", str(seconds), self.name)
        return self.wait(10)

    def kill_agent(self, role: str) -> None:
        done = self.exec("python", "-c", _KILL, role)
        assert done.returncode == 0, done.stderr

    def healthy(self, *words: str) -> tuple[int, str]:
        """What the health check of the image says."""
        done = self.exec("afd-healthcheck", *words)
        return done.returncode, done.stdout.strip()

    def ready(self, timeout_s: float = STARTS_S) -> float:
        """Wait until every agent in it is ready; the seconds that took. Raises AFDError."""
        started = time.monotonic()
        while self.healthy("--ready")[0] != 0:
            code = self.exit_code()
            if code is not None:
                raise RoleFailedError(f"{self.name} ended with {code} instead of being ready")
            if time.monotonic() > started + timeout_s:
                raise PeerAbsentError(f"{self.name} was not ready within {timeout_s:.0f} s")
            time.sleep(POLL_S)
        return time.monotonic() - started


def fresh(kind: str) -> str:
    return f"afd-test-{kind}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
