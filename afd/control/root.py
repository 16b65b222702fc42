# SPDX-License-Identifier: Apache-2.0
"""The root of a group: listens, compares hellos, mints the epoch, gathers exchanges, decides the root cause."""

from __future__ import annotations

import asyncio
import enum
import logging
import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from afd.config import AFDConfig
from afd.control.abort import Cause
from afd.control.channel import prove, proven
from afd.control.events import happens
from afd.control.gather import Gatherings
from afd.control.group import (
    Control,
    Notices,
    OnBye,
    OnWaiting,
    PeerInfo,
    closed_without_goodbye,
    fell_silent,
    row,
)
from afd.control.handshake import differences, mismatch, names, ranks_of
from afd.control.link import Link
from afd.control.liveness import Silence
from afd.control.messages import (
    AbortNotice,
    AnyMessage,
    Bye,
    Challenge,
    Command,
    Gathered,
    Heartbeat,
    Hello,
    Join,
    Offer,
    Refusal,
    Waiting,
    Welcome,
)
from afd.control.ports import listen
from afd.control.rivals import Rivals
from afd.errors import AFDError, ClosedError, Difference, MismatchError, PeerAbsentError
from afd.topology import Rank

log = logging.getLogger(__name__)

HELLO_S = 5.0
"""How long a connection may take to say who it is."""
STRANGERS = 64
"""Connections that may be open at once without having said who they are."""
LINGER_S = 1.5
"""How long a root that refuses keeps listening, so that ranks which come a little later hear the reason too."""
HEARSAY_S = 0.3
"""How long the root waits for a first-hand account after it has heard of a failure at second hand."""


class _Agent:
    def __init__(self, hello: Hello, link: Link, proof: bytes) -> None:
        self.hello, self.link, self.proof = hello, link, proof
        self.ranks = ranks_of(hello)
        self.state = ""
        self.left: str | None = None
        self.lost = False


class _Phase(enum.Enum):
    FORMING = enum.auto()
    REFUSED = enum.auto()
    FORMED = enum.auto()
    ENDED = enum.auto()


