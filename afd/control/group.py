# SPDX-License-Identifier: Apache-2.0
"""What an agent can do once its ranks belong to a group: exchange values, watch its peers, fail, leave.

The agent that owns world rank 0 is the *root*; every other agent is connected to it and to nobody else
(:mod:`afd.control.root`, :mod:`afd.control.joiner`). :func:`afd.control.rendezvous.open_control` makes one of them.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from afd.config import AFDConfig
from afd.control.abort import Abort, Cause
from afd.control.handshake import names, ranks_of
from afd.control.liveness import Silence
from afd.control.messages import Command, Hello, Offer, PeerRow, encode
from afd.errors import ClosedError, MisuseError, PeerLostError
from afd.topology import Rank, Role

log = logging.getLogger(__name__)

NOTICE_S = 5.0
"""How often a waiting agent says so in its log."""
SLACK_S = 3.0
"""How much longer a joiner waits for the root than the root waits for the ranks."""


@dataclass(frozen=True)
class Waiting:
    """Progress of a rendezvous: who is missing, for how long, and what the last attempt or refusal said."""

    missing: tuple[Rank, ...]
    elapsed_s: float
    limit_s: float
    detail: str = ""

    def __str__(self) -> str:
        detail = f" ({self.detail})" if self.detail else ""
        who = names(self.missing) or "the group"
        return f"waiting for {who} … {self.elapsed_s:.0f} s of {self.limit_s:g} s{detail}"


@dataclass(frozen=True)
class PeerInfo:
    """Another agent. ``state`` is what it last told, "lost" or "left"; ``last_seen_s`` the age of its last sign."""

    role: Role
    ranks: tuple[Rank, ...]
    host: str
    state: str
    last_seen_s: float


class _Round:
    """One exchange as this agent sees it."""

    def __init__(self) -> None:
        self.offered: set[Rank] = set()
        self.future: asyncio.Future[dict[Rank, Any]] = asyncio.get_running_loop().create_future()
        # A failed exchange that nobody awaits any more is no news: the abort has told.
        self.future.add_done_callback(lambda future: future.cancelled() or future.exception())


OnWaiting = Callable[[Waiting], None]
OnBye = Callable[[Sequence[Rank], str], None]


class Notices:
    """Tells a callback about each change of a wait, and the log every :data:`NOTICE_S`."""

    def __init__(self, limit_s: float, callback: OnWaiting | None) -> None:
        self._limit_s, self._callback = limit_s, callback
        self._start = time.monotonic()
        self._logged: float | None = None

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._start

    @property
    def passed(self) -> bool:
        return self.elapsed_s >= self._limit_s

    def tell(self, missing: Sequence[Rank], detail: str = "") -> None:
        notice = Waiting(tuple(missing), self.elapsed_s, self._limit_s, detail)
        if self._logged is None or notice.elapsed_s - self._logged >= NOTICE_S:
            self._logged = notice.elapsed_s
            log.info("%s", notice)
        if self._callback is not None:
            self._callback(notice)


class Control(ABC):
    """The control plane of one agent in one epoch. All methods belong to the agent's event loop."""

    def __init__(self, config: AFDConfig, hello: Hello, on_bye: OnBye | None) -> None:
        self.config = config
        self.topology = config.topology
        self.hello = hello
        self.ranks = ranks_of(hello)
        self.abort = Abort()
        self.epoch = ""
        self.hellos: tuple[Hello, ...] = (hello,)
        """One per agent, the root's first; complete once the group is."""
        self.addresses: tuple[str, ...] = ()
        """Those of this machine to which other agents are connected; complete once the group is."""
        self.on_command: Callable[[Command], None] = lambda command: None
        """Hears of each command to the whole group, this agent's own included, in the same order as every agent."""
        self._on_bye = on_bye
        self._state = ""
        self._closed: str | None = None
        self._rounds: dict[str, _Round] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._heartbeat_s = config.timeouts.heartbeat_s

    # ---- for the agent ----------------------------------------------------------------------------------

    @abstractmethod
    def peers(self) -> list[PeerInfo]:
        """The other agents."""

    @abstractmethod
    async def fail(self, cause: Cause) -> None:
        """End the epoch for everybody. Returns when :attr:`abort` is triggered: with ``cause``, or with the cause of
        whoever was first at the root."""

    @abstractmethod
    async def close(self, reason: str) -> None:
        """Leave: say goodbye (or, after a failure, pass it on) and close all connections. May be called again."""

    def set_state(self, state: str) -> None:
        """Publish this agent's state; peers see it in :meth:`peers` at once."""
        if state != self._state:
            self._state = state
            self._beat()

    async def exchange(
        self, key: str, values: Mapping[Rank, Any], deadline_s: float, must_agree: bool = False
    ) -> dict[Rank, Any]:
        """Give one value for each of some own ranks and get the values of all ranks of both roles.

        Values are plain data (msgpack). A key may be used again once its exchange is complete. With ``must_agree``
        the root compares the values (maps field by field) and a difference ends the epoch with MismatchError.
        Raises the abort's cause; a rank that offers nothing within ``deadline_s`` of the first offer is that cause.
        """
        future = self.offer(key, values, deadline_s, must_agree)
        await asyncio.wait({future}, timeout=deadline_s + SLACK_S)  # wait_for may lose a cancellation
        if not future.done():
            self.abort.check()
            root = self.topology.root
            raise PeerLostError(f"{root} did not complete the exchange {key!r}", str(root))
        return future.result()

    def offer(
        self, key: str, values: Mapping[Rank, Any], deadline_s: float, must_agree: bool = False
    ) -> asyncio.Future[dict[Rank, Any]]:
        """:meth:`exchange` without the wait. The future is shared by all own ranks: do not cancel it."""
        self.abort.check()
        if self._closed is not None:
            raise ClosedError(f"exchange {key!r}: the control channel is closed ({self._closed})")
        if unknown := [rank for rank in values if rank not in self.ranks]:
            raise MisuseError(
                f"exchange {key!r}: {names(unknown)} is not of this agent ({names(self.ranks)})"
            )
        current = self._rounds.setdefault(key, _Round())
        if twice := [rank for rank in values if rank in current.offered]:
            raise MisuseError(f"exchange {key!r}: {names(twice)} offers twice before it is complete")
        named = {str(rank): value for rank, value in values.items()}
        offer = Offer(epoch=self.epoch, key=key, values=named, deadline_s=deadline_s, must_agree=must_agree)
        encode(offer)  # a value that cannot be sent is the caller's mistake, not the group's
        current.offered.update(values)
        self._offer(offer)
        return current.future

    def command(self, name: str) -> str:
        """Have every agent of the group do ``name``. Returns the id under which they hear of it."""
        self.abort.check()
        command = Command(epoch=self.epoch, id=secrets.token_hex(8), name=name)
        self._wish(command)
        return command.id

    # ---- for root and joiner ------------------------------------------------------------------------------

    @abstractmethod
    def _offer(self, offer: Offer) -> None:
        """Bring an offer of own ranks to the root."""

    @abstractmethod
    def _wish(self, command: Command) -> None:
        """Bring a command to the root, which sends it to all."""

    @abstractmethod
    def _beat(self) -> None:
        """Send a heartbeat now."""

    def _gathered(self, key: str, values: Mapping[str, Any]) -> None:
        current = self._rounds.pop(key, None)
        if current is None or current.future.done():
            return
        unordered = {Rank.parse(name): value for name, value in values.items()}
        current.future.set_result({rank: unordered[rank] for rank in self.topology.ranks})

    def _verdict(self, cause: Cause) -> None:
        """The root has decided: this is how the epoch ends, in the eyes of this agent."""
        if self.abort.trigger(cause.seen_by([str(rank) for rank in self.ranks])):
            log.error("epoch %s ends: %s", self.epoch, cause)
        error = self.abort.cause.error() if self.abort.cause else cause.error()
        self._end_rounds(error)

    def _end_rounds(self, error: Exception) -> None:
        rounds, self._rounds = self._rounds, {}
        for current in rounds.values():
            if not current.future.done():
                current.future.set_exception(error)

    def _goodbye(self, ranks: Sequence[Rank], reason: str) -> None:
        log.info("%s said goodbye: %s", names(ranks), reason)
        if self._on_bye is not None:
            self._on_bye(ranks, reason)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of the control plane failed", exc_info=error)
            self._spawn(self.fail(Cause.of(error, str(self.ranks[0]))))

    async def _pulse(self, silence: Silence[Any]) -> None:
        """Heartbeats out, silence in, until cancelled.

        A beat goes out at every tick: an agent that the kernel lets wait for a second, because all cores are taken, is
        then silent for that second only, and not for the time since its last beat as well.
        """
        while True:
            silent, stopped = silence.tick()
            if stopped > self._heartbeat_s:
                log.warning("this agent did not run for %.1f s; peers may take it for dead", stopped)
            self._beat()
            for peer in silent:
                self._lost_by_silence(peer)
            await asyncio.sleep(silence.interval_s)

    @abstractmethod
    def _lost_by_silence(self, peer: Any) -> None:
        """``peer`` (what this class watches) gave no sign of life for three heartbeats."""

    async def _stop_tasks(self) -> None:
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def closed_without_goodbye(hello: Hello) -> str:
    """The message about an agent whose connection ended; the same on every side."""
    return f"{_agent(hello)} is gone: its connection closed without a goodbye"


def fell_silent(hello: Hello, age_s: float) -> str:
    """The message about an agent that is connected but gives no sign of life."""
    return f"{_agent(hello)} gave no sign of life for {age_s:.1f} s"


def _agent(hello: Hello) -> str:
    ranks = ranks_of(hello)
    who = "its agent" if len(ranks) == 1 else f"the agent of {names(ranks)}"
    return f"{who} (pid {hello.host.pid} on {hello.host.name})"


def row(hello: Hello, state: str, age_s: float) -> PeerRow:
    """The wire form of one agent."""
    return PeerRow(role=hello.role, ranks=hello.ranks, host=hello.host.name, state=state, last_seen_s=age_s)
