# SPDX-License-Identifier: Apache-2.0
"""The agent's side of its own processes: one unix socket on which they attach, exchange, report and end.

A process may hold its interpreter lock for seconds (loading libraries and weights), so silence means nothing here;
the end of its connection does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from afd.control.abort import Cause
from afd.control.channel import socket_path
from afd.control.events import happens
from afd.control.group import Control
from afd.control.link import Link
from afd.control.messages import (
    RESTS,
    AbortNotice,
    AnyMessage,
    Attach,
    Attached,
    Bye,
    Command,
    Gathered,
    Offer,
    Outcome,
    Report,
)
from afd.errors import AFDError, MisuseError
from afd.topology import Rank, Role

log = logging.getLogger(__name__)

ATTACH_S = 5.0
UNASKED_S = 3.0
"""How long the news that the role stops, or of the process that failed above a rank, may take when the rank has left
already. On a busy machine vLLM's API server needs two seconds to end after its engine."""


@dataclass(frozen=True)
class Process:
    """An attached process. ``rank`` is None for one that is no rank ("engine", "api", ...: its ``kind``)."""

    rank: Rank | None
    kind: str
    pid: int

    def __str__(self) -> str:
        return f"process {self.pid} ({self.rank or self.kind})"


OnDeath = Callable[[Process], Awaitable[Cause]]
OnFailure = Callable[[Cause], Awaitable[Cause]]
Stopping = Callable[[], bool]
OnAttach = Callable[[Process], None]
OnReport = Callable[[Process, Mapping[str, float], "str | None"], None]


