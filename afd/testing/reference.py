# SPDX-License-Identifier: Apache-2.0
"""Native vLLM, the reference that a group is compared with.

It is unmodified vLLM: no plugin is loaded, no argument of AFD's is given, and it gets the threads, runner and dtype
of a role.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import aiohttp

from afd.agent import cores, vllm_arguments
from afd.agent.environment import cpu_environment
from afd.agent.exits import describe_exit
from afd.agent.launcher import Child, Launcher
from afd.agent.leftovers import Leftovers
from afd.agent.model_files import resolve
from afd.agent.plan import API_SERVER
from afd.agent.run_directory import RunDirectory
from afd.errors import RoleFailedError
from afd.launch.free_ports import free_port
from afd.testing.stack import GONE_S, POLL_S, Layout, answers, base_environment


class Reference:
    """Native vLLM, forked from the shared launcher. Use inside one event loop; :meth:`close` kills it."""

    def __init__(
        self,
        launcher: Launcher,
        child: Child,
        url: str,
        log: Path,
        leftovers: Leftovers,
        sockets: RunDirectory,
    ) -> None:
        self._launcher = launcher
        self._sockets = sockets
        self._child = child
        self._leftovers = leftovers
        self.pid = child.pid
        self.url = url
        self.log = log

    @classmethod
    async def start(
        cls,
        layout: Layout,
        directory: Path,
        launcher: str,
        *,
        target: str = API_SERVER,
        arguments: Sequence[str] | None = None,
    ) -> Reference:
        """Start it; the launcher must be ready. :meth:`ready` waits for the server.

        ``arguments`` replaces what follows the model, by default :func:`native_arguments`. ``target`` replaces the
        function that it runs.
        """
        port = free_port()
        argv = [str(resolve(layout.model)), *(native_arguments(layout) if arguments is None else arguments)]
        argv += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", layout.served]
        path = directory / "native.log"
        log = open(path, "w", encoding="utf-8")  # noqa: SIM115 (closed with the pump)

        def write(line: str) -> None:
            log.write(line + "\n")
            log.flush()

        # For the sockets of its processes, which they cannot remove when they are killed.
        sockets = RunDirectory.for_sockets()
        environment = {**native_environment(layout), "VLLM_RPC_BASE_PATH": str(sockets.path)}
        leftovers = Leftovers()
        connection = await Launcher.open(directory, environment, 120.0, path=launcher)
        try:
            child = await connection.spawn("native vLLM", target, argv, environment, write)
        except BaseException:
            await connection.close()
            raise
        return cls(connection, child, f"http://127.0.0.1:{port}", path, leftovers, sockets)

    async def ready(self, timeout_s: float) -> None:
        """Wait until it answers. Raises RoleFailedError."""
        deadline = time.monotonic() + timeout_s
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session:
            while not await answers(session, f"{self.url}/health"):
                if self._child.exited.done():
                    raise RoleFailedError(
                        f"native vLLM {describe_exit(self._child.exited.result())}: "
                        + "\n".join(self._child.tail[-5:])
                    )
                if time.monotonic() > deadline:
                    raise RoleFailedError(f"native vLLM was not ready within {timeout_s:.0f} s")
                await asyncio.sleep(POLL_S)

    async def close(self) -> None:
        """Kill it, which is quicker than its shutdown, and remove the shared memory and sockets that it leaves then.

        Raises RoleFailedError when it lives on.
        """
        try:
            self._leftovers.observe([self.pid])
            await self._launcher.close()
            deadline = time.monotonic() + GONE_S
            while alive := self._leftovers.alive():
                if time.monotonic() > deadline:
                    raise RoleFailedError(
                        f"processes {alive} of native vLLM were killed, but are still there"
                    )
                await asyncio.sleep(0.02)
        finally:
            self._leftovers.remove()
            self._sockets.close()


def native_arguments(layout: Layout) -> list[str]:
    """What native vLLM is told besides its model, address and name: the layout's arguments, and no word of AFD."""
    tensor = ("--tensor-parallel-size", str(layout.tp)) if layout.tp > 1 else ()
    return vllm_arguments.native(vllm_arguments.parse((*layout.vllm_args, *tensor)))


def native_environment(layout: Layout) -> dict[str, str]:
    """The environment of native vLLM: the threads and cores of as many ranks of the layout as it has workers, and no
    plugin."""
    plans = cores.plan_threads(layout.topology.world_size)[-layout.tp :]
    return cpu_environment(
        {**base_environment(), "VLLM_PLUGINS": ""},
        runner=layout.runner,
        threads=plans[0].threads,
        bind=cores.binding(plans),
    )
