# SPDX-License-Identifier: Apache-2.0
"""``single-node MODEL …``: FFN and Attention in one container, which lives as long as both do.

    this process ── supervisord ──┬── FFN's agent
      signals, output, verdict    ├── Attention's agent
                                  └── the watch (afd.container.watch)

Each role writes into a pipe of its own, and this process alone writes to the container's output, whole lines. A stop
is given to both agents as it is, through supervisord: Attention drains, then FFN ends, in the runtime's own order.
supervisord itself is told to stop when both are done, when one was lost, or when the time for a drain is over.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import xmlrpc.client
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from supervisor.xmlrpc import SupervisorTransport

from afd.agent import secrets
from afd.agent.output import Output
from afd.agent.plan import drain_s
from afd.agent.share import DATA, LOCAL, TENSOR
from afd.agent.stopping import LEAVE_S
from afd.agent.threads import start_thread
from afd.config import Option, options
from afd.container import devices, supervisor_conf
from afd.container.asked import Asked, read
from afd.container.devices import Share
from afd.container.init import Child
from afd.container.run_files import RunFiles
from afd.container.verdict import Verdict, judge
from afd.container.watch import GROUP, STOPPING, read_ends
from afd.errors import ConfigError, UnsupportedError
from afd.number_list import spell
from afd.topology import Role

FFN_MODEL = "--ffn-model"
SLACK_S = 3.0
"""On top of the time that a drain may take: for the agents themselves, on a busy machine."""
LAST_LINES_S = 2.0
_ATTENTION_ONLY = (
    *(DATA, TENSOR, LOCAL),
    *("--data-parallel-address", "--data-parallel-rpc-port", "--data-parallel-backend"),
)


@dataclass(frozen=True)
class Pair:
    """Both roles of one container. ``given`` is what the user wrote; ``variables`` are the secrets of it, which are not
    among the arguments of the roles."""

    given: Asked
    ffn: Asked
    attention: Asked
    shares: Mapping[Role, Share]
    variables: Mapping[str, str]
    hide: secrets.Secrets

    @property
    def stop_s(self) -> float:
        """How long a stop may take."""
        return drain_s(self.attention.config, self.attention.vllm) + LEAVE_S + SLACK_S

    def __str__(self) -> str:
        def cores(role: Role) -> str:
            share = self.shares[role]
            where = share.variables.get(devices.VISIBLE) or spell(share.affinity)
            return f" on {where}" if where else ""

        return (
            f"{self.attention.config.topology}: "
            f"attention{cores(Role.ATTENTION)}, agent port {self.attention.agent_port}; "
            f"ffn{cores(Role.FFN)}, agent port {self.ffn.agent_port}"
        )


def plan(argv: Sequence[str], environment: Mapping[str, str]) -> Pair:
    """Decide what both roles get. Raises ConfigError, and click's errors and Exit."""
    argv, ffn_model = _take(argv, FFN_MODEL)
    if environment.get("AFD_ROLE"):
        raise ConfigError(
            f"env AFD_ROLE: {environment['AFD_ROLE']}, but single-node runs both roles; leave it out"
        )
    asked = read(Role.ATTENTION, argv, environment)
    flags, variables = secrets.off_the_command_line(asked.vllm)
    hide = secrets.of_role(asked.vllm, environment, asked.config)
    words = _without(argv, asked, flags)
    if asked.vllm.enabled("--headless"):
        raise UnsupportedError(
            "--headless: single-node has its own API server; use `attention` for replicas elsewhere"
        )
    if asked.origins["num_attention_ranks"] == "default" and asked.attention_ranks > 1:
        words += [_flag("num_attention_ranks"), str(asked.attention_ranks)]
    if asked.agent_port == 0 or asked.agent_port >= 65535:
        raise ConfigError(
            f"--agent-port {asked.agent_port}: two ports are needed, this one for Attention and the next one for FFN"
        )
    attention = read(Role.ATTENTION, words, environment)
    shared = _without(words, attention, _ATTENTION_ONLY)
    shared = [ffn_model or attention.model, *shared[1:]]
    ffn = read(Role.FFN, [*shared, "--agent-port", str(attention.agent_port + 1)], environment)
    ranks = {role: attention.config.topology.size(role) for role in Role}
    shares = devices.deal((Role.ATTENTION, Role.FFN), ranks, environment)
    return Pair(asked, ffn, attention, shares, variables, hide)


def run(pair: Pair, environment: Mapping[str, str]) -> int:
    """Run both roles to their end and return the container's exit code. Raises ConfigError before anything runs."""
    files = RunFiles(environment)
    try:
        return _run(pair, files, {**environment, **pair.variables})
    finally:
        files.close()


