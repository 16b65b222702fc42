# SPDX-License-Identifier: Apache-2.0
"""The step channel, Attention's side. :mod:`afd.control.steps` says what it is for."""

from __future__ import annotations

import os
import select
from collections.abc import Mapping
from typing import TypeVar

from afd.control.abort import Abort
from afd.control.channel import READABLE, Connection, Deadline, Waker, dial, prove, proven
from afd.control.messages import AnyMessage, Bye, Challenge, Message, Refusal, Step, StepHello, StepReady
from afd.errors import AFDError, ClosedError, MismatchError, MisuseError, PeerLostError
from afd.topology import Rank

_Answer = TypeVar("_Answer", bound=Message)


class StepSender:
    """The Attention side: announces the steps of ``rank`` to every FFN rank. Not thread-safe."""

    def __init__(
        self, rank: Rank, epoch: str, *, abort: Abort, step_s: float, token: bytes | None = None
    ) -> None:
        self._rank, self._epoch, self._token = rank, epoch, token
        self._abort, self._step_s = abort, step_s
        self._targets: dict[Rank, Connection] = {}
        self._waker = Waker(abort)
        self._closed = False

    def connect(self, addresses: Mapping[Rank, str], timeout_s: float) -> None:
        """Connect to the step channel of each FFN rank and wait until it agrees.

        Raises :class:`PeerLostError` when it is not there, :class:`MismatchError` or :class:`MisuseError` when it
        refuses, and the abort's cause.
        """
        deadline = Deadline(timeout_s)
        for target, address in addresses.items():
            self._targets[target] = dial(address, self._waker, self._abort, deadline, target)
        nonce, said = os.urandom(16), {}
        for target in addresses:
            challenge = self._answer(target, Challenge, deadline, timeout_s)
            said[target] = (challenge.nonce, nonce, self._epoch, str(self._rank), str(target))
            proof = prove(self._token, "step", *said[target])
            hello = StepHello(epoch=self._epoch, rank=str(self._rank), nonce=nonce, proof=proof)
            self._targets[target].send(hello, self._waker, self._abort, deadline, target)
        for target in addresses:
            ready = self._answer(target, StepReady, deadline, timeout_s)
            if not proven(self._token, ready.proof, "steps", *said[target]):
                raise MismatchError(f"the token of {target} is not that of {self._rank}")

    def send(self, step: Step) -> None:
        """Announce ``step`` to every FFN rank.

        Raises the abort's cause, and :class:`PeerLostError` when an FFN rank is gone, has said goodbye or takes
        nothing for ``step_s``.
        """
        self.check()
        deadline = Deadline(self._step_s)
        for target, connection in self._targets.items():
            connection.send(step, self._waker, self._abort, deadline, target)

    def check(self) -> None:
        """Raise like :meth:`send` if an FFN rank is known to be gone; takes a few microseconds."""
        if self._closed:
            raise ClosedError(f"the step channel of {self._rank} is closed")
        self._abort.check()
        for target, connection in self._targets.items():
            for message in connection.receive():
                raise _unasked(target, message)
            if connection.eof:
                raise PeerLostError(
                    f"{target} closed its step connection to {self._rank} without a goodbye", str(target)
                )

    def close(self, reason: str) -> None:
        """Say goodbye to every FFN rank and close. Harmless when called again."""
        if self._closed:
            return
        self._closed = True
        for connection in self._targets.values():
            connection.send_now(Bye(epoch=self._epoch, ranks=(str(self._rank),), reason=reason))
            connection.close()
        self._waker.close()

    def _answer(self, target: Rank, kind: type[_Answer], deadline: Deadline, timeout_s: float) -> _Answer:
        """The next message of ``target`` before it has agreed, which must be of ``kind``."""
        connection = self._targets[target]
        poller = select.poll()
        poller.register(connection, READABLE)
        poller.register(self._waker, select.POLLIN)
        while True:
            if messages := connection.receive():
                message, *more = messages
                if isinstance(message, Refusal):
                    raise _refused(message, target)
                if not isinstance(message, kind):
                    raise MisuseError(
                        f"{target} answered a step connection with {type(message).__name__}, not {kind.__name__}"
                    )
                if more:  # it would be lost: nothing is read again until the first step
                    raise _unasked(target, more[0])
                return message
            if connection.eof:
                raise PeerLostError(f"{target} closed the step connection before it agreed", str(target))
            if deadline.passed:
                raise PeerLostError(
                    f"{target} did not agree to a step connection within {timeout_s:g} s", str(target)
                )
            poller.poll(deadline.poll_ms())
            self._abort.check()


def _unasked(target: Rank, message: AnyMessage) -> AFDError:
    """What a message means that an FFN rank sends by itself."""
    if isinstance(message, Bye):
        return PeerLostError(f"{target} said goodbye ({message.reason})", str(target))
    return MisuseError(f"{target} sent {type(message).__name__} on the step channel")


def _refused(refusal: Refusal, target: Rank) -> AFDError:
    if refusal.kind == "MismatchError":
        return MismatchError(refusal.message, refusal.differences)
    if refusal.kind == "PeerLostError":
        return PeerLostError(refusal.message, str(target))
    return MisuseError(refusal.message)
