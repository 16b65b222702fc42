# SPDX-License-Identifier: Apache-2.0
"""What tests of failures look with: the process tree of a group, a client that is asking, and the time of an end."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import psutil

from afd.agent.leftovers import mapped_by, runs, title
from afd.errors import PeerLostError
from afd.testing.compare import compare_all
from afd.testing.completions import Answer, Question, ask, ask_all
from afd.testing.stack import Group, RoleProcess, status
from afd.topology import Role

SHM = Path("/dev/shm")
SERVED = "afd"
READY_S = 60.0
"""How long a group may take to be ready. Alone on the machine it takes two to five seconds."""

# Long enough that whatever a test does happens while their tokens come.
STREAMED = Question("streamed", "Attention keeps the cache,", max_tokens=440, stream=True)
PLAIN = Question("plain", "experts keep the weights.", max_tokens=440)


def until(condition: Callable[[], object], timeout_s: float, what: str) -> float:
    """Wait for ``condition`` and return the time; fails naming ``what``."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {timeout_s:g} s"
        time.sleep(0.01)
    return time.monotonic()


def deed(pid: int, number: int = signal.SIGKILL) -> float:
    """Send a signal and return the time just before it."""
    now = time.monotonic()
    os.kill(pid, number)
    return now


# ---- groups -------------------------------------------------------------------------------------------------


def start(group: Group, *roles: Role) -> float:
    """Start a group, wait until it is ready, and return how many seconds that took."""
    begun = time.monotonic()
    group.start(*roles)
    asyncio.run(group.ready(READY_S))
    return time.monotonic() - begun


def decoding(role: RoleProcess, steps: int = 8) -> None:
    """Wait until the role has done ``steps`` more steps."""

    def done() -> int:
        number: int = asyncio.run(status(role.agent_url))["steps"]
        return number

    first = done()
    until(lambda: done() >= first + steps, 30, f"{steps} more steps")


def differences(
    url: str, questions: Sequence[Question], native: Sequence[Answer], replica: int | None = None
) -> list[str]:
    """What is wrong with a group's answers, or with those of one data-parallel replica, compared with native vLLM's."""
    answers = asyncio.run(ask_all(url, SERVED, questions, concurrency=1, timeout_s=60, replica=replica))
    return [f"{v.name}: {v.reason}" for v in compare_all(questions, native, answers).failures]


