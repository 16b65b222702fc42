# SPDX-License-Identifier: Apache-2.0
"""Who has which rows of a step, known from what all Attention ranks announce."""

from __future__ import annotations

import random

import pytest
import torch

from afd.connectors.base import ConnectorSpec
from afd.control.abort import Abort
from afd.control.messages import Step
from afd.ffn.rows import rows_of, served_rows
from afd.topology import Rank, Role, Topology

EPOCH = "0123456789abcdef"


def spec(topology: Topology, ffn: int = 0, tp: int = 1, ubatches: int = 1) -> ConnectorSpec:
    return ConnectorSpec(
        epoch=EPOCH,
        topology=topology,
        rank=Rank(Role.FFN, ffn),
        hidden_size=8,
        dtype=torch.float32,
        max_tokens=64,
        layers=(0,),
        abort=Abort(),
        num_ubatches=ubatches,
        attention_tp=tp,
    )


def announced(counts: dict[int, tuple[tuple[int, ...], tuple[int, ...]]]) -> dict[Rank, Step]:
    """Steps by the index of the Attention rank that announces: real and padded rows by ubatch."""
    return {
        Rank(Role.ATTENTION, index): Step(
            epoch=EPOCH, step=1, rank=f"A{index}", phase="eager", real=real, padded=padded
        )
        for index, (real, padded) in counts.items()
    }


def test_a_tensor_parallel_group_announces_once_and_its_padding_comes_last() -> None:
    steps = announced({0: ((5,), (8,)), 2: ((1,), (1,))})
    wide = spec(Topology(4, 2), tp=2)
    assert [rows_of(wide, steps, attention, 0) for attention in range(4)] == [(4, 4), (4, 1), (1, 1), (0, 0)]


def test_a_rank_with_fewer_ubatches_than_others_brings_no_rows_for_the_rest() -> None:
    steps = announced({0: ((3, 2), (4, 2)), 1: ((7,), (7,))})
    double = spec(Topology(2, 1), ubatches=2)
    assert [rows_of(double, steps, 1, ubatch) for ubatch in (0, 1)] == [(7, 7), (0, 0)]
    assert served_rows(double, steps) == (13, 12)


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize(("attention", "ffn"), [(4, 1), (4, 2), (4, 4), (8, 2)])
def test_every_row_is_served_by_one_rank_whatever_the_counts(attention: int, ffn: int, tp: int) -> None:
    topology, chance = Topology(attention, ffn), random.Random(attention * ffn * tp)
    for _ in range(50):
        padded = {leader: chance.choice([0, 1, chance.randrange(64)]) for leader in range(0, attention, tp)}
        real = {leader: chance.randint(0, count) for leader, count in padded.items()}
        steps = announced({leader: ((real[leader],), (padded[leader],)) for leader in padded})
        served = [served_rows(spec(topology, index, tp), steps) for index in range(ffn)]
        assert sum(rows for rows, _ in served) == sum(padded.values())
        assert sum(tokens for _, tokens in served) == sum(real.values())
