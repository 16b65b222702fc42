# SPDX-License-Identifier: Apache-2.0
"""What stands in for the other role's modules: without parameters, without surprises."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from afd.connectors.base import LinkCounters, Routing, Slot
from afd.control.messages import Step
from afd.errors import MisuseError
from afd.models.proxies import Absent, Hop, RemoteFFN, remote_ffn_class


@dataclass
class Echo:
    """A link to nobody: the reply is what was sent, plus one. Keeps what it was given."""

    sent: list[tuple[Slot, Tensor, Tensor | None]] = field(default_factory=list)
    outs: list[Tensor | None] = field(default_factory=list)
    counters: LinkCounters = field(default_factory=LinkCounters)
    closed: bool = False

    def begin(self, step: Step) -> None: ...

    def send(
        self, slot: Slot, hidden: Tensor, token_ids: Tensor | None = None, routing: Routing | None = None
    ) -> None:
        self.sent.append((slot, hidden.clone(), token_ids))

    def receive(self, slot: Slot, out: Tensor | None = None) -> Tensor:
        sent_slot, hidden, _ = self.sent[-1]
        assert sent_slot == slot
        self.outs.append(out)
        reply = hidden + 1
        return reply if out is None else out.copy_(reply)

    def close(self, reason: str) -> None:
        self.closed = True


class Native(nn.Module):
    """A block of vLLM's: with weights, and a forward that computes with them."""

    def __init__(self, size: int, prefix: str) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)
        self.scale = nn.Parameter(torch.ones(size))
        self.register_buffer("out", torch.zeros(size))

    def forward(self, hidden: Tensor) -> Tensor:
        raise AssertionError("computed where its weights are not")


def connected(last_layer: int = 1) -> tuple[Hop, Echo]:
    hop, link = Hop(), Echo()
    hop.link, hop.last_layer = link, last_layer
    return hop, link


@pytest.mark.parametrize(
    ("prefix", "layer"),
    [
        ("model.layers.0.mlp", 0),
        ("model.layers.61.mlp", 61),
        ("layers.3", 3),
        ("a.layers.12.mlp.layers.x", 12),
    ],
)
def test_an_ffn_block_finds_its_layer_in_its_prefix_whatever_else_it_is_given(
    prefix: str, layer: int
) -> None:
    remote = remote_ffn_class(Hop(), Native)
    for block in (remote(prefix=prefix), remote("config", 3, prefix=prefix, quant_config=None, reduce=True)):
        assert isinstance(block, RemoteFFN)
        assert block.layer == layer


@pytest.mark.parametrize(
    "arguments", [{}, {"prefix": ""}, {"prefix": "model.mlp"}, {"prefix": "layers.x.mlp"}]
)
def test_an_ffn_block_without_a_layer_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(MisuseError, match="cannot tell the layer of an FFN block from its prefix"):
        remote_ffn_class(Hop(), Native)(**arguments)


def test_a_remote_block_passes_for_one_of_vllms_class_and_has_nothing_of_it() -> None:
    hop, link = connected()
    block = remote_ffn_class(hop, Native)(prefix="layers.0")
    assert isinstance(block, Native)
    assert not {"linear", "out", "scale"} & {*vars(block), *dict(block.named_children())}
    assert torch.equal(block(torch.zeros(1, 2)), torch.ones(1, 2))
    assert link.sent[0][0] == Slot(0, 0)


def test_a_remote_block_has_no_experts_to_count_or_to_balance() -> None:
    block = remote_ffn_class(Hop(), Native)(prefix="layers.0")
    assert block.n_routed_experts == block.n_physical_experts == block.n_shared_experts == 0
    assert block.experts is None


def test_embeddings_that_are_absent_can_be_tied() -> None:
    head, embedding = Absent(8, 4), Absent(8, 4)
    head.weight = embedding.weight
    assert list(head.parameters()) == []


def test_nothing_that_stands_in_has_a_parameter_or_a_buffer() -> None:
    remote = remote_ffn_class(Hop(), Native)
    for module in (RemoteFFN(0, Hop()), remote(prefix="layers.0"), Absent(64, 64, bias=True), Absent()):
        assert list(module.parameters()) == []
        assert list(module.buffers()) == []
        assert list(module.modules()) == [module]


def test_running_a_module_of_the_other_role_is_a_bug_that_is_told() -> None:
    with pytest.raises(MisuseError, match="belongs to the other role"):
        Absent(1, x=2)(torch.zeros(1))


def test_a_layer_that_runs_before_there_is_a_link_says_so() -> None:
    with pytest.raises(MisuseError, match="layer 4 ran before this rank was connected"):
        RemoteFFN(4, Hop())(torch.zeros(2, 3))


def test_hidden_states_go_out_with_layer_ubatch_and_ids_and_the_reply_comes_back() -> None:
    hop, link = connected()
    block = RemoteFFN(0, hop)
    hidden = torch.arange(6.0).view(2, 3)
    assert torch.equal(block(hidden), hidden + 1)
    hop.ubatch, hop.token_ids = 1, torch.tensor([7, 8])
    block(hidden)
    assert [slot for slot, _, _ in link.sent] == [Slot(0, 0), Slot(0, 1)]
    assert link.sent[0][2] is None
    assert link.sent[1][2] is hop.token_ids


def test_only_what_the_last_layer_returns_is_copied_out_of_the_transport() -> None:
    hop, link = connected(last_layer=1)
    hidden = torch.zeros(2, 3, dtype=torch.bfloat16)
    RemoteFFN(0, hop)(hidden)
    out = RemoteFFN(1, hop)(hidden)
    assert link.outs[0] is None
    assert link.outs[1] is out
    assert (out.shape, out.dtype) == (hidden.shape, hidden.dtype)


def test_all_blocks_of_a_model_share_one_hop() -> None:
    hop, link = connected(last_layer=2)
    remote = remote_ffn_class(hop, Native)
    model = nn.Sequential(*(remote(prefix=f"model.layers.{layer}.mlp") for layer in range(3)))
    assert torch.equal(model(torch.zeros(1, 2)), torch.full((1, 2), 3.0))
    assert [slot.layer for slot, _, _ in link.sent] == [0, 1, 2]
    assert "layer=2" in repr(model)
