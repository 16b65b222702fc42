# SPDX-License-Identifier: Apache-2.0
"""The way of a role to ready, as its log tells it: each phase once, with its seconds, and what comes next."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from afd.agent.launch_protocol import LAUNCHER_VARIABLE
from afd.control.group import Control
from afd.control.handshake import names
from afd.topology import Role

if TYPE_CHECKING:
    from afd.agent.plan import RolePlan

log = logging.getLogger(__name__)

TELL_S = 15.0
"""How often a phase that goes on is told again, with the states of the peers."""


class Progress:
    """The phases of one start. The rendezvous tells by itself whom it waits for."""

    def __init__(self, plan: RolePlan, tell_s: float = TELL_S, lost: float | None = None) -> None:
        """``lost`` is the (monotonic) time at which the epoch before was lost, None for the first one."""
        self._plan, self._tell_s, self._lost = plan, tell_s, lost
        self._began = time.monotonic() if lost is None else lost
        self._since = self._began
        self._took: dict[str, float] = {}
        self._doing = ""
        self._control: Control | None = None

    def joined(self, control: Control) -> None:
        """All roles have met and agree."""
        self._control = control
        peers = names([rank for peer in control.peers() for rank in peer.ranks])
        download = self._plan.download
        doing = f"downloading the weights of {download.name}" if download else self._importing()
        self._next("rendezvous" if self._lost is None else "end and rendezvous", f"met {peers}", doing)

    def downloaded(self) -> None:
        """The model's weights are on this machine."""
        self._next("download", "weights downloaded", self._importing())

    def _importing(self) -> str:
        shared = self._plan.environment.get(LAUNCHER_VARIABLE)
        return f"waiting for {shared}" if shared else "importing vLLM"

    def imported(self) -> None:
        """The launcher is there."""
        self._next("import", "vLLM imported", f"loading {names(self._plan.ranks)}")

    def kept(self) -> None:
        """The processes are those of an earlier epoch."""
        own = names(self._plan.ranks)
        self._next("start", f"{own} kept what it had loaded", f"connecting {own} to its peers")

    def loaded(self) -> None:
        """Attention's API server answers, or FFN's ranks are connected."""
        attention = self._plan.role is Role.ATTENTION and not self._plan.headless
        doing = (
            "sending a first request through FFN" if attention else "waiting for Attention's first request"
        )
        self._next("load", f"{names(self._plan.ranks)} loaded", doing)

    def warm(self) -> None:
        """Attention's first request was answered."""
        self._next("warm-up", "first request answered", "waiting for FFN to agree")

    def ready(self, agent_port: int) -> None:
        """The group is ready. ``agent_port`` is where this agent answers."""
        plan, now = self._plan, time.monotonic()
        attention = plan.role is Role.ATTENTION
        self._took["warm-up"] = self._took.get("warm-up", 0.0) + now - self._since
        self._doing = ""
        phases = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self._took.items())
        api = f"OpenAI API at {plan.api_url}/v1, " if attention and not plan.headless else ""
        count = plan.config.num_ffn_ranks if attention else plan.config.num_attention_ranks
        peers = f"{count} {'FFN' if attention else 'Attention'} rank{'' if count == 1 else 's'}"
        agent = plan.url(plan.agent_host, agent_port)
        took = f"{now - self._began:.1f} s"
        head = f"ready in {took}" if self._lost is None else f"ready again {took} after the loss"
        log.info("%s (%s): %sagent at %s, %s", head, phases, api, agent, peers)

    async def keep_telling(self) -> None:
        """While the role loads: say every now and then what it does and what its peers do."""
        while True:
            await asyncio.sleep(self._tell_s)
            elapsed = time.monotonic() - self._since
            if self._doing and self._control is not None and elapsed >= self._tell_s:
                peers = ", ".join(f"{names(p.ranks)} is {p.state}" for p in self._control.peers())
                log.info("still %s after %.0f s; %s", self._doing, elapsed, peers)

    def _next(self, phase: str, done: str, doing: str) -> None:
        now = time.monotonic()
        self._took[phase] = now - self._since
        self._since, self._doing = now, doing
        log.info("%s in %.1f s; %s", done, self._took[phase], doing)