class LocalHub:
    """Serves the agent's processes during one epoch. Make it with :func:`open_hub`."""

    def __init__(
        self,
        control: Control,
        on_report: OnReport | None,
        on_death: OnDeath | None,
        on_failure: OnFailure | None,
        stopping: Stopping,
        on_attach: OnAttach | None,
        address: str | None,
    ) -> None:
        self._control = control
        self._on_attach = on_attach
        self._on_report = on_report
        self._stopping = stopping
        self._on_death = on_death or self._describe_death
        self._on_failure = on_failure
        self._links: dict[Process, Link] = {}
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._unsubscribe: Callable[[], None] = lambda: None
        self._server: asyncio.AbstractServer | None = None
        self._open = True
        self._offered: set[Process] = set()
        self._detached = asyncio.Event()
        self.address = address or new_address()
        """What to put into ``AFD_AGENT_SOCKET`` of the processes that this agent starts."""
        self._outcomes: dict[tuple[str, Process], asyncio.Future[Outcome]] = {}
        self.resting: set[Rank] = set()
        """Ranks that wait for the next epoch."""
        self.lost = asyncio.Event()
        """Set when a process ended without a goodbye while the role was stopping."""
        self.lost_process: Process | None = None
        """The first of them."""

    @property
    def attached(self) -> tuple[Process, ...]:
        """Processes that are attached now."""
        return tuple(self._links)

    async def until_resting(self, ranks: Collection[Rank], timeout_s: float) -> bool:
        """After an abort: whether each of ``ranks`` rests, or still loads, within ``timeout_s``. One that loads hears
        of the end of the epoch as soon as it has loaded."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._detached.clear()
            loading = {process.rank for process in self._links if process not in self._offered}
            if self.resting | loading >= set(ranks):
                return True
            if not await happens(self._detached, max(0.0, deadline - time.monotonic())):
                return False

    async def command(self, command: Command, timeout_s: float) -> dict[Rank, Outcome]:
        """Have every rank process that is attached do it, and return what came of it. One that says nothing within
        ``timeout_s``, or leaves, has not done it."""
        loop = asyncio.get_running_loop()
        asked = {process: loop.create_future() for process in self._links if process.rank is not None}
        self._outcomes.update({(command.id, process): future for process, future in asked.items()})
        for process in asked:
            self._links[process].send(command)
        if asked:
            await asyncio.wait(asked.values(), timeout=timeout_s)
        late = Outcome(epoch=command.epoch, id=command.id, done=False, text=f"not done after {timeout_s:g} s")
        found = {}
        for process, future in asked.items():
            self._outcomes.pop((command.id, process), None)
            assert process.rank is not None
            found[process.rank] = future.result() if future.done() else late
        return found

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, path=socket_path(self.address))
        self._unsubscribe = self._control.abort.subscribe(self._abort_from_any_thread)

    async def close(self) -> None:
        """Stop listening, tell the processes that are still attached, close their connections."""
        self._open = False
        self._unsubscribe()
        if self._server is not None:
            self._server.close()
        for link in self._links.values():
            link.send(Bye(epoch=self._control.epoch, ranks=(), reason="the agent closes"))
        await asyncio.gather(*(link.finish() for link in list(self._links.values())))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---- connections ------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(reader, writer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if _same_user(writer.get_extra_info("socket")):
                await self._attach(link)
        except asyncio.CancelledError:
            pass  # the hub is closing; the stream server would only log it
        except AFDError as error:
            log.warning("a local process broke the protocol: %s", error)
        finally:
            self._tasks.discard(task)
            link.cut()

    async def _attach(self, link: Link) -> None:
        try:
            hello = await asyncio.wait_for(link.receive(), ATTACH_S)
        except asyncio.TimeoutError:
            return
        if not isinstance(hello, Attach):
            raise MisuseError("a local process began without attaching")
        rank = Rank.parse(hello.rank) if hello.rank else None
        process = Process(rank, hello.kind, hello.pid)
        if (cause := self._control.abort.cause) is not None:
            link.send(AbortNotice(epoch=self._control.epoch, cause=cause))
            await link.finish()
            return
        if rank is not None and (wrong := self._wrong_rank(rank, process)) is not None:
            await self._control.fail(wrong)
            return
        self._links[process] = link
        link.send(Attached(epoch=self._control.epoch))
        log.info("%s attached", process)
        if rank is not None:
            self.resting.discard(rank)
        if self._on_attach is not None:
            self._on_attach(process)
        bye = None
        try:
            bye = await self._listen_to(process, link)
        except AFDError as error:
            log.error("%s broke the protocol: %s", process, error)
        del self._links[process]
        if rank is not None and bye == RESTS:
            self.resting.add(rank)
        self._detached.set()
        lost = bye is None and self._open and self._control.abort.cause is None
        if lost and self._stopping():
            self.lost_process = self.lost_process or process
            self.lost.set()
        if lost and not self._stopping():
            await self._control.fail(await self._on_death(process))
            return
        log.info("%s detached: %s", process, bye or "it ended")
        if process.rank is not None and bye is not None and await self._unasked():
            host = self._control.hello.host.name
            text = f"{process} on {host} left by itself ({bye}); the reason is in its output"
            # An FFN rank leaves when all of Attention has said goodbye; Attention's agent knows why that was.
            hearsay = process.rank.role is Role.FFN
            cause = Cause("RoleFailedError", text, rank=str(process.rank), host=host, hearsay=hearsay)
            await self._control.fail(cause)

    async def _unasked(self) -> bool:
        """Whether a rank left although nobody stops the role: its engine shut it down. News of a stop may come a moment
        later than its effect."""
        for _ in range(20):
            if self._stopping() or not self._open or self._control.abort.cause is not None:
                return False
            await asyncio.sleep(UNASKED_S / 20)
        return True

    def _wrong_rank(self, rank: Rank, process: Process) -> Cause | None:
        if rank not in self._control.ranks:
            return Cause(
                "MisuseError", f"{process} attached to the agent of other ranks", rank=str(self._first)
            )
        if any(other.rank == rank for other in self._links):
            return Cause("PeerLostError", f"rank restarted: {process} attached again", rank=str(rank))
        return None

    async def _listen_to(self, process: Process, link: Link) -> str | None:
        """The reason of the goodbye, None when the connection ended without one."""
        while (message := await link.receive()) is not None:
            if isinstance(message, Bye):
                return message.reason
            self._handle(process, link, message)
        return None

    def _handle(self, process: Process, link: Link, message: AnyMessage) -> None:
        if isinstance(message, Report):
            if self._on_report is not None:
                self._on_report(process, message.counters, message.state)
        elif isinstance(message, AbortNotice):
            if message.cause.hearsay and self._stopping():
                log.info("%s saw the end of a peer that stops: %s", process, message.cause)
            else:
                self._background(self._fail(message.cause))
        elif isinstance(message, Offer):
            self._offer(process, link, message)
        elif isinstance(message, Outcome):
            future = self._outcomes.get((message.id, process))
            if future is not None and not future.done():
                future.set_result(message)
        else:
            raise MisuseError(f"{process} sent {type(message).__name__}")

    def _offer(self, process: Process, link: Link, offer: Offer) -> None:
        self._offered.add(process)
        if self._control.abort.cause is not None:
            return  # it has been told, or is about to be
        try:
            values = {Rank.parse(name): value for name, value in offer.values.items()}
            future = self._control.offer(offer.key, values, offer.deadline_s, offer.must_agree)
        except AFDError as error:
            self._background(self._control.fail(Cause.of(error, str(process.rank or self._first))))
            return

        def deliver(done: asyncio.Future[dict[Rank, object]]) -> None:
            if not done.cancelled() and done.exception() is None:
                named = {str(rank): value for rank, value in done.result().items()}
                link.send(Gathered(epoch=self._control.epoch, key=offer.key, values=named))

        future.add_done_callback(deliver)

    # ---- failures ----------------------------------------------------------------------------------------

    async def _fail(self, cause: Cause) -> None:
        await self._control.fail(cause if self._on_failure is None else await self._on_failure(cause))

    @property
    def _first(self) -> Rank:
        return self._control.ranks[0]

    async def _describe_death(self, process: Process) -> Cause:
        text = f"{process} on {self._control.hello.host.name} ended without a goodbye: killed or crashed"
        return Cause(
            "RoleFailedError", text, rank=str(process.rank or self._first), host=self._control.hello.host.name
        )

    def _abort_from_any_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._tell_abort)

    def _tell_abort(self) -> None:
        cause = self._control.abort.cause
        assert cause is not None
        for link in self._links.values():
            link.send(AbortNotice(epoch=self._control.epoch, cause=cause))

    def _background(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


@asynccontextmanager
async def open_hub(
    control: Control,
    *,
    on_report: OnReport | None = None,
    on_death: OnDeath | None = None,
    on_failure: OnFailure | None = None,
    stopping: Stopping = lambda: False,
    on_attach: OnAttach | None = None,
    address: str | None = None,
) -> AsyncIterator[LocalHub]:
    """A hub for the processes of the agent that owns ``control``, at ``address`` (default: a new one).

    ``on_attach`` hears of each process that attaches, ``on_report`` receives counters and states. When a process ends
    without a goodbye the epoch fails with the cause that ``on_death`` gives (it may wait a moment for an exit status),
    or with one that names rank and pid. When one reports a failure, ``on_failure`` may know of a cause behind it. While
    ``stopping`` says yes, neither that nor what a process sees of a peer's end is a failure.
    """
    hub = LocalHub(control, on_report, on_death, on_failure, stopping, on_attach, address)
    await hub.start()
    try:
        yield hub
    finally:
        await hub.close()


def new_address() -> str:
    """A name for a hub's socket that nobody else has."""
    return f"@afd-{os.getpid()}-{secrets.token_hex(8)}"


def _same_user(sock: socket.socket) -> bool:
    """An abstract socket has no file mode; the kernel knows who connected."""
    _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return uid in (0, os.geteuid())