class Root(Control):
    """The control plane of the agent that owns world rank 0."""

    def __init__(self, config: AFDConfig, hello: Hello, on_bye: OnBye | None) -> None:
        super().__init__(config, hello, on_bye)
        self.epoch = secrets.token_hex(8)
        self._token = config.token()
        self._phase = _Phase.FORMING
        self._agents: list[_Agent] = []
        self._links: set[Link] = set()
        self._strangers = 0
        self._refusal: AFDError | None = None
        self._told: set[Rank] = set()
        self._rivals = Rivals()
        self._changed = asyncio.Event()
        self._detail = ""
        self._silence: Silence[_Agent] = Silence(self._heartbeat_s / 5)
        self._gatherings = Gatherings(self.topology.ranks, self._complete, self._claim)
        self._hearsay: Cause | None = None
        self._ended = asyncio.Event()
        self._socket = listen(
            config.host,
            config.port,
            "the rendezvous",
            "stop that process, or choose another port with --afd-port on both roles",
            elsewhere=True,
        )
        address, self.port = self._socket.getsockname()[:2]
        if address in ("0.0.0.0", "::") and config.auth.token_file is None:
            log.warning(
                "the rendezvous listens on all addresses of this machine, and whoever reaches port %d may join; set "
                "--afd-auth-token-file on both roles, or --afd-host to an address of this machine",
                self.port,
            )
        self._server: asyncio.AbstractServer | None = None

    async def form(self, on_waiting: OnWaiting | None) -> None:
        """Wait until all ranks of both roles are here. Raises PeerAbsentError or MismatchError, told to all."""
        self._server = await asyncio.start_server(self._serve, sock=self._socket)
        self._spawn(self._pulse(self._silence))
        notices = Notices(self.config.timeouts.rendezvous_s, on_waiting)
        while self._phase is _Phase.FORMING and (missing := self._missing()):
            if notices.passed:
                detail = f" ({self._detail})" if self._detail else ""
                where = f"{self.config.host}:{self.port}"
                text = f"{names(missing)} did not arrive at {where} within {self.config.timeouts.rendezvous_s:g} s"
                self._refuse(PeerAbsentError(text + detail))
                break
            notices.tell(missing, self._detail)
            waiting = Waiting(
                missing=tuple(str(rank) for rank in missing), elapsed_s=round(notices.elapsed_s, 3)
            )
            for agent in self._agents:
                agent.link.send(waiting)
            self._changed.clear()
            left = max(0.0, self.config.timeouts.rendezvous_s - notices.elapsed_s)
            await happens(self._changed, min(1.0, left + 0.001))
        if self._refusal is not None:
            # Those who are missing may be about to connect: tell them too, but within seconds of the later hello.
            if isinstance(self._refusal, MismatchError) and set(self._missing()) - self._told:
                await asyncio.sleep(LINGER_S)
            raise self._refusal
        self._phase = _Phase.FORMED
        self.hellos = (self.hello, *(agent.hello for agent in self._agents))
        self.addresses = tuple(agent.link.local for agent in self._agents)
        for agent in self._agents:
            agent.link.send(Welcome(epoch=self.epoch, hellos=self.hellos, proof=agent.proof))

    # ---- for the agent ----------------------------------------------------------------------------------

    def peers(self) -> list[PeerInfo]:
        return [
            PeerInfo(
                agent.ranks[0].role,
                agent.ranks,
                agent.hello.host.name,
                "lost" if agent.lost else "left" if agent.left is not None else agent.state,
                round(self._silence.age(agent), 3),
            )
            for agent in self._agents
        ]

    async def fail(self, cause: Cause) -> None:
        self._claim(cause)
        await self._ended.wait()

    async def close(self, reason: str) -> None:
        if self._closed is None:
            self._closed = reason
            if self._hearsay is not None:
                self._decide(self._hearsay)
            self._gatherings.stop()
            self._end_rounds(ClosedError(f"this side closed the control channel ({reason})"))
            if self.abort.cause is None and self._phase is _Phase.FORMED:
                self._broadcast(self._bye(self.ranks, reason))
            self._phase = _Phase.ENDED
        if self._server is not None:
            self._server.close()
        self._socket.close()
        await asyncio.gather(*(link.finish() for link in list(self._links)))
        await self._stop_tasks()

    # ---- connections ------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(reader, writer)
        self._links.add(link)
        agent = None
        try:
            agent = await self._meet(link)
            if agent is not None:
                await self._listen_to(agent)
        except asyncio.CancelledError:
            pass  # the agent is closing; the stream server would only log it
        finally:
            self._links.discard(link)
            link.cut()

    async def _meet(self, link: Link) -> _Agent | None:
        """Find out who connected. None, and an explanation to them, when they do not become part of the group."""
        if self._strangers >= STRANGERS:
            return None
        self._strangers += 1
        nonce = os.urandom(16)
        try:
            link.send(Challenge(nonce=nonce, token=self._token is not None))
            join = await asyncio.wait_for(link.receive(), HELLO_S)
            if isinstance(join, Refusal) and self._token is None and self._phase is _Phase.FORMING:
                self._refuse(MismatchError(join.message, join.differences))
            if not isinstance(join, Join):
                return None
            ranks = ranks_of(join.hello)
        except asyncio.TimeoutError:
            return None
        except MismatchError as error:  # AFD of another protocol version
            if self._token is None and self._phase is _Phase.FORMING:
                self._refuse(MismatchError(f"{link.name}: {error}", error.differences))
                await self._turn_away(link, self._refusal_message())
            return None
        except (AFDError, ValueError) as error:
            log.info("closed a connection from %s: %s", link.name, error)
            return None
        finally:
            self._strangers -= 1
        if not proven(self._token, join.proof, "join", nonce, join.nonce):
            await self._turn_away_stranger(link, ranks)
            return None
        agent = _Agent(join.hello, link, prove(self._token, "root", join.nonce, nonce))
        refusal = self._admit(agent)
        if refusal is not None:
            await self._turn_away(link, refusal)
            return None
        waiting = tuple(str(rank) for rank in self._missing())
        link.send(Waiting(missing=waiting, elapsed_s=0.0, proof=agent.proof))
        self._changed.set()
        return agent

    async def _turn_away(self, link: Link, refusal: Refusal) -> None:
        link.send(refusal)
        await link.finish()

    async def _turn_away_stranger(self, link: Link, ranks: Sequence[Rank]) -> None:
        """A wrong token ends nothing here: anybody who can connect could have sent it."""
        text = f"the token of {names(ranks)} is not that of {names(self.ranks)} (auth.token_file)"
        self._detail = f"refused {link.name}: {text}"
        log.warning("%s", self._detail)
        self._changed.set()
        await self._turn_away(link, Refusal(kind="MismatchError", message=text))

    def _admit(self, agent: _Agent) -> Refusal | None:
        """Add the agent to the group, or say why not. May end the group."""
        if self._phase is _Phase.REFUSED:
            self._told.update(agent.ranks)
            return self._refusal_message()
        if self._phase is _Phase.ENDED or self.abort.cause is not None:
            return Refusal(kind="retry", message=f"epoch {self.epoch} is ending: {self.abort.cause}")
        present = [self.hello, *(other.hello for other in self._agents)]
        found = differences([*present, agent.hello]) or self._strange_ranks(agent)
        if found:
            error = mismatch(found)
            if self._phase is _Phase.FORMING:
                self._told.update(agent.ranks)
                self._refuse(error)
            return Refusal(kind="MismatchError", message=str(error), differences=found)
        rivals = [other for other in self._agents if set(other.ranks) & set(agent.ranks)]
        if rivals and self.config.on_loss == "rejoin":
            return self._rivals.put_off(agent.hello, rivals[0].hello, self._silence.age(rivals[0]))
        text = f"rank restarted: {names(agent.ranks)} said hello again from {agent.hello.host.name}"
        if self._phase is _Phase.FORMED:
            self._claim(Cause("PeerLostError", text, rank=str(agent.ranks[0]), host=agent.hello.host.name))
            return Refusal(kind="retry", message=f"epoch {self.epoch} is ending: {text}")
        for rival in rivals:
            self._agents.remove(rival)
            self._silence.forget(rival)
            self._spawn(self._turn_away(rival.link, Refusal(kind="PeerLostError", message=text)))
        self._agents.append(agent)
        self._detail = ""
        self._silence.watch(agent, max(self._heartbeat_s, agent.hello.heartbeat_s))
        return None

    def _strange_ranks(self, agent: _Agent) -> tuple[Difference, ...]:
        strange = [r for r in agent.ranks if r not in self.topology.ranks or r in self.ranks]
        if not strange and agent.ranks:
            return ()
        mine = {str(rank): f"the root of {self.topology}" for rank in self.ranks[:1]}
        return (Difference("rank", {**{str(r): "a rank that has no place here" for r in strange}, **mine}),)

    async def _listen_to(self, agent: _Agent) -> None:
        text = closed_without_goodbye(agent.hello)
        try:
            while (message := await agent.link.receive()) is not None:
                self._silence.beat(agent)
                self._handle(agent, message)
        except AFDError as error:
            text = f"the agent of {names(agent.ranks)} broke the protocol: {error}"
        finally:
            if agent.left is None:
                self._lost(agent, text)

    def _lost(self, agent: _Agent, text: str) -> None:
        self._silence.forget(agent)
        if agent not in self._agents or self._closed is not None:
            return
        if self._phase is _Phase.FORMING:
            self._agents.remove(agent)
            self._detail = f"{names(agent.ranks)}: {text}"
            self._changed.set()
        elif self._phase is _Phase.FORMED:
            agent.lost = True
            self._claim(Cause("PeerLostError", text, rank=str(agent.ranks[0]), host=agent.hello.host.name))

    def _lost_by_silence(self, peer: _Agent) -> None:
        self._lost(peer, fell_silent(peer.hello, self._silence.age(peer)))
        peer.link.cut()

    # ---- messages ----------------------------------------------------------------------------------------

    def _handle(self, agent: _Agent, message: AnyMessage) -> None:
        if not isinstance(message, (Heartbeat, Offer, AbortNotice, Bye, Command)):
            log.warning("%s sent an unexpected %s", names(agent.ranks), type(message).__name__)
        elif message.epoch != self.epoch and (message.epoch or not isinstance(message, Heartbeat)):
            who = names(agent.ranks)
            text = f"rank restarted: {who} speaks epoch {message.epoch}, the group is in epoch {self.epoch}"
            self._claim(Cause("PeerLostError", text, rank=str(agent.ranks[0]), host=agent.hello.host.name))
        elif isinstance(message, Heartbeat):  # without an epoch until the group is complete
            agent.state = message.state
        elif isinstance(message, Offer):
            if foreign := set(message.values) - {str(rank) for rank in agent.ranks}:
                text = f"{names(agent.ranks)} offered {message.key!r} for {', '.join(sorted(foreign))}"
                self._claim(Cause("MisuseError", text, rank=str(agent.ranks[0])))
            else:
                self._gatherings.add(message)
        elif isinstance(message, AbortNotice):
            self._claim(message.cause)
        elif isinstance(message, Command):
            self._wish(message)
        else:
            agent.left = message.reason
            self._silence.forget(agent)
            self._broadcast(self._bye(agent.ranks, message.reason), without=agent)
            self._goodbye(agent.ranks, message.reason)
            self._gatherings.leave(agent.ranks, message.reason)

    def _offer(self, offer: Offer) -> None:
        self._gatherings.add(offer)

    def _wish(self, command: Command) -> None:
        self._broadcast(command)
        self.on_command(command)

    def _complete(self, key: str, values: Mapping[str, Any]) -> None:
        try:
            self._broadcast(Gathered(epoch=self.epoch, key=key, values=values))
        except AFDError as error:  # together the values are too long for one message
            self._claim(Cause.of(error, str(self.ranks[0])))
            return
        self._gathered(key, values)

    # ---- decisions ---------------------------------------------------------------------------------------

    def _refuse(self, error: AFDError) -> None:
        self._phase, self._refusal = _Phase.REFUSED, error
        for agent in self._agents:
            self._spawn(self._turn_away(agent.link, self._refusal_message()))
        self._changed.set()

    def _refusal_message(self) -> Refusal:
        error = self._refusal
        found = error.differences if isinstance(error, MismatchError) else ()
        return Refusal(kind=type(error).__name__, message=str(error), differences=found)

    def _claim(self, cause: Cause) -> None:
        """Somebody says why the epoch must end. The first who saw it himself is believed."""
        if self.abort.cause is not None:
            return
        if not cause.hearsay:
            self._decide(cause)
        elif self._hearsay is None:
            self._hearsay = cause
            self._spawn(self._decide_later(cause))

    async def _decide_later(self, cause: Cause) -> None:
        await asyncio.sleep(HEARSAY_S)
        self._decide(cause)

    def _decide(self, cause: Cause) -> None:
        if self.abort.cause is None:
            self._broadcast(AbortNotice(epoch=self.epoch, cause=cause))
            self._verdict(cause)
            self._gatherings.stop()
        self._ended.set()

    def _broadcast(self, message: AnyMessage, without: _Agent | None = None) -> None:
        for agent in self._agents:
            if agent is not without:
                agent.link.send(message)

    def _bye(self, ranks: Sequence[Rank], reason: str) -> Bye:
        return Bye(epoch=self.epoch, ranks=tuple(str(rank) for rank in ranks), reason=reason)

    def _beat(self) -> None:
        rows = [row(self.hello, self._state, 0.0)]
        rows += [row(a.hello, a.state, round(self._silence.age(a), 3)) for a in self._agents]
        self._broadcast(Heartbeat(epoch=self.epoch, state=self._state, peers=tuple(rows)))

    def _missing(self) -> list[Rank]:
        here = {*self.ranks, *(rank for agent in self._agents for rank in agent.ranks)}
        return [rank for rank in self.topology.ranks if rank not in here]
