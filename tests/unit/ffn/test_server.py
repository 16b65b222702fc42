# SPDX-License-Identifier: Apache-2.0
"""FFN's loop with real layers over a real link: Attention is a thread with RemoteFFN blocks, as in a model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from afd.connectors.base import ConnectorSpec, Slot, Work
from afd.connectors.camp2p import CAMP2pAFDConnector, CAMP2pAttentionLink, CAMP2pFFNLink
from afd.connectors.shm.transport import ShmTransport
from afd.control.abort import Abort
from afd.control.messages import Phase, Step
from afd.errors import PeerLostError
from afd.ffn.counters import FFNCounters
from afd.ffn.rows import GroupRows
from afd.ffn.server import FFNServer
from afd.models.proxies import Hop, RemoteFFN
from afd.topology import Rank, Topology
from tests.unit.connectors.conftest import EPOCH, Hub

HIDDEN = 16
LAYERS = (0, 1, 2)
F0 = Rank.parse("F0")


def announce(
    number: int, rank: str, *counts: int, real: Sequence[int] | None = None, phase: Phase = "eager"
) -> Step:
    return Step(
        epoch=EPOCH,
        step=number,
        rank=rank,
        phase=phase,
        real=tuple(counts if real is None else real),
        padded=counts,
    )


class Pair:
    """One FFN rank with its server, and the links of its Attention ranks."""

    def __init__(self, directory: Path, attention: int, num_ubatches: int) -> None:
        topology = Topology(attention, 1)
        connector = CAMP2pAFDConnector(ShmTransport("auto", directory))
        hub = Hub(attention + 1)
        self.abort = Abort()

        def spec(rank: Rank) -> ConnectorSpec:
            return ConnectorSpec(
                epoch=EPOCH,
                topology=topology,
                rank=rank,
                hidden_size=HIDDEN,
                dtype=torch.float32,
                max_tokens=32,
                layers=LAYERS,
                abort=self.abort,
                num_ubatches=num_ubatches,
                step_s=5.0,
                poison=True,
            )

        ranks = [Rank.parse(f"A{index}") for index in range(attention)]
        with ThreadPoolExecutor(attention + 1) as pool:
            opening = pool.submit(connector.open_ffn, spec(F0), hub.of(F0))
            links = [pool.submit(connector.open_attention, spec(rank), hub.of(rank)) for rank in ranks]
            self.ffn: CAMP2pFFNLink = opening.result(10)
            self.attention: dict[Rank, CAMP2pAttentionLink] = {
                rank: link.result(10) for rank, link in zip(ranks, links, strict=True)
            }
        torch.manual_seed(0)
        self.layers = {
            layer: nn.Sequential(nn.Linear(HIDDEN, 24), nn.SiLU(), nn.Linear(24, HIDDEN)) for layer in LAYERS
        }
        self.contexts: list[tuple[Slot, int]] = []
        self.counters = FFNCounters(spec(F0))
        self.counters.follow(lambda: self.ffn.counters)
        self.server = FFNServer(self.layers, self.ffn, self._context, self.counters, GroupRows(spec(F0)))

    @contextmanager
    def _context(self, work: Work) -> Iterator[None]:
        self.contexts.append((work.slot, work.hidden.shape[0]))
        yield

    def close(self) -> None:
        for link in (self.ffn, *self.attention.values()):
            link.close("the test has ended")


MakePair = Callable[..., Pair]


@pytest.fixture
def pairs(tmp_path: Path) -> Iterator[MakePair]:
    made: list[Pair] = []

    def make(attention: int = 1, num_ubatches: int = 1) -> Pair:
        made.append(Pair(tmp_path, attention, num_ubatches))
        return made[-1]

    yield make
    for pair in made:
        pair.close()


def attend(link: CAMP2pAttentionLink, step: Step, inputs: Sequence[Tensor]) -> list[Tensor]:
    """What an Attention rank does in one step: through all layers, ubatch by ubatch in each. One input a ubatch."""
    hop = Hop()
    hop.link, hop.last_layer = link, LAYERS[-1]
    hidden = list(inputs)
    link.begin(step)
    with torch.inference_mode():
        for layer in LAYERS:
            for ubatch in range(len(hidden)):
                hop.ubatch = ubatch
                hidden[ubatch] = RemoteFFN(layer, hop)(torch.tanh(hidden[ubatch]))
    return hidden


def native(pair: Pair, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The same in one process."""
    hidden = list(inputs)
    with torch.inference_mode():
        for layer in LAYERS:
            hidden = [pair.layers[layer](torch.tanh(one)) for one in hidden]
    return hidden


def run(
    pair: Pair, steps: Sequence[Mapping[Rank, Step]], inputs: Mapping[Rank, Sequence[Sequence[Tensor]]]
) -> dict[Rank, list[list[Tensor]]]:
    """Serve ``steps`` while each Attention rank goes through its inputs; the outputs by rank and step."""
    coming = iter([*steps, {}, None])
    with ThreadPoolExecutor(len(pair.attention) + 1) as pool:
        serving = pool.submit(pair.server.serve, lambda: next(coming))
        attending = {
            rank: pool.submit(
                lambda link, rank: [
                    attend(link, step[rank], one) for step, one in zip(steps, inputs[rank], strict=True)
                ],
                link,
                rank,
            )
            for rank, link in pair.attention.items()
        }
        outputs = {rank: future.result(20) for rank, future in attending.items()}
        serving.result(20)
    return outputs


