# SPDX-License-Identifier: Apache-2.0
"""The body of ``/status``, and when a role counts as ready."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Protocol

import msgspec

from afd.observe.state import State


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of another agent. ``state`` is that agent's, or "lost" or "left"."""

    role: str
    rank: str
    host: str
    state: str
    last_seen_s: float


class Graphs(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of captured graphs, and how many steps replayed one."""

    captured: tuple[str, ...] = ()
    replayed: int = 0


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one agent; all fields are always present. Ages are in seconds, ``since`` is ISO 8601 in UTC.

    ``rank`` is the first of ``ranks``; ``topology`` has the counts ``num_attention`` and ``num_ffn`` and the
    ``order`` of the roles; ``last_step_age_s`` is null before the first step; ``last_error`` is null without one.
    ``restarts`` counts how often the role has started again, and ``last_restart_s`` is how long the last time took from
    the loss to ready; null before.
    """

    version: str
    role: str
    rank: str
    ranks: tuple[str, ...]
    state: str
    since: str
    topology: Mapping[str, int | str]
    connector: str
    transport: str
    runner: str
    model: str
    image: str = ""
    epoch: str = ""
    waiting_for: tuple[str, ...] = ()
    peers: tuple[Peer, ...] = ()
    config_revision: str = ""
    graphs: Graphs = Graphs()
    steps: int = 0
    last_step_age_s: float | None = None
    restarts: int = 0
    last_restart_s: float | None = None
    last_error: str | None = None


class StatusSource(Protocol):
    """What the HTTP server asks the agent; called in the event loop, must not block."""

    def status(self) -> Status: ...

    def not_live(self) -> str | None:
        """Why the agent should be restarted; None while its model process is alive or being restarted."""

    def not_ready(self) -> str | None:
        """Why it cannot generate now; None when it can. See :func:`not_ready`."""


def timestamp(seconds: float) -> str:
    """ISO 8601 in UTC for seconds since 1970."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds")


def not_ready(status: Status, *, stuck_s: float | None = None, bound_s: float = 60.0) -> str | None:
    """Why the role of ``status`` is not ready, or None.

    ``stuck_s`` is for how long requests have been in flight without progress (None: all is well), ``bound_s`` how long
    that may be.
    """
    if status.state != State.READY:
        waiting = f", waiting for {', '.join(status.waiting_for)}" if status.waiting_for else ""
        error = f": {status.last_error}" if status.last_error else ""
        return f"state is {status.state}{waiting}{error}"
    for peer in status.peers:
        if peer.state in ("lost", "left", State.FAILED, State.STOPPED):
            return f"{peer.rank} on {peer.host} is {peer.state}"
    if stuck_s is not None and stuck_s > bound_s:
        return f"requests are in flight, and nothing was computed for {stuck_s:.1f} s (bound: {bound_s:g} s)"
    return None
