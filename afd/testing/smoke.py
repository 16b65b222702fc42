# SPDX-License-Identifier: Apache-2.0
"""One smoke run: both roles and a native reference on this host, the same questions to both, one verdict."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from afd.agent import run_directory
from afd.agent.leftovers import Leftovers
from afd.agent.model_files import inspect, resolve
from afd.errors import RoleFailedError
from afd.testing.compare import Comparison, compare_all
from afd.testing.completions import Answer, Question, ask_all
from afd.testing.interrupts import Interrupts
from afd.testing.questions import again, one_at_a_time, sampled, together
from afd.testing.reference import Reference
from afd.testing.stack import GONE_S, POLL_S, Group, Layout, SharedLauncher, metrics, status
from afd.topology import Role

READY_S = 180.0
ANSWER_S = 120.0
INTERRUPTED_S = 10.0
"""How long the roles of a run that is given up may take to end."""
SETTLE_S = 3.0
"""How long the last counters of a rank may take to arrive at its agent, and a killed process to be gone."""

Say = Callable[[str], None]


@dataclass
class Outcome:
    """What a run found. ``problems`` is empty when all is well, ``held`` is what else was looked at and was as it
    should be; times are in seconds; None was not looked for."""

    comparison: Comparison = Comparison(())
    problems: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    sent_tokens: int = 0
    ffn_tokens: int = 0
    ffn_layers: int = 0
    transport: str = ""
    epoch: str = ""
    left_segments: int | None = None
    left_processes: int | None = None

    @property
    def passed(self) -> bool:
        return self.comparison.agrees and not self.problems


def questions() -> tuple[list[Question], list[Question]]:
    """What is asked one after another, and what is asked all at once."""
    return [*one_at_a_time(), *again(), *sampled()], together()


async def ask_everything(url: str, model: str, *, together: bool) -> list[Answer]:
    """All questions of the run to one server. Those that may be asked together are asked one by one otherwise."""
    single, many = questions()
    answers = await ask_all(url, model, single, concurrency=1, timeout_s=ANSWER_S)
    return answers + await ask_all(
        url, model, many, concurrency=len(many) if together else 1, timeout_s=ANSWER_S
    )


async def count_tokens(outcome: Outcome, model: str, attention_url: str, ffn_url: str) -> None:
    """Ask both agents: every token that crossed must have been computed once per layer."""
    outcome.ffn_layers = inspect(resolve(model)).num_layers
    deadline = time.monotonic() + SETTLE_S
    while True:
        attention, ffn = await metrics(attention_url), await metrics(ffn_url)
        outcome.sent_tokens = int(attention.get("afd_tokens_total{kind=padded}", 0))
        outcome.ffn_tokens = int(ffn.get("afd_ffn_tokens_total", 0))
        if outcome.ffn_tokens == outcome.sent_tokens * outcome.ffn_layers > 0:
            break
        if time.monotonic() > deadline:
            outcome.problems.append(
                f"FFN computed {outcome.ffn_tokens} tokens, expected {outcome.sent_tokens} × "
                f"{outcome.ffn_layers} layers"
            )
            break
        await asyncio.sleep(0.2)
    body = await status(attention_url)
    outcome.transport, outcome.epoch = body["transport"], body["epoch"]


class Smoke:
    """Runs in a directory of its own. Leaving it as a context manager ends every process that it started, and returns
    when they are gone; a signal that ``interrupts`` notes meanwhile kills them at once."""

    def __init__(
        self, layout: Layout, directory: Path, say: Say, interrupts: Interrupts, *, api_port: int = 0
    ) -> None:
        self._layout = layout
        self._directory = directory
        self._say = say
        self._interrupts = interrupts
        self._leftovers = Leftovers()
        self._scope = ExitStack()
        self._started = time.monotonic()
        self.outcome = Outcome()
        self.launcher = SharedLauncher(directory, layout.runner)
        self._scope.callback(self.launcher.close)
        self.group = Group(layout, directory, self.launcher.path, api_port)

    @property
    def served(self) -> str:
        """The name under which the model is served."""
        return self._layout.served

    def __enter__(self) -> Smoke:
        return self

    def __exit__(self, *exception: object) -> None:
        """Roles that still run are asked to end first; who does not is killed, and what it left is removed."""
        self._interrupts.ending()
        for role in self.group.roles.values():
            role.signal(signal.SIGTERM)
        deadline = time.monotonic() + INTERRUPTED_S
        while (
            (running := self._running_roles()) and time.monotonic() < deadline and not self._interrupts.again
        ):
            time.sleep(POLL_S)
        self._leftovers.observe([*self.launcher.roots(), *running])
        self._scope.close()
        self._until_gone()
        self._leftovers.remove()
        run_directory.sweep()

    def _running_roles(self) -> list[int]:
        return [role.process.pid for role in self.group.roles.values() if role.exit_code is None]

    def _until_gone(self) -> None:
        for process in self._leftovers.alive():  # at once, instead of each by the death of its parent
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        deadline = time.monotonic() + GONE_S
        while alive := self._leftovers.alive():
            if time.monotonic() > deadline:
                names = ", ".join(self._leftovers.name(process.pid) for process in alive)
                self._say(f"killed {GONE_S:.0f} s ago and still there: {names}")
                return
            time.sleep(POLL_S)

    def _mark(self, what: str, since: float) -> float:
        now = time.monotonic()
        self.outcome.seconds[what] = round(now - since, 2)
        return now

    async def start(self) -> None:
        """Bring up the native reference and both roles. Raises the AFDError of what failed."""
        self._say("importing vLLM once; everything is forked from there")
        clock = time.monotonic()
        while not self.launcher.has_imported(
            clock
        ):  # not in a thread, for which an interrupted run would wait
            await asyncio.sleep(POLL_S)
        clock = self._mark("import", clock)
        self._say("starting native vLLM, the FFN role and the Attention role")
        self._scope.enter_context(self.group)
        self.group.start()
        self.reference = await Reference.start(self._layout, self._directory, self.launcher.path)
        try:
            await self._both_ready()
        except BaseException:
            await self.reference.close()
            raise
        self._mark("start", clock)

    async def _both_ready(self) -> None:
        """Raises what the group says when both fail: it names the rank and the cause, and native's log does not."""
        native = asyncio.create_task(self.reference.ready(READY_S))
        group = asyncio.create_task(self.group.ready(READY_S))
        try:
            await asyncio.wait({native, group}, return_when=asyncio.FIRST_EXCEPTION)
            if native.done() and native.exception() is not None:
                await asyncio.wait({group}, timeout=SETTLE_S)
            for task in (group, native):
                if task.done():
                    task.result()
        finally:
            for task in (group, native):
                task.cancel()
            await asyncio.gather(group, native, return_exceptions=True)

    async def compare(self) -> None:
        """Ask both, judge, and check that every token crossed once and was computed once per layer."""
        single, many = questions()
        self._say(f"asking native vLLM {len(single) + len(many)} questions")
        # Which requests share a step is chance, and in a narrow type native's own answers depend on it.
        together = "float32" in self._layout.vllm_args
        clock = time.monotonic()
        try:
            native = await ask_everything(self.reference.url, self._layout.served, together=together)
        finally:
            await self.reference.close()
        clock = self._mark("native", clock)
        self._say("asking AFD the same")
        ours = await ask_everything(self.group.attention.api_url, self._layout.served, together=together)
        self._mark("afd", clock)
        self.outcome.comparison = compare_all([*single, *many], native, ours)
        await self._count()

    async def _count(self) -> None:
        group, model = self.group, self._layout.model
        await count_tokens(self.outcome, model, group.attention.agent_url, group.ffn.agent_url)

    def stop(self) -> None:
        """Stop the group; both roles must end with code 0, and leave no process and nothing in shared memory."""
        clock = time.monotonic()
        self._leftovers.observe([*self.launcher.roots(), *self._running_roles()])
        try:
            codes = self.group.stop()
        except RoleFailedError as error:
            self.outcome.problems.append(str(error))
            return
        self._mark("stop", clock)
        for role, code in codes.items():
            if code != 0:
                words = self.group.roles[role].error()
                self.outcome.problems.append(f"{role} ended with code {code} instead of 0: {words}")
        self._look_for_leftovers()
        self.outcome.seconds["total"] = round(time.monotonic() - self._started, 2)

    def _look_for_leftovers(self) -> None:
        outcome = self.outcome
        deadline = time.monotonic() + SETTLE_S
        while (running := self.launcher.descendants()) and time.monotonic() < deadline:
            time.sleep(0.05)
        outcome.left_processes = len(running)
        if running:
            outcome.problems.append(f"left running: processes {', '.join(map(str, running))}")
        left = self._leftovers.left()  # vLLM's files, too: those break the next start
        outcome.left_segments = len(left)
        if left:
            outcome.problems.append(f"left in /dev/shm: {', '.join(left)}")

    def words(self) -> str:
        """The last lines of each role, for a failure."""
        parts = []
        for role in (Role.FFN, Role.ATTENTION):
            if role in self.group.roles:
                lines = self.group.roles[role].text().splitlines()[-25:]
                parts.append(f"--- the last lines of {role}:\n" + "\n".join(lines))
        return "\n".join(parts)