@dataclass
class Ends:
    """Exit code of each role, and how many seconds after the deed it exited."""

    codes: dict[Role, int] = field(default_factory=dict)
    seconds: dict[Role, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return ", ".join(
            f"{role} exits with {code} after {self.seconds[role]:.2f} s" for role, code in self.codes.items()
        )


def ends(group: Group, since: float, timeout_s: float = 15.0) -> Ends:
    """Wait until every role has exited. ``since`` is the (monotonic) time of the deed."""
    found = Ends()

    def wait(role: RoleProcess) -> None:
        with suppress(subprocess.TimeoutExpired):
            found.codes[role.role] = role.process.wait(timeout_s)
            found.seconds[role.role] = time.monotonic() - since

    threads = [threading.Thread(target=wait, args=(role,), daemon=True) for role in group.roles.values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_s + 1)
    running = [str(role) for role in group.roles if role not in found.seconds]
    assert not running, f"{', '.join(running)} did not exit within {timeout_s:g} s"
    return found


# ---- processes ----------------------------------------------------------------------------------------------


def processes(role: RoleProcess) -> dict[str, int]:
    """Processes that the role's agent started, by the name in its log ("API server", "rank F0")."""
    return {name: int(pid) for name, pid in re.findall(r"INFO (.+) is process (\d+)", role.text())}


def tree(group: Group) -> dict[str, psutil.Process]:
    """Every process of a group by what it calls itself: "ffn agent", "rank F0", "API server", "EngineCore", …

    Launchers that belong to an agent are "ffn launcher" and "attention launcher".
    """
    found: dict[str, psutil.Process] = {}

    def add(name: str, process: psutil.Process) -> None:
        if process not in found.values():
            found[name if name not in found else f"{name} {process.pid}"] = process

    for role in group.roles.values():
        try:
            agent = psutil.Process(role.process.pid)
            add(f"{role.role} agent", agent)
            for child in agent.children():
                if title(child) == "afd::launcher":
                    add(f"{role.role} launcher", child)
            above = [*agent.children(), *(psutil.Process(pid) for pid in processes(role).values())]
            for name, pid in processes(role).items():
                add(name, psutil.Process(pid))
        except psutil.NoSuchProcess:
            continue
        for process in above:
            with suppress(psutil.NoSuchProcess):
                for below in process.children(recursive=True):
                    add(title(below).removeprefix("VLLM::"), below)
    return found


@dataclass
class Traces:
    """Where a group's processes may leave something: who they are, and the files in /dev/shm that they mapped."""

    pids: dict[str, int]
    processes: dict[str, psutil.Process]
    shm: set[str]

    @classmethod
    def of(cls, group: Group) -> Traces:
        found = tree(group)
        pids = {name: process.pid for name, process in found.items()}
        return cls(pids, found, set[str]().union(*(mapped_by(pid) for pid in pids.values())))

    def left_after(self, seconds: float) -> list[str]:
        """What is still there after at most that time."""
        deadline = time.monotonic() + seconds
        while (left := self.left()) and time.monotonic() < deadline:
            time.sleep(0.02)
        return left

    def left(self) -> list[str]:
        """What is still there."""
        files = [f"/dev/shm/{name}" for name in sorted(self.shm) if (SHM / name).exists()]
        return [
            f"{name} ({process.pid})" for name, process in self.processes.items() if runs(process)
        ] + files


class Census:
    """Samples who lives below this process, what they listen on and what shared memory they use."""

    PERIOD_S = 0.02

    def __init__(self) -> None:
        self._root = psutil.Process()
        self._before = {process.pid for process in self._root.children(recursive=True)}
        self.seen: dict[int, str] = {}
        self.ports: set[int] = set()
        self.shm: set[str] = set()
        self._found: set[psutil.Process] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="census", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self.PERIOD_S):
            for process in self._root.children(recursive=True):
                if process.pid not in self._before:
                    self._look_at(process)

    def _look_at(self, process: psutil.Process) -> None:
        self._found.add(process)
        try:
            self.seen.setdefault(process.pid, " ".join(process.cmdline())[:200])
            found = process.net_connections(kind="tcp")
        except psutil.Error:
            return
        self.ports |= {c.laddr.port for c in found if c.status == psutil.CONN_LISTEN}
        self.shm |= mapped_by(process.pid)

    def left_after(self, seconds: float) -> list[str]:
        """What of it is still there after at most that time."""
        traces = Traces({}, {f"process {process.pid}": process for process in self._found}, self.shm)
        return traces.left_after(seconds)

    def close(self) -> None:
        self._stop.set()
        self._thread.join(5)


@contextmanager
def census() -> Iterator[Census]:
    """Watch everything that is started below this process inside the block."""
    watch = Census()
    try:
        yield watch
    finally:
        watch.close()


# ---- clients --------------------------------------------------------------------------------------------------


@dataclass
class Client:
    """Questions that a thread asks. ``ends`` maps a question's name to its answer, or to the error it got."""

    url: str
    questions: Sequence[Question] = (STREAMED, PLAIN)
    ends: dict[str, Answer | Exception] = field(default_factory=dict)
    times: dict[str, float] = field(default_factory=dict)

    def start(self) -> Client:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        return self

    async def _run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=90)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            await asyncio.gather(*(self._ask(session, question) for question in self.questions))

    async def _ask(self, session: aiohttp.ClientSession, question: Question) -> None:
        end: Answer | Exception
        try:
            end = await ask(session, self.url, SERVED, question)
        except (PeerLostError, aiohttp.ClientError, asyncio.TimeoutError) as error:
            end = error
        self.times[question.name] = time.monotonic()
        self.ends[question.name] = end

    def join(self, timeout_s: float) -> None:
        """Wait until every question has ended; fails naming those that hang."""
        self._thread.join(timeout_s)
        hanging = [question.name for question in self.questions if question.name not in self.ends]
        assert not hanging, f"no end of {', '.join(hanging)} within {timeout_s:g} s"

    def answers(self, timeout_s: float) -> list[Answer]:
        """The answers in the order of the questions; fails with the errors of those that have none."""
        self.join(timeout_s)
        found = [self.ends[question.name] for question in self.questions]
        errors = [repr(end) for end in found if not isinstance(end, Answer)]
        assert not errors, errors
        return [end for end in found if isinstance(end, Answer)]
