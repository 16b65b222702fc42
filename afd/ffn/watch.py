# SPDX-License-Identifier: Apache-2.0
"""Notices a layer that does not end because another FFN rank does not reach the sum in it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from afd.errors import PeerLostError
from afd.ffn.mesh import RowMesh


class LayerWatch:
    """A thread that calls ``tell``, once, when a layer takes longer than ``limit_s`` seconds after its meeting.

    The thread that computes cannot: vLLM's sums in shared memory have no deadline, and heed nobody.
    """

    def __init__(self, mesh: RowMesh, limit_s: float, tell: Callable[[PeerLostError], object]) -> None:
        self._mesh, self._limit_s, self._tell = mesh, limit_s, tell
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="afd-layer-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread. Twice is fine."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._limit_s / 40):
            since = self._mesh.met_at
            if since is not None and time.monotonic() - since > self._limit_s:
                self._tell(self._mesh.overdue(self._limit_s))
                return
