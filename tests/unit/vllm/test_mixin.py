# SPDX-License-Identifier: Apache-2.0
"""Attention's mixin over a runner that is as small as can be: what is announced, and in which order things end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from afd.families import FAMILIES
from afd.models.proxies import RemoteFFN
from afd.models.row_group import RowGroup
from tests.unit.vllm.conftest import Module


class Model(nn.Module):
    """Two layers that are nothing but the FFN blocks of vLLM's module, whatever they are bound to now."""

    def __init__(self, deepseek: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            deepseek.DeepseekV2MoE(prefix=f"model.layers.{layer}.mlp") for layer in (0, 1)
        )

    def forward(self, input_ids: Tensor, positions: Tensor, scale: float = 1.0) -> Tensor:
        hidden = positions[:, None].float() * scale
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


class Link:
    """Replies with what it was sent, plus one."""

    def __init__(self) -> None:
        self.ids: list[Tensor | None] = []

    def send(self, slot: Any, hidden: Tensor, token_ids: Tensor | None = None, routing: None = None) -> None:
        self.hidden = hidden
        self.ids.append(token_ids)

    def receive(self, slot: Any, out: Tensor | None = None) -> Tensor:
        return self.hidden + 1 if out is None else out.copy_(self.hidden + 1)


class FakePeer:
    """FFN as Attention's mixin sees it."""

    def __init__(self, layers: tuple[int, ...], events: list[Any], ids: bool, resolved: Any) -> None:
        self.link, self.layers, self.events, self.ids, self.resolved = Link(), layers, events, ids, resolved

    def row_group(self) -> RowGroup | None:
        return None

    @contextmanager
    def step(self, phase: str, real: int, padded: int) -> Iterator[None]:
        self.events.append((phase, real, padded))
        yield

    def close(self, reason: str) -> None:
        self.events.append(f"peer closed: {reason}")


@pytest.fixture
def runner(module: Module, engine_config: Any) -> Any:
    """Makes a runner with Attention's mixin in front."""
    deepseek = module(FAMILIES[0].module)

    def make(*, ids: bool = False, fail: bool = False) -> Any:
        events: list[Any] = []
        vllm_config = engine_config()

        class Native:
            def load_model(self) -> None:
                if fail:
                    raise ValueError("no such checkpoint")
                self.model = Model(deepseek)
                vllm_config.model_config.hf_config.update({"vocab_size": 7})

            def shutdown(self) -> None:
                events.append("native shutdown")

        class Peer(FakePeer):
            @classmethod
            def connect(cls, vllm_config: Any, layers: tuple[int, ...], resolved: Any) -> FakePeer:
                return cls(layers, events, ids, resolved)

        class Runner(module("afd.attention.mixin").AttentionMixin, Native):  # type: ignore[misc]
            afd_peer_class = Peer

        Runner.vllm_config = vllm_config
        made = Runner()
        made.events = events
        return made

    return make


def test_the_model_is_built_around_remote_blocks_and_connected(runner: Any) -> None:
    made = runner()
    made.load_model()
    assert [isinstance(layer, RemoteFFN) for layer in made.model.layers] == [True, True]
    assert made.afd_peer.layers == (0, 1)
    out = made.model.forward(torch.zeros(3, dtype=torch.int32), torch.arange(3), scale=2.0)
    assert out.flatten().tolist() == [2.0, 4.0, 6.0]


def test_what_is_compared_with_the_other_role_was_read_before_the_model_wrote_into_its_configuration(
    runner: Any,
) -> None:
    made = runner()
    made.load_model()
    assert made.vllm_config.model_config.hf_config.vocab_size == 7
    assert made.afd_peer.resolved.hf_config["vocab_size"] == "512"


def test_every_forward_is_announced_with_its_phase_and_its_rows(runner: Any) -> None:
    made = runner()
    made.load_model()
    ids, positions = torch.zeros(4, dtype=torch.int32), torch.arange(4)
    made.model.forward(ids, positions)
    with made.afd_step("profile", 0):
        made.model.forward(ids, positions)
        with made.afd_step("eager", 3):
            made.model.forward(ids, positions)
        made.model.forward(ids, torch.zeros(3, 4, dtype=torch.int64)[0])
    with pytest.raises(ValueError, match="inside"), made.afd_step("warmup", 9):
        raise ValueError("inside")
    made.model.forward(ids, positions)
    assert made.events == [
        ("eager", 0, 4),
        ("profile", 0, 4),
        ("eager", 3, 4),
        ("profile", 0, 4),
        ("eager", 0, 4),
    ]


@pytest.mark.parametrize("ids", [False, True])
def test_token_ids_cross_in_ids_mode_only(runner: Any, ids: bool) -> None:
    made = runner(ids=ids)
    made.load_model()
    tokens = torch.tensor([7, 8])
    made.model.forward(tokens, torch.arange(2))
    assert made.afd_peer.link.ids == ([tokens, tokens] if ids else [None, None])


def test_the_group_is_left_before_the_runner_shuts_down(runner: Any) -> None:
    made = runner()
    made.load_model()
    made.shutdown()
    assert made.events == ["peer closed: shutdown", "native shutdown"]


def test_a_runner_that_could_not_load_shuts_down_all_the_same(runner: Any, module: Module) -> None:
    native = vars(module(FAMILIES[0].module))["DeepseekV2MoE"]
    made = runner(fail=True)
    with pytest.raises(ValueError, match="no such checkpoint"):
        made.load_model()
    made.shutdown()
    assert made.events == ["native shutdown"]
    assert vars(module(FAMILIES[0].module))["DeepseekV2MoE"] is native


def test_a_runner_shuts_down_even_when_the_group_cannot_be_left(runner: Any) -> None:
    made = runner()
    made.load_model()
    made.afd_peer.link = None

    def broken(reason: str) -> None:
        raise OSError("the socket is gone")

    made.afd_peer.close = broken
    with pytest.raises(OSError, match="the socket is gone"):
        made.shutdown()
    assert made.events == ["native shutdown"]


def test_a_warm_up_is_a_dummy_step_announced_as_one_and_later_dummies_are_ordinary_steps(runner: Any) -> None:
    made = runner()
    made.load_model()
    seen = []
    made._dummy_run = lambda tokens, uniform_decode: seen.append((made.afd_dummy_phase, tokens))
    made.afd_warm_up()
    assert seen == [("warmup", 1)]
    assert made.afd_dummy_phase == "eager"
