# SPDX-License-Identifier: Apache-2.0
"""How a wait for a peer ends over any transport: with success, the abort, the peer's end or at its deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from afd.connectors.base import ConnectorSpec
from afd.connectors.payload import Header
from afd.errors import AFDError, ClosedError, MisuseError, PeerLostError
from afd.topology import Rank

OK, AGAIN, ABORTED, PEER_CLOSED, CLOSED, HEADER = range(6)
"""What one try of a wait returns."""

FAREWELL_S = 0.5
"""How long to wait for the reason when a peer closed its end: the control plane brings the root cause."""


@dataclass(frozen=True)
class Patience:
    """Waits of one lane for one peer."""

    spec: ConnectorSpec
    peer: Rank
    ubatch: int

    def persist(self, code: int, call: Callable[[], int], doing: str, step: int, layer: int) -> int:
        """Repeat ``call`` until it succeeds (:data:`OK`, or :data:`HEADER` for a payload that came but is a wrong one).

        ``code`` is what the first call returned. Raises like :meth:`end`.
        """
        deadline = time.monotonic() + self.spec.step_s
        while code not in (OK, HEADER):
            if code == AGAIN:
                self.spec.abort.check()
            if code != AGAIN or time.monotonic() >= deadline:
                raise self.end(code, doing, step, layer)
            code = call()
        return code

    def end(self, code: int, doing: str, step: int, layer: int) -> AFDError:
        """The error for a wait that ended with ``code``: :class:`ClosedError` when this side closed the link,
        :class:`PeerLostError` when the peer closed it (:data:`PEER_CLOSED`) or did nothing for ``step_s``
        (:data:`AGAIN`). Raises the cause of an abort, for which it waits a moment when the peer is gone.
        """
        place = f"step {step}, layer {layer}, ubatch {self.ubatch}"
        rank, peer = self.spec.rank, self.peer
        if code == CLOSED:
            return ClosedError(f"{rank}: the link was closed while {doing} {peer} ({place})")
        self.spec.abort.check()
        if code == ABORTED:
            return MisuseError(f"{rank}: a lane was aborted without a cause ({place})")
        if code == PEER_CLOSED:
            self._farewell()
            return PeerLostError(f"{peer} closed its end while {rank} was {doing} it ({place})", str(peer))
        return PeerLostError(
            f"{peer} made no progress for {self.spec.step_s:g} s while {rank} was {doing} it ({place})",
            str(peer),
        )

    def _farewell(self) -> None:
        end = time.monotonic() + FAREWELL_S
        while time.monotonic() < end:
            self.spec.abort.check()
            time.sleep(0.01)

    def mismatch(self, expected: Header, found: Header) -> MisuseError:
        """The error for a payload that is not the one that must come now, naming the fields that differ."""
        differ = [
            f"{name} {want:#x} expected, {got:#x} found"
            if name == "epoch"
            else f"{name} {want} expected, {got} found"
            for name, want, got in zip(Header._fields, expected, found, strict=True)
            if want != got
        ]
        return MisuseError(
            f"{self.spec.rank} received another payload from {self.peer} than the schedule says: {', '.join(differ)} "
            f"(expected step {expected.step}, layer {expected.layer}, ubatch {expected.ubatch})"
        )
