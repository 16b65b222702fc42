# SPDX-License-Identifier: Apache-2.0
"""Agents on loopback with short deadlines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import msgspec

from afd.config import AFDConfig, Timeouts
from afd.control.abort import Cause
from afd.control.group import Control, Waiting
from afd.control.handshake import names, ranks_of
from afd.control.messages import PROTOCOL, Fingerprint, Hello, Host, Layout
from afd.control.rendezvous import open_control
from afd.launch.free_ports import free_port
from afd.topology import Rank, Role


def hello_of(role: str, *ranks: int, attention: int = 1, ffn: int = 1, **changes: Any) -> Hello:
    base = Hello(
        role=role,
        ranks=ranks or (0,),
        versions={"protocol": str(PROTOCOL), "afd": "1", "vllm": "2", "torch": "3"},
        model=Fingerprint(
            architecture="DeepseekV2ForCausalLM",
            hidden_size=64,
            layers=3,
            experts=8,
            top_k=2,
            dtype="float32",
            quantisation="none",
            config_digest="d1",
        ),
        layout=Layout(num_attention=attention, num_ffn=ffn, order="ffn_first"),
        connector="CAMP2pAFDConnector",
        transport="auto",
        gate="ffn",
        ids=False,
        ubatch={"num_ubatches": 1, "decode_token_threshold": 32, "prefill_token_threshold": 512},
        platform="cpu",
        runner="v2",
        host=Host(name=f"host-{role}", memory="m", pid=4242),
        heartbeat_s=0.2,
        config_revision="r1",
    )
    return msgspec.structs.replace(base, **changes)


def config_of(
    port: int, *, attention: int = 1, ffn: int = 1, rendezvous_s: float = 10.0, **changes: Any
) -> AFDConfig:
    return AFDConfig(
        role=Role.FFN,
        port=port,
        num_attention_ranks=attention,
        num_ffn_ranks=ffn,
        timeouts=Timeouts(rendezvous_s=rendezvous_s, step_s=5.0, heartbeat_s=0.2, grace_s=1.0),
        **changes,
    )


@dataclass
class Seen:
    """What an agent told its callbacks."""

    waits: list[Waiting] = field(default_factory=list)
    byes: list[tuple[str, str]] = field(default_factory=list)

    def on_waiting(self, waiting: Waiting) -> None:
        self.waits.append(waiting)

    def on_bye(self, ranks: Sequence[Rank], reason: str) -> None:
        self.byes.append((names(ranks), reason))


class Agents:
    """Several agents in one event loop."""

    def __init__(self, **defaults: Any) -> None:
        self.port = free_port()
        self.defaults = {"attention": 1, "ffn": 1, **defaults}
        self.seen: dict[str, Seen] = {}
        self._stack = AsyncExitStack()

    def config(self, **changes: Any) -> AFDConfig:
        return config_of(self.port, **{**self.defaults, **changes})

    def hello(self, role: str, *ranks: int, **changes: Any) -> Hello:
        counts = {"attention": self.defaults["attention"], "ffn": self.defaults["ffn"]}
        return hello_of(role, *ranks, **{**counts, **changes})

    async def join(
        self, role: str, *ranks: int, delay: float = 0.0, config: dict[str, Any] | None = None, **changes: Any
    ) -> Control:
        """Start one agent and wait for its group. It is closed when the block ends."""
        await asyncio.sleep(delay)
        hello = self.hello(role, *ranks, **changes)
        seen = self.seen[names(ranks_of(hello))] = Seen()
        opening = open_control(
            self.config(**(config or {})), hello, on_waiting=seen.on_waiting, on_bye=seen.on_bye
        )
        return await self._stack.enter_async_context(opening)

    async def pair(self) -> tuple[Control, Control]:
        """FFN (the root) and Attention, one agent each."""
        ffn, attention = await asyncio.gather(self.join("ffn"), self.join("attention"))
        return ffn, attention

    async def __aenter__(self) -> Agents:
        return self

    async def __aexit__(self, *details: Any) -> None:
        await self._stack.aclose()


async def ended(control: Control, timeout_s: float = 5.0) -> Cause:
    """The cause with which the control plane of ``control`` ends."""
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wake() -> None:
        loop.call_soon_threadsafe(done.set)

    control.abort.subscribe(wake)
    await asyncio.wait_for(done.wait(), timeout_s)
    assert control.abort.cause is not None
    return control.abort.cause


async def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    """Wait, in small steps, until ``condition`` holds."""

    async def poll() -> None:
        while not condition():
            await asyncio.sleep(0.005)

    await asyncio.wait_for(poll(), timeout_s)
