# SPDX-License-Identifier: Apache-2.0
"""What a soak run is made of: traffic that nobody planned, and what every process of a group holds meanwhile."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import aiohttp
import psutil

from afd.agent.leftovers import mapped_by
from afd.testing.completions import Answer, Question, ask
from afd.testing.stack import Group, metrics
from tests.system.rig import SERVED, tree

OPEN = 40
"""Requests that may be open at once: more than vLLM runs together, so that some wait."""
GAP_S = 0.04
"""Mean time between two arrivals, while fewer are open."""
ANSWER_S = 180.0
LEAVERS = 0.15
"""Share of clients that close the connection before their answer is whole."""
PROBES = 0.25
"""Share of requests whose answer is known."""


# ---- traffic ----------------------------------------------------------------------------------------------------


def probes(number: int = 24) -> list[Question]:
    """Greedy questions of every length, plain and streamed, to be compared with native vLLM."""
    dice = random.Random(11)
    return [
        Question(
            f"probe {i}",
            tuple(dice.randrange(5, 500) for _ in range(dice.choice((1, 3, 17, 64, 65, 130, 300)))),
            max_tokens=dice.choice((1, 2, 9, 24)),
            stream=i % 2 == 0,
        )
        for i in range(number)
    ]


@dataclass
class Traffic:
    """What became of the requests so far."""

    asked: int = 0
    answered: int = 0
    left: int = 0
    wrong: list[str] = field(default_factory=list)
    pairs: list[tuple[Question, Answer]] = field(default_factory=list)
    """Probes and what came back."""


class Visitors:
    """Clients that come at random times, ask questions of random lengths and sometimes leave early."""

    def __init__(self, url: str, known: Sequence[Question], seed: int = 1) -> None:
        self._url, self._known = url, known
        self._dice = random.Random(seed)
        self.traffic = Traffic()

    async def come(self, number: int) -> None:
        """``number`` clients; returns when each has its answer or has left."""
        limit = asyncio.Semaphore(OPEN)
        timeout = aiohttp.ClientTimeout(total=ANSWER_S)
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            clients = []
            for _ in range(number):
                await limit.acquire()
                clients.append(asyncio.create_task(self._visit(session, limit)))
                await asyncio.sleep(self._dice.expovariate(1 / GAP_S))
            await asyncio.gather(*clients)

    async def _visit(self, session: aiohttp.ClientSession, limit: asyncio.Semaphore) -> None:
        self.traffic.asked += 1
        try:
            if self._dice.random() < PROBES:
                probe = self._dice.choice(self._known)
                self.traffic.pairs.append((probe, await ask(session, self._url, SERVED, probe)))
                self.traffic.answered += 1
            elif self._dice.random() < LEAVERS / (1 - PROBES):
                await self._leave(session)
            else:
                await self._ask(session)
        finally:
            limit.release()

    def _question(self) -> Question:
        dice, number = self._dice, self.traffic.asked
        sampled = dice.random() < 0.5
        return Question(
            f"visitor {number}",
            tuple(dice.randrange(5, 500) for _ in range(min(400, 1 + int(dice.expovariate(1 / 50))))),
            max_tokens=min(100, 1 + int(dice.expovariate(1 / 16))),
            stream=dice.random() < 0.5,
            temperature=1.0 if sampled else 0.0,
            logprobs=dice.choice((None, 1)),
        )

    async def _ask(self, session: aiohttp.ClientSession) -> None:
        question = self._question()
        answer = await ask(session, self._url, SERVED, question)
        self.traffic.answered += 1
        if len(answer.tokens) != question.max_tokens or answer.finish != "length":
            self.traffic.wrong.append(
                f"{question.name}: {len(answer.tokens)} tokens of {question.max_tokens}, {answer.finish!r}"
            )

    async def _leave(self, session: aiohttp.ClientSession) -> None:
        """Ask for more than anybody waits for, and go away before or while it comes."""
        question = replace(self._question(), max_tokens=100, logprobs=None)
        patience = self._dice.choice((0.002, 0.05, 0.5, 2.0))
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(ask(session, self._url, SERVED, question), patience)
        self.traffic.left += 1


async def quiet(url: str, timeout_s: float = 60.0) -> None:
    """Wait until vLLM has no request left; fails when those that nobody waits for go on."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = await metrics(url)
        if not found["vllm:num_requests_running"] and not found["vllm:num_requests_waiting"]:
            return
        assert time.monotonic() < deadline, "requests whose clients are gone go on"
        await asyncio.sleep(0.1)


