# SPDX-License-Identifier: Apache-2.0
"""How the FFN ranks of a group hand each other their rows: one socket between any two, one meeting per work.

A meeting is also the barrier before the collectives inside vLLM's layers, which spin in shared memory and obey nobody:
once all ranks have met, each of them has what it needs to get there. So a wait for a rank that waits for Attention is
one here, where it ends with an abort, with the end of that rank or at the deadline.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor, uint8

from afd.connectors.base import Slot
from afd.control.abort import Abort
from afd.control.channel import Deadline, Waker
from afd.errors import MisuseError, PeerLostError
from afd.topology import Rank, Role

_HELLO = struct.Struct("<16sI")
"""Epoch and index of the rank that connects."""
_HEADER = struct.Struct("<QIII")
"""Step, layer, ubatch, and how many rows follow."""

_CREDENTIALS = struct.Struct("3i")
"""Process, user and group at the other end of a unix socket."""
GRACE_S = 0.5
"""How long after an abort a meeting that has begun may go on: those who came at all have come by then."""
GONE_MS = 200
"""How long it may take until the end of a process is seen on all of its sockets."""


class RowMesh:
    """This rank's sockets to the others. One thread uses it.

    Listens below ``directory`` from construction on, where only this user may look; :meth:`connect` meets the others
    once each of them listens. A meeting that takes longer than ``step_s`` seconds raises PeerLostError.
    """

    def __init__(
        self, rank: Rank, num_ranks: int, epoch: str, directory: Path, *, abort: Abort, step_s: float
    ) -> None:
        self._rank, self._num_ranks, self._epoch = rank, num_ranks, epoch
        self._directory, self._abort, self._step_s = directory, abort, step_s
        self._waker = Waker(abort)
        self._peers: dict[int, socket.socket] = {}
        self.met_at: float | None = None
        """When (monotonic) the meeting ended for the layer that is computed now; None between layers."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.setblocking(False)
        self._path = self._socket_of(rank.index)
        self._listener.bind(str(self._path))
        self._listener.listen(num_ranks)

    def connect(self, timeout_s: float) -> None:
        """Meet every other rank. Raises PeerLostError naming one that does not come, and the abort's cause."""
        deadline = Deadline(timeout_s)
        for index in range(self._rank.index):
            peer = socket.socket(socket.AF_UNIX)
            self._peers[index] = peer
            try:
                peer.connect(str(self._socket_of(index)))
            except OSError as error:
                raise self._lost(index, f"does not listen for {self._rank} ({error})") from error
            peer.setblocking(False)
            peer.send(_HELLO.pack(self._epoch.encode(), self._rank.index))
        while missing := [
            i for i in range(self._num_ranks) if i != self._rank.index and i not in self._peers
        ]:
            if not self._poll([(self._listener, select.POLLIN)], deadline):
                raise self._lost(missing[0], f"did not connect to {self._rank} within {timeout_s:g} s")
            self._accept(deadline)
        self._path.unlink()
        self._listener.close()

    def meet(
        self, slot: Slot, step: int, own: Sequence[Tensor], others: Mapping[int, Sequence[Tensor]]
    ) -> None:
        """Give ``own`` rows to every rank and receive those of ``others``, by index, into the given tensors.

        Each sequence holds one tensor [rows, …] per kind of what crosses (hidden states; in ids mode token ids), all
        contiguous and maybe without rows. Raises PeerLostError naming a rank that is gone or does not come within
        ``step_s``, MisuseError naming one that is somewhere else or brings another number of rows, and the abort's
        cause. A meeting that has begun before an abort may still succeed: others may have what they need, and will wait
        inside their layer for this rank.
        """
        header = memoryview(_HEADER.pack(step, slot.layer, slot.ubatch, own[0].shape[0]))
        sending = {index: [header, *_bytes(own)] for index in self._peers}
        heads = {index: bytearray(_HEADER.size) for index in self._peers}
        bodies = {index: _bytes(others[index]) for index in self._peers}
        arriving = {index: [memoryview(heads[index]), *bodies[index]] for index in self._peers}
        deadline, grace = Deadline(self._step_s), None
        self._abort.check()
        while True:
            for index, views in list(sending.items()):
                if self._send(index, views):
                    del sending[index]
            for index, views in list(arriving.items()):
                if self._receive(index, views):
                    del arriving[index]
                if index in heads and len(views) <= len(bodies[index]):
                    found = _HEADER.unpack(heads.pop(index))
                    self._check(index, found, (step, *slot, others[index][0].shape[0]))
            if not sending and not arriving:
                return
            waiting = [
                (
                    self._peers[index],
                    (select.POLLIN if index in arriving else 0) | (select.POLLOUT if index in sending else 0),
                )
                for index in {*sending, *arriving}
            ]
            if grace is None and self._abort.cause is not None:
                grace = Deadline(GRACE_S)
            if not self._poll(waiting, grace or deadline, heed=False):
                self._abort.check()
                index = min({*arriving} or {*sending})
                where = f"layer {slot.layer}, ubatch {slot.ubatch} of step {step}"
                raise self._lost(
                    index, f"did not bring its rows of {where} to {self._rank} within {self._step_s:g} s"
                )

    def blame(self, error: RuntimeError) -> PeerLostError | None:
        """The loss that ``error`` of a layer is an effect of: a sum of Gloo's that a rank left. None when it is none.

        Waits a moment until it is seen which rank that was.
        """
        if "/gloo/" not in str(error):
            return None
        poller = select.poll()
        of_fd = {peer.fileno(): index for index, peer in self._peers.items()}
        for fd in of_fd:
            poller.register(fd, select.POLLRDHUP)
        gone = poller.poll(GONE_MS)
        if gone:
            return self._lost(of_fd[gone[0][0]], f"left a sum over the FFN ranks with {self._rank}")
        return PeerLostError(f"an FFN rank left a sum with {self._rank}: {' '.join(str(error).split())}", "")

    def overdue(self, limit_s: float) -> PeerLostError:
        """The loss to tell of when a layer does not end: of a rank whose process is stopped, or else of nobody."""
        late = f"a layer did not end on {self._rank} within {limit_s:g} s"
        for index, peer in self._peers.items():
            if _stopped(peer):
                return self._lost(index, f"is stopped: {late}")
        return PeerLostError(f"{late}; other FFN ranks may not have reached the sum in it")

    def close(self) -> None:
        """Close every socket. Twice is fine."""
        self._path.unlink(missing_ok=True)
        self._listener.close()
        for peer in self._peers.values():
            peer.close()
        self._waker.close()

    # ---- one peer ---------------------------------------------------------------------------------------

    def _send(self, index: int, views: list[memoryview]) -> bool:
        """Whether all of ``views`` is sent."""
        try:
            while views:
                sent = self._peers[index].sendmsg(views)
                _drop(views, sent)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._lost(index, f"closed its connection to {self._rank} ({error})") from error
        return True

    def _receive(self, index: int, views: list[memoryview]) -> bool:
        """Whether all of ``views`` is filled."""
        try:
            while views:
                count = self._peers[index].recvmsg_into(views)[0]
                if count == 0:
                    raise self._lost(index, f"closed its connection to {self._rank}")
                _drop(views, count)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._lost(index, f"closed its connection to {self._rank} ({error})") from error
        return True

    def _check(self, index: int, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
        if found != expected:
            names = ("step", "layer", "ubatch", "rows")
            raise MisuseError(
                f"{Rank(Role.FFN, index)} brings "
                + ", ".join(f"{name} {value}" for name, value in zip(names, found, strict=True))
                + f"; {self._rank} expects "
                + ", ".join(f"{name} {value}" for name, value in zip(names, expected, strict=True))
            )

    def _accept(self, deadline: Deadline) -> None:
        peer, _ = self._listener.accept()
        peer.setblocking(False)
        hello = bytearray(_HELLO.size)
        views = [memoryview(hello)]
        while views:
            if not self._poll([(peer, select.POLLIN)], deadline):
                break
            count = peer.recv_into(views[0])
            if count == 0:
                break
            _drop(views, count)
        epoch, index = _HELLO.unpack(hello)
        if views or epoch != self._epoch.encode() or not self._rank.index < index < self._num_ranks:
            peer.close()  # a rank of another epoch that ends
            return
        self._peers[index] = peer

    # ---- waiting ----------------------------------------------------------------------------------------

    def _poll(
        self, waiting: Sequence[tuple[socket.socket, int]], deadline: Deadline, *, heed: bool = True
    ) -> bool:
        """Wait until one is ready, or the abort; False at the deadline. Raises the abort's cause when it is to ``heed``
        it."""
        poller = select.poll()
        if self._abort.cause is None:  # it stays readable afterwards
            poller.register(self._waker, select.POLLIN)
        for sock, events in waiting:
            poller.register(sock, events)
        ready = poller.poll(deadline.poll_ms())
        if heed:
            self._abort.check()
        return bool(ready) or not deadline.passed

    def _lost(self, index: int, what: str) -> PeerLostError:
        peer = str(Rank(Role.FFN, index))
        return PeerLostError(f"{peer} {what}", peer)

    def _socket_of(self, index: int) -> Path:
        return self._directory / f"rows-{self._epoch}-{index}"


def _stopped(peer: socket.socket) -> bool:
    """Whether the process at the other end of a unix socket is stopped, by a signal or a debugger."""
    pid, _, _ = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    try:  # the name in brackets may hold anything
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state in ("T", "t")


def _bytes(tensors: Sequence[Tensor]) -> list[memoryview]:
    return [t.view(uint8).numpy().data.cast("B") for t in tensors if t.shape[0]]


def _drop(views: list[memoryview], count: int) -> None:
    """Take the first ``count`` bytes off."""
    while views and count >= len(views[0]):
        count -= len(views.pop(0))
    if count:
        views[0] = views[0][count:]
