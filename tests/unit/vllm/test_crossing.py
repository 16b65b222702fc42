# SPDX-License-Identifier: Apache-2.0
"""One rank of each role meets the other: agreement, step channel, link, steps, and the end. Everything but vLLM's
processes and models is real: two agents with their sockets, two ranks as threads, a link over shared memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from afd.control.group import Control
from afd.control.hub import LocalHub, open_hub
from afd.control.session import RankSession
from afd.control.step_sender import StepSender
from afd.errors import MismatchError, PeerLostError
from afd.models.proxies import Hop, RemoteFFN
from afd.topology import Rank
from tests.unit.control.agents import Agents
from tests.unit.vllm.conftest import Module

HIDDEN, LAYERS = 256, (0, 1, 2, 3)
F0, A0 = Rank.parse("F0"), Rank.parse("A0")
EngineConfig = Callable[..., Any]


@dataclass
class Group:
    """Both agents, and what their ranks reported."""

    module: Module
    engine_config: EngineConfig
    controls: dict[Rank, Control] = field(default_factory=dict)
    hubs: dict[Rank, LocalHub] = field(default_factory=dict)
    reports: dict[str, dict[str, float]] = field(default_factory=dict)
    states: list[str] = field(default_factory=list)
    layers: dict[int, nn.Module] = field(default_factory=dict)

    def heard(self, process: Any, counters: Mapping[str, float], state: str | None) -> None:
        self.reports.setdefault(str(process.rank), {}).update(counters)
        if state:
            self.states.append(state)

    def ffn(self) -> None:
        """An FFN rank, as afd.ffn.process.main runs it, but for the model."""
        session = RankSession.attach(self.hubs[F0].address, F0)
        config = self.engine_config()
        try:
            resolved = self.module("afd.models.resolved").resolve(config)
            crossing = self.module("afd.models.crossing").agree(config, session, F0, LAYERS, resolved)
            with torch.inference_mode():
                self.module("afd.ffn.process").RankProcess(config, crossing, self.layers).serve()
        except BaseException as error:
            raise session.fail(error).error() from error
        finally:
            session.close("the test has ended")

    def attention(self, work: Callable[[Any], Any], *argv: str) -> Any:
        """An Attention rank, as Peer.connect joins it, but for tensor parallelism; the result of ``work``."""
        peers = self.module("afd.attention.peer")
        session = RankSession.attach(self.hubs[A0].address, A0)
        try:
            config = self.engine_config(*argv)
            resolved = self.module("afd.models.resolved").resolve(config)
            crossing = self.module("afd.models.crossing").agree(config, session, A0, LAYERS, resolved)
            sender = StepSender(A0, session.epoch, abort=session.abort, step_s=10.0)
            published = crossing.exchange("steps", "")
            sender.connect({Rank.parse(name): where for name, where in published.items() if where}, 10.0)
            peer = peers.Peer(crossing, sender, peers.Peer.open_link(crossing))
            found = work(peer)
            peer.close("done")
            peer.close("twice is fine")
            return found
        finally:
            session.close("the test has ended")


@pytest.fixture
def run(module: Module, engine_config: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a test with a group of two agents."""
    monkeypatch.setenv("AFD_RANK_TRANSPORT", "shm")
    monkeypatch.setenv("AFD_RANK_ATTENTION_TP", "1")
    monkeypatch.setenv("AFD_RANK_HOST", "127.0.0.1")

    def with_group(work: Callable[[Group], Awaitable[None]]) -> None:
        async def main() -> None:
            group = Group(module, engine_config)
            torch.manual_seed(0)
            group.layers = {layer: nn.Linear(HIDDEN, HIDDEN) for layer in LAYERS}
            async with Agents() as agents:
                ffn, attention = await agents.pair()
                group.controls = {F0: ffn, A0: attention}
                async with open_hub(ffn, on_report=group.heard) as f_hub:
                    async with open_hub(attention, on_report=group.heard) as a_hub:
                        group.hubs = {F0: f_hub, A0: a_hub}
                        await work(group)

        asyncio.run(asyncio.wait_for(main(), 60))

    return with_group


def through(peer: Any, hidden: Tensor, phase: str = "eager", real: int | None = None) -> Tensor:
    """One forward of a model that is nothing but its FFN blocks."""
    hop = Hop()
    hop.link, hop.last_layer = peer.link, LAYERS[-1]
    rows = hidden.shape[0]
    with torch.inference_mode(), peer.step(phase, rows if real is None else real, rows):
        for layer in LAYERS:
            hidden = RemoteFFN(layer, hop)(hidden)
    return hidden


