# SPDX-License-Identifier: Apache-2.0
"""Every agent but the root: finds the root, is compared, follows its decisions."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence

from afd.config import AFDConfig
from afd.control.abort import Cause
from afd.control.channel import format_address, prove, proven
from afd.control.events import happens
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
from afd.control.handshake import names, ranks_of
from afd.control.link import Link
from afd.control.liveness import MISSED, Silence
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
    PeerRow,
    Refusal,
    Waiting,
    Welcome,
)
from afd.errors import (
    AFDError,
    ClosedError,
    ConfigError,
    MismatchError,
    MisuseError,
    PeerAbsentError,
    PeerLostError,
)
from afd.topology import Rank, Role

log = logging.getLogger(__name__)

CONNECT_S = 3.0
"""How long one attempt to connect, and the root's first words, may take."""
RETRY_S = (0.1, 1.0)
"""First and longest pause between attempts."""
ROOT_FIRST_S = 0.5
"""How much longer than its own deadline a joiner waits for what a connected root says at its deadline."""
VERDICT_S = 1.0
"""How long an agent that reports a failure waits for the root's decision."""


class _TryAgain(Exception):
    """This attempt failed; the text says why, for the log and for the message at the deadline."""


class Joiner(Control):
    """The control plane of an agent that does not own world rank 0."""

    def __init__(self, config: AFDConfig, hello: Hello, on_bye: OnBye | None) -> None:
        super().__init__(config, hello, on_bye)
        self._token = config.token()
        self._root = format_address(config.host, config.port)
        self._link: Link | None = None
        self._root_left: str | None = None
        self._root_gone = False
        self._rows: tuple[PeerRow, ...] = ()
        self._missing: tuple[Rank, ...] = (self.topology.root,)
        self._silence: Silence[str] = Silence(self._heartbeat_s / 5)
        self._claimed: Cause | None = None
        self._ended = asyncio.Event()

    async def form(self, on_waiting: OnWaiting | None) -> None:
        """Connect to the root, again and again, until it welcomes this agent. Raises PeerAbsentError,
        MismatchError."""
        limit_s = self.config.timeouts.rendezvous_s
        notices = Notices(limit_s, on_waiting)
        detail, pause = "", RETRY_S[0]
        while True:
            try:
                # A root that started at the same time names the missing ranks to all; let it be first.
                left = max(0.0, limit_s - notices.elapsed_s) + ROOT_FIRST_S
                await asyncio.wait_for(self._attempt(notices), left)
                return
            except asyncio.TimeoutError:
                break
            except _TryAgain as again:
                detail, self._missing = str(again), (self.topology.root,)
            if notices.passed:
                break
            notices.tell(self._missing, detail)
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, RETRY_S[1])
        tried = f" (last attempt: {detail})" if detail and self._missing == (self.topology.root,) else ""
        raise PeerAbsentError(
            f"{names(self._missing)} did not arrive at {self._root} within {limit_s:g} s{tried}"
        )

    async def _attempt(self, notices: Notices) -> None:
        try:
            connecting = asyncio.open_connection(self.config.host, self.config.port)
            link = Link(*await asyncio.wait_for(connecting, CONNECT_S))
        except (OSError, asyncio.TimeoutError) as error:
            raise _TryAgain(f"cannot connect to {self._root}: {str(error) or 'no answer'}") from error
        try:
            welcome = await self._introduce(link, notices)
        except BaseException:
            link.cut()
            raise
        self._link, self.epoch, self.hellos = link, welcome.epoch, welcome.hellos
        self.addresses = (link.local,)
        self._rows = tuple(row(other, "", 0.0) for other in self.hellos)
        self._silence.watch("root", max(self._heartbeat_s, self.hellos[0].heartbeat_s))
        self._spawn(self._follow(link))
        self._spawn(self._pulse(self._silence))

    async def _introduce(self, link: Link, notices: Notices) -> Welcome:
        challenge = await self._next(link, CONNECT_S)
        if isinstance(challenge, Refusal):
            raise _error_of(challenge)
        if not isinstance(challenge, Challenge):
            raise _TryAgain(f"{self._root} does not speak like a rendezvous")
        if challenge.token != (self._token is not None):
            await self._refuse_token(link, challenge.token)
        nonce = os.urandom(16)
        proof = prove(self._token, "join", challenge.nonce, nonce)
        link.send(Join(hello=self.hello, nonce=nonce, proof=proof))
        trusted = False
        while True:
            message = await self._next(link, CONNECT_S)
            if isinstance(message, Refusal):
                raise _error_of(message)
            if isinstance(message, (Waiting, Welcome)) and not trusted:
                if not proven(self._token, message.proof, "root", nonce, challenge.nonce):
                    raise MismatchError(f"the token of {self._root} is not that of {names(self.ranks)}")
                trusted = True
            if isinstance(message, Welcome):
                self._check(message)
                return message
            if isinstance(message, Waiting):
                try:
                    self._missing = tuple(Rank.parse(name) for name in message.missing)
                except ConfigError as error:
                    raise _TryAgain(f"{self._root} waits for something else: {error}") from error
                if self._missing:
                    notices.tell(self._missing, f"connected to {self._root}")
            link.send(Heartbeat(epoch=""))  # the root's beat sets the pace until the group is complete

    def _check(self, welcome: Welcome) -> None:
        """Without a token anybody may answer at the root's address; only a welcome to this agent's own group is one."""
        try:
            ranks = [rank for hello in welcome.hellos for rank in ranks_of(hello)]
        except (AFDError, ValueError) as error:
            raise _TryAgain(f"{self._root} welcomes to a group with unknown ranks: {error}") from error
        whole = sorted(ranks) == sorted(self.topology.ranks) and self.topology.root in ranks_of(
            welcome.hellos[0]
        )
        if not whole or not welcome.epoch or self.hello not in welcome.hellos:
            raise _TryAgain(
                f"{self._root} welcomes to another group: {names(ranks)} instead of {names(self.topology.ranks)}"
            )

    async def _refuse_token(self, link: Link, wanted: bool) -> None:
        mine, theirs = names(self.ranks), f"the rendezvous at {self._root}"
        has, lacks = (theirs, mine) if wanted else (mine, theirs)
        text = f"{has} has a token (auth.token_file), {lacks} has none"
        link.send(Refusal(kind="MismatchError", message=text))
        await link.finish()
        raise MismatchError(text)

    async def _next(self, link: Link, timeout_s: float) -> AnyMessage:
        try:
            message = await asyncio.wait_for(link.receive(), timeout_s)
        except asyncio.TimeoutError:
            raise _TryAgain(f"{self._root} accepts connections but says nothing") from None
        except MismatchError as error:
            link.send(Refusal(kind="MismatchError", message=str(error)))
            await link.finish()
            raise MismatchError(f"{self._root}: {error}") from error
        except MisuseError as error:
            raise _TryAgain(f"{self._root}: {error}") from error
        if message is None:
            raise _TryAgain(f"{self._root} closed the connection")
        return message

    # ---- for the agent ----------------------------------------------------------------------------------

    def peers(self) -> list[PeerInfo]:
        found = []
        for peer in self._rows:
            ranks = tuple(Rank(Role(peer.role), index) for index in peer.ranks)
            if ranks != self.ranks:
                is_root = self.topology.root in ranks
                age = self._silence.age("root") + (0.0 if is_root else peer.last_seen_s)
                state = peer.state
                if is_root and (self._root_gone or self._root_left is not None):
                    state = "lost" if self._root_left is None else "left"
                found.append(PeerInfo(Role(peer.role), ranks, peer.host, state, round(age, 3)))
        return found

    async def fail(self, cause: Cause) -> None:
        if self.abort.cause is None and self._claimed is None and self._link is not None:
            self._claimed = cause
            self._link.send(AbortNotice(epoch=self.epoch, cause=cause))
        if self._root_left is not None or self._root_gone:  # nobody decides any more
            self._end(self._claimed or cause)
        if not await happens(self._ended, VERDICT_S):
            self._end(self._claimed or cause)

    async def close(self, reason: str) -> None:
        if self._closed is None:
            self._closed = reason
            self._end_rounds(ClosedError(f"this side closed the control channel ({reason})"))
            if self._link is not None:
                if self.abort.cause is None:
                    ranks = tuple(str(rank) for rank in self.ranks)
                    self._link.send(Bye(epoch=self.epoch, ranks=ranks, reason=reason))
                await self._link.finish()
        await self._stop_tasks()

    # ---- messages ----------------------------------------------------------------------------------------

    async def _follow(self, link: Link) -> None:
        text = None
        try:
            while text is None and (message := await link.receive()) is not None:
                self._silence.beat("root")
                if (text := self._foreign(message)) is None:
                    self._handle(message)
        except (MisuseError, MismatchError) as error:
            text = f"the agent of {names(ranks_of(self.hellos[0]))} broke the protocol: {error}"
        self._silence.forget("root")
        link.cut()  # the root may be waiting for our end before it closes
        if self._root_left is None and self._closed is None:
            self._root_lost(text or closed_without_goodbye(self.hellos[0]))

    def _foreign(self, message: AnyMessage) -> str | None:
        """What is wrong with a message that is not of this group: another epoch, or ranks that it does not have."""
        if not isinstance(message, (Heartbeat, Gathered, AbortNotice, Bye)):
            return None
        root = self.topology.root
        if message.epoch != self.epoch:
            return f"rank restarted: {root} speaks epoch {message.epoch}, the group is in epoch {self.epoch}"
        known = {str(rank) for rank in self.topology.ranks}
        if isinstance(message, Gathered):
            strange = known ^ set(message.values)
        elif isinstance(message, Bye):
            strange = set(message.ranks) - known
        elif isinstance(message, Heartbeat):
            rows = {(peer.role, peer.ranks) for peer in message.peers}
            agents = {(hello.role, hello.ranks) for hello in self.hellos}
            strange = {f"{role or 'nobody'} {', '.join(map(str, ranks))}" for role, ranks in rows - agents}
        else:
            return None
        kind = type(message).__name__
        return f"{root} broke the protocol: {kind} about {', '.join(sorted(strange))}" if strange else None

    def _handle(self, message: AnyMessage) -> None:
        if isinstance(message, Heartbeat):
            self._rows = message.peers
        elif isinstance(message, Gathered):
            self._gathered(message.key, message.values)
        elif isinstance(message, AbortNotice):
            self._end(message.cause)
        elif isinstance(message, Bye):
            ranks = tuple(Rank.parse(name) for name in message.ranks)
            if self.topology.root in ranks:
                self._root_left = message.reason
                self._silence.forget("root")
                self._end_rounds(
                    PeerLostError(f"{names(ranks)} said goodbye ({message.reason})", message.ranks[0])
                )
            self._goodbye(ranks, message.reason)
        elif isinstance(message, Command):
            self.on_command(message)
        else:
            log.warning("the root sent an unexpected %s", type(message).__name__)

    def _offer(self, offer: Offer) -> None:
        if self._root_left is not None:
            text = f"{self.topology.root} said goodbye ({self._root_left}) but is needed for {offer.key!r}"
            raise PeerLostError(text, str(self.topology.root))
        if self._link is not None:
            self._link.send(offer)

    def _wish(self, command: Command) -> None:
        if self._link is not None:
            self._link.send(command)

    def _beat(self) -> None:
        if self._link is not None:
            self._link.send(Heartbeat(epoch=self.epoch, state=self._state))

    def _lost_by_silence(self, peer: str) -> None:
        self._silence.forget(peer)
        self._root_lost(fell_silent(self.hellos[0], MISSED * self._heartbeat_s))
        if self._link is not None:
            self._link.cut()

    def _root_lost(self, text: str) -> None:
        """Nobody is left to decide. What this agent knows at first hand comes before what it sees of the root."""
        self._root_gone = self.abort.cause is None
        root = self.hellos[0]
        seen = Cause("PeerLostError", text, rank=str(self.topology.root), host=root.host.name)
        claimed = self._claimed
        self._end(seen if claimed is None or claimed.hearsay else claimed)

    def _end(self, cause: Cause) -> None:
        self._verdict(cause)
        self._ended.set()


def _error_of(refusal: Refusal) -> AFDError | _TryAgain:
    if refusal.kind == "retry":
        return _TryAgain(refusal.message)
    if refusal.kind == "MismatchError":
        return MismatchError(refusal.message, refusal.differences)
    kinds: Sequence[type[AFDError]] = (PeerAbsentError, PeerLostError, ConfigError)
    found = next((kind for kind in kinds if kind.__name__ == refusal.kind), MisuseError)
    return found(refusal.message)