def test_layers_on_the_other_side_compute_what_they_compute_here(pairs: MakePair) -> None:
    pair = pairs()
    (a0,) = pair.attention
    inputs = [[torch.randn(rows, HIDDEN)] for rows in (1, 5, 32)]
    steps = [{a0: announce(number, "A0", len(one[0]))} for number, one in enumerate(inputs)]
    outputs = run(pair, steps, {a0: inputs})
    for one, out in zip(inputs, outputs[a0], strict=True):
        torch.testing.assert_close(out[0], native(pair, one)[0])


def test_rows_of_several_attention_ranks_are_computed_together_and_go_back_to_their_owner(
    pairs: MakePair,
) -> None:
    pair = pairs(attention=3)
    counts = dict(zip(pair.attention, (4, 0, 7), strict=True))
    inputs = {rank: [[torch.randn(rows, HIDDEN)]] for rank, rows in counts.items()}
    steps = [{rank: announce(0, str(rank), rows) for rank, rows in counts.items()}]
    outputs = run(pair, steps, inputs)
    for rank in counts:
        torch.testing.assert_close(outputs[rank][0][0], native(pair, inputs[rank][0])[0])
    assert pair.contexts == [(Slot(layer, 0), 11) for layer in LAYERS]


def test_ubatches_are_separate_works_and_one_without_rows_opens_no_context(pairs: MakePair) -> None:
    pair = pairs(num_ubatches=2)
    (a0,) = pair.attention
    inputs = [
        [torch.randn(3, HIDDEN), torch.randn(2, HIDDEN)],
        [torch.randn(4, HIDDEN), torch.randn(0, HIDDEN)],
    ]
    steps = [{a0: announce(0, "A0", 3, 2)}, {a0: announce(1, "A0", 4, 0)}]
    outputs = run(pair, steps, {a0: inputs})
    for one, out in zip(inputs, outputs[a0], strict=True):
        for expected, found in zip(native(pair, one), out, strict=True):
            torch.testing.assert_close(found, expected)
    assert pair.contexts[:6] == [(Slot(layer, ubatch), 3 - ubatch) for layer in LAYERS for ubatch in (0, 1)]
    assert pair.contexts[6:] == [(Slot(layer, 0), 4) for layer in LAYERS]


def test_a_step_without_a_token_is_an_ordinary_one(pairs: MakePair) -> None:
    pair = pairs()
    (a0,) = pair.attention
    outputs = run(pair, [{a0: announce(0, "A0", 0)}], {a0: [[torch.zeros(0, HIDDEN)]]})
    assert outputs[a0][0][0].shape == (0, HIDDEN)
    assert pair.contexts == []
    assert pair.counters.snapshot()["afd_ffn_tokens_total"] == 0


def test_everything_that_crossed_is_counted(pairs: MakePair) -> None:
    pair = pairs(attention=2)
    a0, a1 = pair.attention
    steps = [
        {a0: announce(0, "A0", 8, real=[6], phase="profile"), a1: announce(0, "A1", 0)},
        {a0: announce(1, "A0", 2), a1: announce(1, "A1", 3)},
        {a0: announce(2, "A0", 2), a1: announce(2, "A1", 3)},
    ]
    inputs = {
        a0: [[torch.zeros(rows, HIDDEN)] for rows in (8, 2, 2)],
        a1: [[torch.zeros(rows, HIDDEN)] for rows in (0, 3, 3)],
    }
    run(pair, steps, inputs)
    found = pair.counters.snapshot()
    assert found["afd_steps_total{phase=profile}"] == 1
    assert found["afd_steps_total{phase=eager}"] == 2
    assert found["afd_tokens_total{kind=real}"] == 6 + 5 + 5
    assert found["afd_tokens_total{kind=padded}"] == 8 + 5 + 5
    assert found["afd_ffn_tokens_total"] == (8 + 5 + 5) * len(LAYERS)
    crossed = (8 + 5 + 5) * len(LAYERS) * HIDDEN * 4
    assert found["afd_hop_bytes_total{direction=sent}"] == crossed
    assert found["afd_hop_bytes_total{direction=received}"] == crossed
    observed = {name.partition("{")[0]: value for name, value in found.items() if "le=+Inf" in name}
    assert observed == {
        "afd_ffn_seconds_bucket": 3 * len(LAYERS),
        "afd_step_seconds_bucket": 3,
        "afd_wait_seconds_bucket": 3,
    }


def test_what_a_layer_raises_comes_out_as_it_is(pairs: MakePair) -> None:
    class Broken(nn.Module):
        def forward(self, hidden: Tensor) -> Tensor:
            raise ValueError("as the test asked")

    pair = pairs()
    (a0,) = pair.attention
    pair.layers[1] = nn.Sequential(Broken())
    step = announce(0, "A0", 2)
    with ThreadPoolExecutor(1) as pool:
        attending = pool.submit(attend, pair.attention[a0], step, [torch.zeros(2, HIDDEN)])
        with pytest.raises(ValueError, match="as the test asked"):
            pair.server.serve(lambda: {a0: step})
        pair.ffn.close("the layer broke")
        with pytest.raises(PeerLostError):
            attending.result(20)


def test_the_loop_ends_when_nobody_announces_any_more(pairs: MakePair) -> None:
    pair = pairs()
    pair.server.serve(lambda: None)
    assert threading.active_count() >= 1
    assert pair.counters.snapshot()["afd_ffn_tokens_total"] == 0
