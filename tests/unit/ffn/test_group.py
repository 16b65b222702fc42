# SPDX-License-Identifier: Apache-2.0
"""Several FFN ranks serve together: real links, real sockets between them, real layers. Each rank is a thread."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from afd.connectors.base import ConnectorSpec, Work
from afd.connectors.camp2p import CAMP2pAFDConnector
from afd.connectors.shm.transport import ShmTransport
from afd.control.abort import Abort
from afd.control.messages import Step
from afd.ffn.counters import FFNCounters
from afd.ffn.mesh import RowMesh
from afd.ffn.rows import GroupRows
from afd.ffn.server import FFNServer
from afd.topology import Rank, Role, Topology
from tests.unit.connectors.conftest import EPOCH, Hub
from tests.unit.ffn.test_server import HIDDEN, LAYERS, announce, attend


class Group:
    """A and F ranks that are connected. Every FFN rank has the same layers and computes all rows."""

    def __init__(self, topology: Topology, directory: Path) -> None:
        self.topology = topology
        self.abort = Abort()
        connector, hub = CAMP2pAFDConnector(ShmTransport("auto", directory)), Hub(topology.world_size)
        self.pool = ThreadPoolExecutor(topology.world_size)
        attention, ffn = topology.role_ranks(Role.ATTENTION), topology.role_ranks(Role.FFN)
        opening = {r: self.pool.submit(connector.open_ffn, self.spec(r), hub.of(r)) for r in ffn}
        joining = {r: self.pool.submit(connector.open_attention, self.spec(r), hub.of(r)) for r in attention}
        self.links = {rank: link.result(10) for rank, link in joining.items()}
        self.ffn_links = {rank: link.result(10) for rank, link in opening.items()}
        self.meshes = {
            rank: RowMesh(
                rank, topology.num_ffn, EPOCH[:16].ljust(16, "-"), directory, abort=self.abort, step_s=5.0
            )
            for rank in ffn
        }
        for connecting in [self.pool.submit(mesh.connect, 5.0) for mesh in self.meshes.values()]:
            connecting.result(10)
        torch.manual_seed(0)
        self.layers = {
            layer: nn.Sequential(nn.Linear(HIDDEN, 24), nn.SiLU(), nn.Linear(24, HIDDEN)) for layer in LAYERS
        }
        self.computed: dict[Rank, list[int]] = {rank: [] for rank in ffn}
        self.counters = {rank: FFNCounters(self.spec(rank)) for rank in ffn}
        self.servers = {rank: self._server(rank) for rank in ffn}

    def spec(self, rank: Rank) -> ConnectorSpec:
        return ConnectorSpec(
            epoch=EPOCH,
            topology=self.topology,
            rank=rank,
            hidden_size=HIDDEN,
            dtype=torch.float32,
            max_tokens=32,
            layers=LAYERS,
            abort=self.abort,
            step_s=5.0,
            poison=True,
        )

    def _server(self, rank: Rank) -> FFNServer:
        @contextmanager
        def context(work: Work) -> Iterator[None]:
            self.computed[rank].append(work.hidden.shape[0])
            assert work.parts[-1].stop == work.hidden.shape[0]
            yield

        rows = GroupRows(self.spec(rank), self.meshes[rank])
        return FFNServer(self.layers, self.ffn_links[rank], context, self.counters[rank], rows)

    def step(self, number: int, counts: list[int]) -> None:
        """One step; every rank's outputs must be those of its own rows."""
        steps: dict[Rank, Step] = {
            rank: announce(number, str(rank), counts[rank.index]) for rank in self.links
        }
        inputs = {rank: torch.randn(counts[rank.index], HIDDEN) for rank in self.links}
        serving = [self.pool.submit(server.step, steps) for server in self.servers.values()]
        attending = {
            rank: self.pool.submit(attend, link, steps[rank], [inputs[rank]])
            for rank, link in self.links.items()
        }
        for future in serving:
            future.result(20)
        for rank, future in attending.items():
            torch.testing.assert_close(future.result(20)[0], self._native(inputs[rank]))

    def _native(self, hidden: Tensor) -> Tensor:
        with torch.inference_mode():
            for layer in LAYERS:
                hidden = self.layers[layer](torch.tanh(hidden))
        return hidden

    def close(self) -> None:
        for mesh in self.meshes.values():
            mesh.close()
        for link in (*self.ffn_links.values(), *self.links.values()):
            link.close("the test has ended")
        self.pool.shutdown()


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[Callable[..., Group]]:
    made: list[Group] = []

    def make(attention: int, ffn: int) -> Group:
        made.append(Group(Topology(attention, ffn), tmp_path))
        return made[-1]

    yield make
    for group in made:
        group.close()


@pytest.mark.parametrize(
    "counts",
    [[3, 5, 2, 1], [0, 0, 7, 4], [6, 1, 0, 0], [0, 0, 0, 9], [32, 32, 32, 32], [0, 0, 0, 0]],
    ids=str,
)
def test_every_rank_computes_the_rows_of_all_and_replies_with_its_own(
    counts: list[int], groups: Callable[..., Group]
) -> None:
    group = groups(4, 2)
    group.step(0, counts)
    everywhere = [sum(counts)] * len(LAYERS) if sum(counts) else []
    assert group.computed == {Rank.parse("F0"): everywhere, Rank.parse("F1"): everywhere}
    for rank, counters in group.counters.items():
        served = sum(counts[index] for index in group.topology.attention_of(rank.index))
        found = counters.snapshot()
        assert found["afd_ffn_tokens_total"] == served * len(LAYERS)
        assert found["afd_tokens_total{kind=padded}"] == found["afd_tokens_total{kind=real}"] == served


def test_a_thousand_steps_with_ranks_that_are_idle_at_random_stay_in_step(
    groups: Callable[..., Group],
) -> None:
    group, chance = groups(2, 2), random.Random(0)
    sent = 0
    for number in range(1000):
        counts = [chance.choice([0, 0, 1, chance.randrange(33)]) for _ in range(2)]
        group.step(number, counts)
        sent += sum(counts)
    total = sum(counters.snapshot()["afd_ffn_tokens_total"] for counters in group.counters.values())
    assert total == sent * len(LAYERS)
    f0, f1 = group.computed.values()
    assert f0 == f1, "the ranks would be in different collectives"
