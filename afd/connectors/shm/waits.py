# SPDX-License-Identifier: Apache-2.0
"""What a wait does when a slice has passed: look for the abort, for the peer and at the deadline, then wait on."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from afd.connectors.base import ConnectorSpec
from afd.connectors.shm.layout import Header
from afd.connectors.shm.rings import ABORTED, CLOSED, HEADER, OK, PEER_CLOSED
from afd.errors import ClosedError, MisuseError, PeerLostError
from afd.topology import Rank

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

        ``code`` is what the first call returned. Raises the cause of an abort, :class:`ClosedError` when this side
        closed the link, and :class:`PeerLostError` when the peer closed it or did nothing for ``step_s``.
        """
        deadline = time.monotonic() + self.spec.step_s
        while code not in (OK, HEADER):
            place = f"step {step}, layer {layer}, ubatch {self.ubatch}"
            if code == CLOSED:
                raise ClosedError(
                    f"{self.spec.rank}: the link was closed while {doing} {self.peer} ({place})"
                )
            self.spec.abort.check()
            if code == ABORTED:
                raise MisuseError(f"{self.spec.rank}: a lane was aborted without a cause ({place})")
            if code == PEER_CLOSED:
                self._farewell()
                raise PeerLostError(
                    f"{self.peer} closed its end while {self.spec.rank} was {doing} it ({place})",
                    str(self.peer),
                )
            if time.monotonic() >= deadline:
                raise PeerLostError(
                    f"{self.peer} made no progress for {self.spec.step_s:g} s while {self.spec.rank} was {doing} it "
                    f"({place})",
                    str(self.peer),
                )
            code = call()
        return code

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
