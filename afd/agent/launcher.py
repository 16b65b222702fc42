# SPDX-License-Identifier: Apache-2.0
"""The agent's side of the launcher (:mod:`afd.launch.server`): start it, ask it for processes, hear of exits.

The launcher is the only process that imports vLLM at start-up; everything a role runs is forked from it. An
agent starts its own, or uses the one that the environment variable ``AFD_LAUNCHER`` names (the path of its
socket): then a whole `afd smoke`, or a test session, imports vLLM once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from afd.agent.exits import describe_exit
from afd.agent.launch_protocol import LAUNCHER_VARIABLE, MAX_MESSAGE, die_with_parent
from afd.agent.streams import LONGEST, read_lines
from afd.errors import RoleFailedError

log = logging.getLogger(__name__)

FORK_S = 30.0
"""How long a fork may take."""


@dataclass
class Child:
    """A forked process. ``exited`` resolves to its exit code, negative for the signal that killed it."""

    name: str
    pid: int
    exited: asyncio.Future[int]
    tail: list[str] = field(default_factory=list)


class OwnLauncher:
    """The launcher that an agent starts for itself when it needs one. It outlives the connections to it, so that a role
    that starts again does not import vLLM again."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def at(self, path: str, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """The process that listens at ``path``, or will; started when there is none."""
        if self._process is None or self._process.poll() is not None:
            Path(path).unlink(missing_ok=True)  # of one that was killed
            self._process = start_launcher(path, environment)
        return self._process

    async def close(self) -> None:
        """End it. Twice is fine."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            await asyncio.to_thread(process.wait)


