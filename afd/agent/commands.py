# SPDX-License-Identifier: Apache-2.0
"""What an operator has the whole group do, on whichever agent's port: every agent does it, and says what came of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import aiohttp

from afd.agent.plan import RolePlan
from afd.control.group import Control
from afd.control.handshake import ranks_of
from afd.control.hub import LocalHub
from afd.control.messages import PROFILE_START, PROFILE_STOP, Command
from afd.errors import AFDError, RoleFailedError
from afd.observe.operator import Reply
from afd.topology import Rank, Role

log = logging.getLogger(__name__)

DO_S = 300.0
"""How long a role may take for a command. The trace of a minute with stacks takes minutes to write."""
AGREE_S = 30.0
"""How much longer the others may take."""
TORCH = "torch"
"""The profiler that both roles have."""


class Commands:
    """The commands of one epoch. Belongs to the agent's event loop."""

    def __init__(self, plan: RolePlan, control: Control, hub: LocalHub) -> None:
        self._plan, self._control, self._hub = plan, control, hub
        self._turn = asyncio.Lock()
        self._asked: dict[str, asyncio.Future[Mapping[Rank, Any]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        control.on_command = self._on_command

    @property
    def busy(self) -> bool:
        """Whether something is done now. Ranks that write a trace compute nothing."""
        return self._turn.locked()

    async def profile(self, name: str) -> Reply:
        """Start or stop the profilers of all ranks. 409 when one was not configured, 500 when one did not do it."""
        without = [
            str(rank)
            for hello in self._control.hellos
            for rank in ranks_of(hello)
            if hello.notes.get("profiler") != TORCH
        ]
        if without:
            reason = (
                f"{', '.join(without)} cannot be profiled: start both roles with --profiler-config.profiler torch "
                "--profiler-config.torch_profiler_dir DIRECTORY"
            )
            return Reply(409, {"error": "not configured", "reason": reason})
        future: asyncio.Future[Mapping[Rank, Any]] = asyncio.get_running_loop().create_future()
        command = self._control.command(name)
        self._asked[command] = future
        try:
            await asyncio.wait({future}, timeout=DO_S + 2 * AGREE_S)  # wait_for may lose a cancellation
        finally:
            self._asked.pop(command, None)
        if not future.done():
            return Reply(504, {"error": "too late", "reason": f"not all roles have answered to {name!r}"})
        outcomes = future.result()
        ranks = {str(rank): outcome["text"] for rank, outcome in outcomes.items()}
        failed = [str(rank) for rank, outcome in outcomes.items() if not outcome["done"]]
        if failed:
            return Reply(
                500, {"error": "failed", "reason": f"{name} failed on {', '.join(failed)}", "ranks": ranks}
            )
        return Reply(200, {"ranks": ranks})

    async def close(self) -> None:
        """The epoch ends: nothing is done any more, and who waits for an outcome hears that."""
        self._control.on_command = lambda command: None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for future in self._asked.values():
            if not future.done():
                cause = self._control.abort.cause
                error = cause.error() if cause else RoleFailedError("the role is stopping")
                future.set_exception(error)

    def _on_command(self, command: Command) -> None:
        task = asyncio.create_task(self._obey(command))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _obey(self, command: Command) -> None:
        try:
            async with self._turn:
                log.info("%s", command.name)
                outcomes = await self._do(command)
                found = await self._control.exchange(f"command {command.id}", outcomes, DO_S + AGREE_S)
        except AFDError as error:  # the epoch ends, and close() tells who asked
            log.info("%s: %s", command.name, error)
            return
        if command.id in self._asked and not self._asked[command.id].done():
            self._asked[command.id].set_result(found)

    async def _do(self, command: Command) -> dict[Rank, Any]:
        """This agent's part, for each of its ranks: whether it was done, and what came of it."""
        if self._plan.role is Role.FFN:
            answers = await self._hub.command(command, DO_S)
            return {
                rank: _outcome(answers[rank].done, answers[rank].text)
                if rank in answers
                else _outcome(False, "is not attached")
                for rank in self._plan.ranks
            }
        done, text = (True, "with its API server") if self._plan.headless else await self._ask_vllm(command)
        return {rank: _outcome(done, text) for rank in self._plan.ranks}

    async def _ask_vllm(self, command: Command) -> tuple[bool, str]:
        """vLLM's API server has its engines and their workers profiled."""
        plan = self._plan
        path = {PROFILE_START: "/start_profile", PROFILE_STOP: "/stop_profile"}[command.name]
        headers = {"Authorization": f"Bearer {plan.api_key}"} if plan.api_key else {}
        try:
            timeout = aiohttp.ClientTimeout(total=DO_S)
            async with aiohttp.ClientSession(timeout=timeout, headers=headers) as session:
                async with session.post(f"{plan.api_url}{path}") as response:
                    text = (await response.text())[:300]
                    if response.status != 200:
                        return False, f"vLLM answered {response.status} to POST {path}: {text}"
                    return True, f"its trace is in vLLM's {plan.profile_directory}"
        except (aiohttp.ClientError, asyncio.TimeoutError) as error:
            return False, f"POST {path}: {error!r}"


def _outcome(done: bool, text: str) -> dict[str, Any]:
    return {"done": done, "text": text}