# ---- what processes hold ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Held:
    """What one process holds. ``rss`` is in bytes, ``segments`` are files in /dev/shm that it maps or has open."""

    threads: int
    descriptors: int
    sockets: int
    segments: int
    rss: int

    @classmethod
    def by(cls, process: psutil.Process) -> Held:
        opened = []
        for name in os.listdir(f"/proc/{process.pid}/fd"):
            with suppress(OSError):
                opened.append(os.readlink(f"/proc/{process.pid}/fd/{name}"))
        shared = {path for path in opened if path.startswith("/dev/shm/")}
        return cls(
            threads=process.num_threads(),
            descriptors=len(opened),
            sockets=sum(path.startswith("socket:") for path in opened),
            segments=len(mapped_by(process.pid)) + len(shared),
            rss=process.memory_info().rss,
        )


SLACK = {"threads": 0, "descriptors": 2, "sockets": 2, "segments": 0}
"""How much more of each a process may hold than at any look before: an agent may just then be asking its API server how
it is. One that is left behind by each request would be a thousand."""


@dataclass
class Watch:
    """Samples of every process of a group, each taken when no request is there."""

    group: Group
    samples: list[dict[str, Held]] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    """Files of the group in /dev/shm."""

    def look(self) -> None:
        found = tree(self.group)
        self.samples.append({name: Held.by(process) for name, process in found.items()})
        self.files.append(len(set[str]().union(*(mapped_by(p.pid) for p in found.values()))))

    @property
    def middle(self) -> int:
        return len(self.samples) // 2

    def grown(self, rss_bytes: int) -> list[str]:
        """What is not flat over the second half: a count that is higher than it ever was in the first (:data:`SLACK`
        apart), memory that is higher than in the middle by more than ``rss_bytes``, a process that came or went."""
        first, later = self.samples[: self.middle + 1], self.samples[self.middle + 1 :]
        found = []
        if max(self.files[self.middle :]) > max(self.files[: self.middle + 1]):
            found.append(f"files in /dev/shm: {self.files}")
        for sample in later:
            if sample.keys() != first[-1].keys():
                found.append(f"processes were {sorted(first[-1])} and are {sorted(sample)}")
                continue
            for name, held in sample.items():
                for what, slack in SLACK.items():
                    before = max(vars(one[name])[what] for one in first if name in one)
                    if vars(held)[what] > before + slack:
                        found.append(f"{name}: {what} from {before} to {vars(held)[what]}")
                if held.rss - first[-1][name].rss > rss_bytes:
                    found.append(f"{name}: memory from {mib(first[-1][name].rss)} to {mib(held.rss)} MiB")
        return list(dict.fromkeys(found))

    def growth(self) -> float:
        """The most that any process grew in the second half, in MiB."""
        middle = self.samples[self.middle]
        return max(
            (held.rss - middle[name].rss) / 2**20
            for sample in self.samples[self.middle :]
            for name, held in sample.items()
            if name in middle
        )

    def table(self) -> str:
        """One line per process: what it holds at first, in the middle and at last."""
        picked = (self.samples[0], self.samples[self.middle], self.samples[-1])
        lines = []
        for name in picked[-1]:
            cells = [
                f"{what} {' '.join(str(vars(s[name])[what]) if name in s else '-' for s in picked)}"
                for what in SLACK
            ]
            memory = " ".join(mib(s[name].rss) if name in s else "-" for s in picked)
            lines.append(f"  {name}: {', '.join(cells)}, MiB {memory}")
        return "\n".join(lines)


def mib(size: int) -> str:
    return f"{size / 2**20:.1f}"


def busy_seconds(group: Group) -> float:
    """CPU seconds that all processes of a group have used so far."""
    return sum(sum(process.cpu_times()[:2]) for process in tree(group).values())