class Launcher:
    """A connection to a launcher. Closing it kills every process forked over it."""

    TAIL = 200
    """Lines of a process's output that are kept: a traceback of vLLM's API server below one of its engine."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._children: dict[int, Child] = {}
        self._starting: dict[str, asyncio.Future[int]] = {}
        self._readers: set[asyncio.Task[None]] = set()
        self.gone = False
        """Whether the launcher ended before it was let go, and its children with it."""
        connection.setblocking(False)
        asyncio.get_running_loop().add_reader(connection, self._on_event)

    @classmethod
    async def open(
        cls,
        runtime: Path,
        environment: Mapping[str, str],
        deadline_s: float,
        path: str | None = None,
        own: OwnLauncher | None = None,
    ) -> Launcher:
        """Connect to the launcher at ``path`` or that AFD_LAUNCHER names, or to ``own``, which is under ``runtime``.

        Raises RoleFailedError when it ends, or is not ready within ``deadline_s``; it is ended then, if it is our own.
        """
        process: subprocess.Popen[bytes] | None = None
        path = path or environment.get(LAUNCHER_VARIABLE)
        if path is None:
            if own is None:
                raise RoleFailedError(
                    f"no launcher to fork from: neither {LAUNCHER_VARIABLE} nor one of our own"
                )
            path = str(runtime / "launcher")
            process = own.at(path, environment)
        elif not os.path.exists(path):
            log.info("waiting for the launcher at %s (%s)", path, LAUNCHER_VARIABLE)
        try:
            return cls(await _connected(path, process, deadline_s))
        except RoleFailedError:
            if own is not None:
                await own.close()
            raise

    async def spawn(
        self,
        name: str,
        target: str,
        argv: Sequence[str],
        environment: Mapping[str, str],
        write: Callable[[str], None],
        clean: Callable[[str], str] = lambda line: line,
    ) -> Child:
        """Fork ``target`` ("module:function", called with ``argv``) with exactly this environment, in this directory.

        Its output arrives line by line at ``write``, each as ``clean`` makes it. Raises RoleFailedError when the
        launcher is gone.
        """
        loop = asyncio.get_running_loop()
        pipes = [os.pipe(), os.pipe()]  # output and errors would cut each other's lines in one
        reads, writes = [read for read, _ in pipes], [write for _, write in pipes]
        started: asyncio.Future[int] = loop.create_future()
        self._starting[name] = started
        request = {
            "name": name,
            "target": target,
            "argv": list(argv),
            "env": dict(environment),
            "cwd": os.getcwd(),
        }
        try:
            message = json.dumps(request).encode()
            if len(message) > MAX_MESSAGE:
                raise RoleFailedError(
                    f"the environment and arguments of {name} are {len(message)} bytes; at most {MAX_MESSAGE} fit"
                )
            socket.send_fds(self._connection, [message], writes)
            await asyncio.wait({started}, timeout=FORK_S)  # wait_for may lose a cancellation
            if not started.done():
                raise RoleFailedError(f"the launcher did not fork {name} within {FORK_S:.0f} s")
            pid = started.result()
        except BaseException as error:
            _close(reads)
            if isinstance(error, (BrokenPipeError, ConnectionResetError)):
                raise _lost_before(name) from error
            if isinstance(error, OSError):
                raise RoleFailedError(f"could not ask the launcher to fork {name}: {error}") from error
            raise
        finally:
            _close(writes)
            self._starting.pop(name, None)
        child = self._children.setdefault(pid, Child(name, pid, loop.create_future()))
        for read in reads:
            reader = asyncio.create_task(self._pump(child, read, write, clean))
            self._readers.add(reader)
            reader.add_done_callback(self._readers.discard)
        return child

    async def _pump(
        self, child: Child, descriptor: int, write: Callable[[str], None], clean: Callable[[str], str]
    ) -> None:
        stream = asyncio.StreamReader(limit=LONGEST)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(descriptor, "rb")
        )

        def said(line: str) -> None:
            text = clean(line)
            child.tail.append(text)
            del child.tail[: -self.TAIL]
            write(text)

        try:
            await read_lines(stream, said)
        finally:
            transport.close()

    def _on_event(self) -> None:
        try:
            message = self._connection.recv(MAX_MESSAGE)
        except BlockingIOError:
            return
        except ConnectionResetError:
            message = b""
        loop = asyncio.get_running_loop()
        if not message:
            loop.remove_reader(self._connection)
            self.gone = True
            for child in self._children.values():
                if not child.exited.done():
                    child.exited.set_result(-signal.SIGKILL)
            for name, waiting in self._starting.items():
                if not waiting.done():
                    waiting.set_exception(_lost_before(name))
            return
        event = json.loads(message)
        pid = event["pid"]
        child = self._children.setdefault(pid, Child(event["name"], pid, loop.create_future()))
        if event["event"] == "started":
            if event["name"] in self._starting:
                self._starting[event["name"]].set_result(pid)
        elif not child.exited.done():
            child.exited.set_result(event["code"])

    async def drain_output(self, timeout_s: float = 1.0) -> None:
        """Wait until all output of ended processes was written, at most ``timeout_s``."""
        if self._readers:
            await asyncio.wait(self._readers, timeout=timeout_s)

    def release(self) -> None:
        """Close the connection: the launcher kills every process it forked over it. Twice is fine."""
        if self._connection.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._connection)
            self._connection.close()

    async def close(self) -> None:
        """Kill what is left of what was forked over it."""
        self.release()
        readers = list(self._readers)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


def _lost_before(name: str) -> RoleFailedError:
    return RoleFailedError(f"the launcher was killed or crashed before it had forked {name}")


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


async def _connected(path: str, process: subprocess.Popen[bytes] | None, deadline_s: float) -> socket.socket:
    """A connection to the launcher at ``path``, as soon as it listens. ``process`` is it when it is ours."""
    started = time.monotonic()
    while True:
        if process is not None and process.poll() is not None:
            raise RoleFailedError(
                f"the launcher {describe_exit(process.returncode)} while it imported vLLM; its output is above"
            )
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(path)
            return connection
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
        if time.monotonic() - started > deadline_s:
            raise RoleFailedError(
                f"the launcher at {path} did not finish importing vLLM within {deadline_s:.0f} s"
            )
        await asyncio.sleep(0.05)


def start_launcher(
    path: str, environment: Mapping[str, str], output: int = 2, modules: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """Start a launcher that listens at ``path`` when its imports are done, and dies with this process.

    ``output`` is the file descriptor that its standard output and error go to; ``modules`` replaces what it imports.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "afd.launch.server", path, *modules],
        env=dict(environment),
        # Python looks for modules where `-m` is started: not in a directory that happens to have a json.py or a vllm.
        cwd=os.path.dirname(path),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        preexec_fn=partial(own_session, os.getpid()),
    )


def own_session(parent: int) -> None:
    """Between fork and exec of a child: no terminal's Ctrl-C, and no life after ``parent``."""
    os.setsid()
    die_with_parent(parent)
