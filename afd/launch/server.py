# SPDX-License-Identifier: Apache-2.0
"""The launcher: imports vLLM once, then forks the processes of a role on request.

    python -m afd.launch.server SOCKET [MODULE ...]

It listens on a unix socket once the imports (of :data:`PRELOAD`, or of the modules named) are done. Each connection
(an agent) is served by a fork of its own, which forks that agent's processes, reports their exits, and kills them all
when the connection closes: an agent that dies by SIGKILL takes its processes with it. Messages are JSON, one per
packet; standard output and error of a child travel beside the request as file descriptors.

What it does not do: it opens no port, no process group and no AFD resource, and it starts no thread before it
forks (OpenMP pools and threads do not survive a fork).
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from setproctitle import setproctitle

from afd.agent.last_words import one_line
from afd.agent.launch_protocol import ERROR, MAX_MESSAGE
from afd.agent.priority import behind_the_agent
from afd.families import FAMILIES

RUNNER_MARK = "TRITON_BACKENDS_IN_TREE"
"""Read by Triton while vLLM is imported: set for runner V1, not set for V2."""

PRELOAD = (
    "vllm.entrypoints.cli.serve",
    "vllm.entrypoints.openai.api_server",
    "vllm.entrypoints.openai.cli_args",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.worker.cpu.model_runner",
    "vllm.model_executor.model_loader.default_loader",
    *(family.module for family in FAMILIES),
    "afd.launch.api_server",
)
"""vLLM, and what starts it in a fork. Attention's worker and the FFN rank are not here, although that would save each a
tenth of a second: the native reference is forked from here too, and no AFD code but that of the start may be in it."""


def resolve(target: str) -> Callable[[Sequence[str]], None]:
    """The function that a target string "package.module:function" names."""
    module, _, name = target.partition(":")
    function: Callable[[Sequence[str]], None] = vars(importlib.import_module(module))[name]
    return function


def run_child(request: dict[str, Any], stdout: int, stderr: int) -> int:
    """In the fork: become the requested process and return its exit code."""
    from afd.errors import AFDError, ConfigError
    from afd.launch.children import apply_thread_environment

    other_runner = bool(os.environ.get(RUNNER_MARK)) != bool(request["env"].get(RUNNER_MARK))
    os.setsid()  # a terminal's Ctrl-C goes to the agent, which ends its processes in order
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.closerange(3, 4096)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = [request["name"], *request["argv"]]
    setproctitle(f"afd::{request['name']}")
    apply_thread_environment()
    behind_the_agent()
    try:
        if other_runner:
            raise ConfigError(
                "this launcher has imported vLLM for the other model runner; start one for each"
            )
        resolve(request["target"])(request["argv"])
    except SystemExit as leave:
        if leave.code is None or isinstance(leave.code, int):
            return leave.code or 0
        print(leave.code, file=sys.stderr)
        return 1
    except AFDError as error:
        print(f"{ERROR}{error}", file=sys.stderr, flush=True)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BaseException as error:  # noqa: BLE001 (the last word of a process: printed whole, and its exit code)
        traceback.print_exc()
        print(one_line(error), file=sys.stderr, flush=True)  # the agent tells it to everybody
        return 1
    return 0


class Session:
    """One agent's connection, served in a process of its own."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._names: dict[int, str] = {}

    def serve(self) -> None:
        """Fork on request and report exits until the agent closes the connection; then kill what is left."""
        wake_read, wake_write = os.pipe()
        for end in (wake_read, wake_write):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        try:
            while True:
                readable, _, _ = select.select([self._connection.fileno(), wake_read], [], [])
                if wake_read in readable:
                    os.read(wake_read, 4096)
                    self._reap()
                if self._connection.fileno() in readable and not self._request():
                    return
        finally:
            for pid in self._names:
                os.kill(pid, signal.SIGKILL)

    def _request(self) -> bool:
        message, descriptors, _, _ = socket.recv_fds(self._connection, MAX_MESSAGE, 2)
        if not message:
            return False
        request = json.loads(message)
        stdout, stderr = descriptors
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            code = 1
            try:
                code = run_child(request, stdout, stderr)
                for stream in (sys.stdout, sys.stderr):
                    stream.flush()
            finally:
                os._exit(code)
        for descriptor in descriptors:
            os.close(descriptor)
        self._names[pid] = request["name"]
        self._send({"event": "started", "name": request["name"], "pid": pid})
        return True

    def _reap(self) -> None:
        while self._names:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            name = self._names.pop(pid, None)
            if name is not None:
                code = os.waitstatus_to_exitcode(status)
                self._send({"event": "exited", "name": name, "pid": pid, "code": code})

    def _send(self, event: dict[str, Any]) -> None:
        try:
            self._connection.send(json.dumps(event).encode())
        except (BrokenPipeError, ConnectionResetError):
            return  # the agent is gone; the next select sees it


def main(argv: Sequence[str]) -> NoReturn:
    """Serve at the socket ``argv[0]`` until killed."""
    path, *modules = argv
    # First of all: it finds the memory of the command line only while the environment is untouched.
    setproctitle("afd::launcher")
    for module in modules or PRELOAD:
        importlib.import_module(module)
    if not modules:
        from afd.launch.inspection import inspect_families

        inspect_families()
    from afd.launch import children

    children.register()
    gc.collect()
    gc.freeze()  # keep the imported objects out of every child's collections, and their pages shared
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path + ".new")
    listener.listen(16)
    os.rename(path + ".new", path)  # appears only when it can be connected to
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # sessions are not waited for
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            code = 1
            try:
                Session(connection).serve()
                code = 0
            finally:
                os._exit(code)
        connection.close()


if __name__ == "__main__":
    main(sys.argv[1:])
