# SPDX-License-Identifier: Apache-2.0
"""Both roles under one entry point, as in a container: ``afd-entrypoint single-node`` as a process of this host."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO

import aiohttp

from afd.agent.exits import describe_exit
from afd.agent.launch_protocol import LAUNCHER_VARIABLE
from afd.agent.launcher import own_session
from afd.agent.leftovers import Leftovers
from afd.errors import PeerAbsentError, RoleFailedError
from afd.launch.free_ports import free_port
from afd.testing.stack import POLL_S, Layout, answers, base_environment

_ENTRY = ("-m", "afd.container.entrypoint")


class Node:
    """``single-node`` with a layout. A context manager: leaving it kills what still runs."""

    def __init__(
        self,
        layout: Layout,
        directory: Path,
        *,
        launcher: str | None = None,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        under: Sequence[str] = (),
    ) -> None:
        """``arguments`` come after all others; ``under`` is a command that runs the entry point, such as unshare."""
        directory.mkdir(parents=True, exist_ok=True)
        self.layout = layout
        self.run_directory = directory / f"afd-{os.geteuid()}"
        self.log = directory / "node.log"
        api, agent = free_port(), _two_free_ports()
        self.api_url = f"http://127.0.0.1:{api}"
        self.agent_urls = {
            "attention": f"http://127.0.0.1:{agent}",
            "ffn": f"http://127.0.0.1:{agent + 1}",
        }
        self.argv = [
            *under,
            sys.executable,
            *_ENTRY,
            "single-node",
            layout.model,
            *layout.vllm_args,
            *layout.afd_args,
        ]
        self.argv += ["--afd-num-attention-ranks", str(layout.topology.num_attention)]
        self.argv += ["--afd-num-ffn-ranks", str(layout.topology.num_ffn), "--afd-runner", layout.runner]
        self.argv += ["--port", str(api), "--agent-port", str(agent), "--afd-port", str(free_port())]
        self.argv += [
            "--agent-host",
            "127.0.0.1",
            "--host",
            "127.0.0.1",
            "--served-model-name",
            layout.served,
        ]
        self.argv += arguments
        self.environment = {
            **base_environment(),
            "AFD_RUN_DIR": str(directory),
            **(environment or {}),
        }
        if launcher is not None:
            self.environment[LAUNCHER_VARIABLE] = launcher
        self.leftovers = Leftovers()
        self._output: IO[bytes] = open(self.log, "wb")  # noqa: SIM115 (closed in close)
        self.process = subprocess.Popen(
            self.argv,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            preexec_fn=partial(own_session, os.getpid()),
        )

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *exception: object) -> None:
        self.observe()
        self.process.kill()
        self.process.wait()
        self._output.close()
        for process in self.leftovers.alive():
            process.kill()
        self.leftovers.remove()

    @property
    def exit_code(self) -> int | None:
        return self.process.poll()

    def text(self) -> str:
        """Everything that was said."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def verdict(self) -> str:
        """The line with which it ended, "" when there is none."""
        lines = [line for line in self.text().splitlines() if line.startswith("afd-entrypoint: exit code ")]
        return lines[-1].removeprefix("afd-entrypoint: ") if lines else ""

    async def ready(self, timeout_s: float) -> None:
        """Wait until both agents are ready. Raises RoleFailedError when it ends before."""
        deadline = time.monotonic() + timeout_s
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session:
            for url in self.agent_urls.values():
                while not await answers(session, f"{url}/readyz"):
                    code = self.exit_code
                    if code is not None:
                        words = self.verdict() or "\n".join(self.text().splitlines()[-5:])
                        raise RoleFailedError(f"single-node {describe_exit(code)}: {words}")
                    if time.monotonic() > deadline:
                        raise PeerAbsentError(
                            f"single-node was not ready within {timeout_s:.0f} s; see {self.log}"
                        )
                    await asyncio.sleep(POLL_S)
        self.observe()

    def observe(self) -> None:
        """Note what runs now, and what it uses."""
        self.leftovers.observe([self.process.pid] if self.exit_code is None else [])

    def stop(self, timeout_s: float = 30.0) -> int:
        """Stop it as `docker stop` does, and return its exit code."""
        self.observe()
        self.process.send_signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def wait(self, timeout_s: float) -> int:
        """The exit code. Raises RoleFailedError when it runs on after ``timeout_s``."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise RoleFailedError(
                f"single-node did not end within {timeout_s:.0f} s; see {self.log}"
            ) from None

    def left(self, seconds: float = 3.0) -> tuple[list[str], list[str]]:
        """Processes, and files in shared memory, that are still there after at most that time."""
        deadline = time.monotonic() + seconds
        while (alive := self.leftovers.alive()) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return [self.leftovers.name(process.pid) for process in alive], self.leftovers.left()


def _two_free_ports() -> int:
    """A free port that has a free one after it."""
    while True:
        port = free_port()
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
        return port
