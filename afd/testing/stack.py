# SPDX-License-Identifier: Apache-2.0
"""A whole AFD group on this host, as real processes: what smoke runs and system tests use.

One launcher imports vLLM once; both roles are forked from it, and so is the native reference beside them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

import aiohttp
import psutil
from prometheus_client.parser import text_string_to_metric_families

from afd.agent import cores
from afd.agent.environment import cpu_environment
from afd.agent.exits import describe_exit
from afd.agent.launch_protocol import LAUNCHER_VARIABLE
from afd.agent.launcher import own_session, start_launcher
from afd.agent.leftovers import runs
from afd.agent.run_directory import RunDirectory
from afd.errors import PeerAbsentError, RoleFailedError
from afd.launch.free_ports import free_port
from afd.topology import Role, Topology

POLL_S = 0.05
GONE_S = 10.0
"""How long a process may take to be gone after it was killed."""


@dataclass(frozen=True)
class Layout:
    """What to start. ``vllm_args`` go to both roles and to the reference alike. ``tp`` Attention ranks form a
    tensor-parallel group, and the groups are data-parallel replicas; the reference has one replica."""

    model: str
    runner: str
    topology: Topology
    vllm_args: tuple[str, ...]
    afd_args: tuple[str, ...] = ()
    served: str = "afd"
    tp: int = 1

    @property
    def replicas(self) -> int:
        """Data-parallel replicas on Attention."""
        return self.topology.num_attention // self.tp

    def __str__(self) -> str:
        """ "2A2F", or "TP2+1F" when Attention is one tensor-parallel group."""
        if self.tp == 1:
            return str(self.topology)
        data = f"DP{self.replicas}" if self.replicas > 1 else ""
        return f"{data}TP{self.tp}+{self.topology.num_ffn}F"


def ignored_variables() -> list[str]:
    """Variables of this process that a run does not pass on: settings of AFD or of threads, which it decides itself."""
    drop = ("OMP_NUM_THREADS", "VLLM_CPU_OMP_THREADS_BIND", "VLLM_PLUGINS", "VLLM_USE_V2_MODEL_RUNNER")
    ours = [name for name in os.environ if name.startswith("AFD_") and name != "AFD_CACHE_DIR"]
    return sorted([*ours, *(name for name in drop if name in os.environ)])


def base_environment() -> dict[str, str]:
    """This process's environment without what :func:`ignored_variables` names."""
    ignored = set(ignored_variables())
    kept = {name: value for name, value in os.environ.items() if name not in ignored}
    return {**kept, "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": kept.get("HF_HUB_OFFLINE", "1")}


class SharedLauncher:
    """A launcher process of its own, to be named in AFD_LAUNCHER by everything that should fork from it."""

    def __init__(self, directory: Path, runner: str) -> None:
        self._sockets = RunDirectory.for_sockets()
        self.path = str(self._sockets.path / "launcher")
        self._log = open(directory / f"launcher-{runner}.log", "wb")  # noqa: SIM115 (closed in close)
        environment = cpu_environment(base_environment(), runner=runner, threads=1, bind=cores.NOBIND)
        self._process = start_launcher(self.path, environment, self._log.fileno())
        self.pid = self._process.pid

    def wait(self, timeout_s: float = 120.0) -> None:
        """Wait until vLLM is imported. Raises RoleFailedError."""
        started = time.monotonic()
        while not self.has_imported(started, timeout_s):
            time.sleep(POLL_S)

    def has_imported(self, started: float, timeout_s: float = 120.0) -> bool:
        """Whether vLLM is imported. Raises RoleFailedError when it cannot be, or ``timeout_s`` after ``started``."""
        if os.path.exists(self.path):
            return True
        if self._process.poll() is not None:
            raise RoleFailedError(
                f"the launcher {describe_exit(self._process.returncode)}; see {self._log.name}"
            )
        if time.monotonic() > started + timeout_s:
            raise RoleFailedError(f"vLLM was not imported within {timeout_s:.0f} s; see {self._log.name}")
        return False

    def descendants(self) -> list[int]:
        """Every process that was forked from this one, directly or not, and still runs."""
        if self._process.poll() is not None:
            return []  # they died with it
        return [
            child.pid for child in psutil.Process(self._process.pid).children(recursive=True) if runs(child)
        ]

    def roots(self) -> list[int]:
        """The launcher itself, while it runs."""
        return [] if self._process.poll() is not None else [self._process.pid]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()
        self._sockets.close()