def test_two_ranks_meet_serve_steps_and_part_without_a_failure(run: Any) -> None:
    async def work(group: Group) -> None:
        inputs = [torch.randn(rows, HIDDEN) for rows in (64, 1, 7)]

        def attend(peer: Any) -> list[Tensor]:
            return [
                through(peer, inputs[0], "profile", real=0),
                *(through(peer, hidden) for hidden in inputs[1:]),
            ]

        serving = asyncio.create_task(asyncio.to_thread(group.ffn))
        outputs = await asyncio.to_thread(group.attention, attend)
        await asyncio.wait_for(serving, 20)  # it ends by itself when all of Attention has left
        for hidden, output in zip(inputs, outputs, strict=True):
            with torch.inference_mode():
                for layer in LAYERS:
                    hidden = group.layers[layer](hidden)
            torch.testing.assert_close(output, hidden)
        await asyncio.sleep(0.1)
        assert group.states == ["loaded", "loaded", "ready-to-warm"]
        assert group.reports["F0"]["afd_ffn_tokens_total"] == (64 + 1 + 7) * len(LAYERS)
        for rank in ("A0", "F0"):
            assert group.reports[rank]["afd_steps_total{phase=profile}"] == 1
            assert group.reports[rank]["afd_steps_total{phase=eager}"] == 2
            assert group.reports[rank]["afd_tokens_total{kind=real}"] == 8
        assert all(control.abort.cause is None for control in group.controls.values())

    run(work)


def test_what_a_forward_raises_ends_the_epoch_for_both_with_that_cause(run: Any) -> None:
    async def work(group: Group) -> None:
        def attend(peer: Any) -> None:
            through(peer, torch.zeros(2, HIDDEN))
            with peer.step("eager", 1, 1):
                raise ValueError("as the test asked")

        serving = asyncio.create_task(asyncio.to_thread(group.ffn))
        with pytest.raises(ValueError, match="as the test asked"):
            await asyncio.to_thread(group.attention, attend)
        with pytest.raises(PeerLostError, match=r"A0: ValueError\('as the test asked'\)"):
            await asyncio.wait_for(serving, 10)
        for control in group.controls.values():
            assert control.abort.cause is not None
            assert control.abort.cause.rank == "A0"

    run(work)


def test_a_layer_that_raises_reaches_attention_as_the_root_cause(run: Any) -> None:
    class Broken(nn.Module):
        def forward(self, hidden: Tensor) -> Tensor:
            raise ValueError("as the test asked")

    async def work(group: Group) -> None:
        group.layers[2] = Broken()
        serving = asyncio.create_task(asyncio.to_thread(group.ffn))
        with pytest.raises(PeerLostError, match=r"F0: ValueError\('as the test asked'\)"):
            await asyncio.to_thread(group.attention, lambda peer: through(peer, torch.zeros(2, HIDDEN)))
        with pytest.raises(Exception, match="as the test asked"):
            await asyncio.wait_for(serving, 10)

    run(work)


def test_a_model_whose_configuration_was_overridden_on_one_side_is_named_before_a_link_exists(
    run: Any,
) -> None:
    async def work(group: Group) -> None:
        serving = asyncio.create_task(asyncio.to_thread(group.ffn))
        override = ("--hf-overrides", '{"routed_scaling_factor": 2.5, "rope_scaling": {"factor": 2.0}}')
        with pytest.raises(MismatchError, match="routed_scaling_factor"):
            await asyncio.to_thread(group.attention, lambda peer: None, *override)
        with pytest.raises(
            MismatchError, match=r"hf_config\.routed_scaling_factor: 1\.0 on F0 but 2\.5 on A0"
        ):
            await asyncio.wait_for(serving, 10)

    run(work)


def test_what_vllm_resolved_differently_is_named_before_a_link_exists(run: Any) -> None:
    async def work(group: Group) -> None:
        serving = asyncio.create_task(asyncio.to_thread(group.ffn))
        with pytest.raises(MismatchError, match="max_tokens"):
            await asyncio.to_thread(
                group.attention, lambda peer: None, "--max-num-batched-tokens", "96", "--max-model-len", "64"
            )
        with pytest.raises(MismatchError, match=r"resolved\.max_tokens: 64 on F0 but 96 on A0"):
            await asyncio.wait_for(serving, 10)

    run(work)