def _run(pair: Pair, files: RunFiles, environment: Mapping[str, str]) -> int:
    directory = files.path
    conf = supervisor_conf.render(directory, root=os.geteuid() == 0)
    for asked in (pair.ffn, pair.attention):
        share = pair.shares[asked.role]
        command = [sys.executable, "-m", "afd.cli.main", "serve", str(asked.role), *asked.argv]
        files.write(
            f"{asked.role}.json",
            {"command": command, "affinity": share.affinity, "variables": dict(share.variables)},
        )
    (directory / supervisor_conf.CONF).write_text(conf, encoding="utf-8")
    files.agents({str(asked.role): asked.agent for asked in (pair.attention, pair.ffn)})
    pipes = {name: _pipe(directory / f"{name}.out") for name in ("ffn", "attention", "watch")}
    ours, theirs = os.pipe()
    pipes["supervisord"] = ours
    supervisord = Child(
        [sys.executable, "-m", "afd.container.supervisord", "-c", str(directory / supervisor_conf.CONF)],
        environment,
        output=theirs,
    )
    os.close(theirs)
    # From here on there are threads.
    output = Output(sys.stdout, pair.hide.hide)
    output.line(f"afd-entrypoint: single-node {pair}")
    readers = [start_thread(_Lines(name, fd, output).run, f"afd-{name}") for name, fd in pipes.items()]
    stop = _Stop(directory, supervisord, pair.stop_s, output)
    code = supervisord.wait(stop.signal)
    for name in ("ffn", "attention", "watch"):
        _end(directory / f"{name}.out")
    deadline = time.monotonic() + LAST_LINES_S
    for reader in readers:
        reader.join(max(0.0, deadline - time.monotonic()))
    verdict = judge(read_ends(directory), asked=stop.asked, supervisor=code)
    _tell(verdict, code, directory, output)
    output.close()
    return verdict.code


class _Stop:
    """What signals to the container do."""

    def __init__(self, directory: Path, supervisord: Child, budget_s: float, output: Output) -> None:
        self._directory = directory
        self._supervisord = supervisord
        self._budget_s = budget_s
        self._output = output
        self.asked = False

    def signal(self, number: int) -> None:
        """The first one asks both agents to stop, the second one to hurry, as it does with an agent alone."""
        name = signal.Signals(number).name
        if number not in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            self._output.line(f"afd-entrypoint: {name} has no meaning for single-node")
            return
        self._output.line(
            f"afd-entrypoint: {name}{' again' if self.asked else ''}: both roles are told to stop"
        )
        if not self.asked:
            self.asked = True
            (self._directory / STOPPING).touch()
            timer = threading.Timer(self._budget_s, self._over)
            timer.daemon = True
            timer.start()
        start_thread(self._pass_on, "afd-stop")

    def _pass_on(self) -> None:
        server = xmlrpc.client.ServerProxy(
            "http://127.0.0.1",
            SupervisorTransport("", "", f"unix://{self._directory / supervisor_conf.SOCKET}"),
        )
        try:
            server.supervisor.signalProcessGroup(GROUP, "TERM")
        except (OSError, HTTPException, xmlrpc.client.Error) as error:  # not up yet, or on its way down
            self._output.line(f"afd-entrypoint: supervisord is told to stop: {error}")
            self._end()

    def _over(self) -> None:
        self._output.line(f"afd-entrypoint: the roles did not end within {self._budget_s:.0f} s of the stop")
        self._end()

    def _end(self) -> None:
        try:
            self._supervisord.signal(signal.SIGTERM)
        except ProcessLookupError:
            return


class _Lines:
    """Passes on the lines of one pipe. An agent's error has its role's name added: everything else it says bears it."""

    LONGEST = 1 << 20

    def __init__(self, name: str, descriptor: int, output: Output) -> None:
        self._name = name
        self._descriptor = descriptor
        self._output = output

    def run(self) -> None:
        with open(self._descriptor, "rb", buffering=1 << 16) as stream:
            while line := stream.readline(self.LONGEST):
                if line == _LAST:
                    return
                self._say(line.decode(errors="replace").rstrip("\n"))

    def _say(self, line: str) -> None:
        if self._name in ("supervisord", "watch"):
            line = f"afd-entrypoint: {self._name}: {line}"
        elif line.startswith("afd: "):
            line = f"afd {self._name}: {line.removeprefix('afd: ')}"
        self._output.line(line)


_LAST = b"\0afd-end\n"


def _pipe(path: Path) -> int:
    """A named pipe and its reading end. It is opened for writing too: so it has no end while supervisord opens it."""
    os.mkfifo(path, 0o600)
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)


def _end(path: Path) -> None:
    """Everything has been written: tell the reader, who cannot see that from the pipe."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return  # the reader is gone
    try:
        os.write(descriptor, _LAST)
    except BlockingIOError:
        pass
    finally:
        os.close(descriptor)


def _tell(verdict: Verdict, supervisor: int, directory: Path, output: Output) -> None:
    if supervisor != 0:
        log = directory / supervisor_conf.LOG
        for line in log.read_text(errors="replace").splitlines()[-10:] if log.exists() else ():
            output.line(f"afd-entrypoint: supervisord: {line}")
    output.line(f"afd-entrypoint: exit code {verdict.code}: {verdict.words}")


def _take(argv: Sequence[str], flag: str) -> tuple[list[str], str]:
    """``argv`` without our own flag, and its value."""
    words, found = list(argv), ""
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == flag:
            if not equals and index + 1 == len(words):
                raise ConfigError(f"{flag}: a directory is missing")
            found = value if equals else words[index + 1]
            del words[index : index + (1 if equals else 2)]
            break
    return words, found


def _without(argv: Sequence[str], asked: Asked, flags: Sequence[str]) -> list[str]:
    """``argv`` without vLLM's ``flags`` and their values."""
    parsed = asked.vllm
    words = list(argv)
    for given in parsed.given:
        if given.flag in flags:
            at = next(i for i in range(len(words)) if tuple(words[i : i + len(given.raw)]) == given.raw)
            del words[at : at + len(given.raw)]
    return words


def _flag(path: str) -> str:
    option: Option = next(option for option in options() if option.path == path)
    return option.flag