class RoleProcess:
    """`afd serve ROLE` as a subprocess, its output in a file."""

    def __init__(
        self,
        role: Role,
        layout: Layout,
        directory: Path,
        ports: Mapping[str, int],
        *,
        launcher: str | None,
        program: Sequence[str] = ("-m", "afd.cli.main"),
        environment: Mapping[str, str] | None = None,
        model: str | None = None,
        arguments: Sequence[str] = (),
        host: str = "127.0.0.1",
    ) -> None:
        self.role = role
        self.model = model or layout.model
        self.agent_url = f"http://{host}:{ports[str(role)]}"
        self.api_url = f"http://{host}:{ports['api']}"
        self.log = directory / f"{role}.log"
        argv = [sys.executable, *program, "serve", str(role), self.model]
        argv += ["--agent-host", host, "--agent-port", str(ports[str(role)])]
        argv += ["--afd-runner", layout.runner, "--afd-port", str(ports["rendezvous"])]
        argv += ["--afd-num-attention-ranks", str(layout.topology.num_attention)]
        argv += ["--afd-num-ffn-ranks", str(layout.topology.num_ffn), *layout.afd_args, *layout.vllm_args]
        if role is Role.ATTENTION:
            argv += ["--host", host, "--port", str(ports["api"]), "--served-model-name", layout.served]
            if layout.replicas > 1:
                argv += ["--data-parallel-size", str(layout.replicas)]
            if layout.tp > 1:
                argv += ["--tensor-parallel-size", str(layout.tp)]
        self.argv = (*argv, *arguments)
        environment = {**base_environment(), **(environment or {})}
        if launcher is not None:
            environment[LAUNCHER_VARIABLE] = launcher
        self._output: IO[bytes] = open(self.log, "wb")  # noqa: SIM115 (closed in close)
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            self.argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            preexec_fn=partial(own_session, os.getpid()),
        )

    @property
    def exit_code(self) -> int | None:
        return self.process.poll()

    def text(self) -> str:
        """Everything the role said."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def error(self) -> str:
        """The line with which the role ended, "" when there is none."""
        lines = [line for line in self.text().splitlines() if line.startswith("afd: error: ")]
        return lines[-1].removeprefix("afd: error: ") if lines else ""

    def signal(self, number: int) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)

    def wait(self, timeout_s: float) -> int:
        """The exit code. Raises RoleFailedError when the role runs on after ``timeout_s``."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise RoleFailedError(
                f"{self.role} did not end within {timeout_s:.0f} s; see {self.log}"
            ) from None

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._output.close()


@dataclass
class Group:
    """Both roles of one layout. A context manager: leaving it kills what still runs.

    For tests of faults: ``programs`` replaces ``-m afd.cli.main`` of a role, ``models`` its model; ``arguments`` come
    after all others and ``environments`` on top of ``environment``. ``ports`` of an earlier group may be used again.
    ``hosts`` are the addresses at which a role answers, when it is not on this host.
    """

    layout: Layout
    directory: Path
    launcher: str | None = None
    api_port: int = 0
    programs: Mapping[Role, Sequence[str]] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    models: Mapping[Role, str] = field(default_factory=dict)
    arguments: Mapping[Role, Sequence[str]] = field(default_factory=dict)
    environments: Mapping[Role, Mapping[str, str]] = field(default_factory=dict)
    ports: Mapping[str, int] = field(default_factory=dict)
    hosts: Mapping[Role, str] = field(default_factory=dict)
    roles: dict[Role, RoleProcess] = field(default_factory=dict)

    def __enter__(self) -> Group:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.ports = self.ports or {
            "api": self.api_port or free_port(),
            "rendezvous": free_port(),
            "ffn": free_port(),
            "attention": free_port(),
        }
        return self

    def start(self, *roles: Role) -> None:
        """Start these roles (default: FFN, then Attention)."""
        for role in roles or (Role.FFN, Role.ATTENTION):
            extra: dict[str, Any] = {"program": self.programs[role]} if role in self.programs else {}
            if role in self.hosts:
                extra["host"] = self.hosts[role]
            self.roles[role] = RoleProcess(
                role,
                self.layout,
                self.directory,
                self.ports,
                launcher=self.launcher,
                environment={**self.environment, **self.environments.get(role, {})},
                model=self.models.get(role),
                arguments=self.arguments.get(role, ()),
                **extra,
            )

    @property
    def attention(self) -> RoleProcess:
        return self.roles[Role.ATTENTION]

    @property
    def ffn(self) -> RoleProcess:
        return self.roles[Role.FFN]

    async def ready(self, timeout_s: float) -> None:
        """Wait until both roles are ready. Raises RoleFailedError with a role's own words when it ended."""
        deadline = time.monotonic() + timeout_s
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session:
            for role in self.roles.values():
                while not await answers(session, f"{role.agent_url}/readyz"):
                    for other in self.roles.values():
                        if other.exit_code is not None:
                            raise RoleFailedError(
                                f"{other.role} ended with code {other.exit_code}: {other.error() or other.log}"
                            )
                    if time.monotonic() > deadline:
                        raise PeerAbsentError(
                            f"{role.role} was not ready within {timeout_s:.0f} s; see {role.log}"
                        )
                    await asyncio.sleep(POLL_S)

    def stop(self, timeout_s: float = 20.0) -> dict[Role, int]:
        """Stop Attention, which ends FFN, and return the exit codes."""
        self.attention.signal(signal.SIGTERM)
        return {role: process.wait(timeout_s) for role, process in self.roles.items()}

    def __exit__(self, *exception: object) -> None:
        for role in self.roles.values():
            role.close()


async def answers(session: aiohttp.ClientSession, url: str) -> bool:
    """Whether a GET gets 200."""
    try:
        async with session.get(url) as response:
            return response.status == 200
    except (aiohttp.ClientError, asyncio.TimeoutError):
        return False


async def metrics(agent_url: str) -> dict[str, float]:
    """An agent's counters: "afd_tokens_total{kind=real}" and such. Summed over ranks and all labels but ``kind``,
    ``phase``, ``direction`` and ``state``. Raises aiohttp.ClientError when no agent answers."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
        async with session.get(f"{agent_url}/metrics") as response:
            text = await response.text()
    totals: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k in ("kind", "phase", "direction", "state")}
            name = sample.name + (
                "{" + ",".join(f"{k}={v}" for k, v in labels.items()) + "}" if labels else ""
            )
            totals[name] = totals.get(name, 0.0) + sample.value
    return totals


async def status(agent_url: str) -> dict[str, Any]:
    """The agent's ``/status``."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
        async with session.get(f"{agent_url}/status") as response:
            body: dict[str, Any] = await response.json()
    return body
