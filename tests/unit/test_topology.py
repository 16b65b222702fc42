# SPDX-License-Identifier: Apache-2.0
"""Who serves whom, for every legal pair of counts and both world orders."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd.errors import ConfigError, MisuseError
from afd.topology import Rank, Role, Topology, WorldOrder, attention_rank

orders = st.sampled_from(list(WorldOrder))


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    ffn = draw(st.integers(1, 12))
    return Topology(ffn * draw(st.integers(1, 8)), ffn, draw(orders))


@given(topologies())
def test_every_attention_rank_is_served_exactly_once(topology: Topology) -> None:
    topology.validate()
    served = [a for f in range(topology.num_ffn) for a in topology.attention_of(f)]
    assert sorted(served) == list(range(topology.num_attention))
    assert all(a in topology.attention_of(topology.ffn_of(a)) for a in range(topology.num_attention))


@given(topologies())
def test_every_ffn_rank_serves_the_same_number_of_attention_ranks(topology: Topology) -> None:
    assert {len(topology.attention_of(f)) for f in range(topology.num_ffn)} == {topology.ratio}


@given(topologies(), st.data())
def test_folding_counts_keeps_every_token_on_the_rank_that_serves_it(
    topology: Topology, data: st.DataObject
) -> None:
    size = topology.num_attention
    counts = data.draw(st.lists(st.integers(0, 10_000), min_size=size, max_size=size))
    folded = topology.fold(counts)
    assert len(folded) == topology.num_ffn
    assert sum(folded) == sum(counts)
    for f, total in enumerate(folded):
        assert total == sum(counts[a] for a in range(size) if topology.ffn_of(a) == f)


@given(topologies())
def test_world_rank_and_rank_at_are_inverse_and_cover_the_world(topology: Topology) -> None:
    assert [topology.world_rank(topology.rank_at(w)) for w in range(topology.world_size)] == list(
        range(topology.world_size)
    )
    assert len(set(topology.ranks)) == topology.world_size
    assert topology.world_rank(topology.root) == 0


@given(topologies())
def test_the_order_decides_which_role_has_the_low_world_ranks(topology: Topology) -> None:
    first = topology.order.roles[0]
    assert topology.root == Rank(first, 0)
    assert all(rank.role is first for rank in topology.ranks[: topology.size(first)])
    assert all(rank.role is first.other for rank in topology.ranks[topology.size(first) :])


@given(topologies())
def test_pair_keys_are_different_for_every_path(topology: Topology) -> None:
    keys = [
        topology.pair_key(a, f, ubatch)
        for a in range(topology.num_attention)
        for f in range(topology.num_ffn)
        for ubatch in range(2)
    ]
    assert len(set(keys)) == len(keys)


@given(st.integers(1, 16), st.integers(1, 16), orders)
def test_only_multiples_are_legal(attention: int, ffn: int, order: WorldOrder) -> None:
    topology = Topology(attention, ffn, order)
    if attention >= ffn and attention % ffn == 0:
        topology.validate()
    else:
        with pytest.raises(ConfigError, match=f"{attention}A{ffn}F"):
            topology.validate()


def test_an_uneven_topology_names_the_nearest_legal_counts() -> None:
    with pytest.raises(ConfigError, match="use a multiple of 2, such as 4 or 6"):
        Topology(5, 2).validate()


@pytest.mark.parametrize(("attention", "ffn"), [(0, 1), (1, 0), (-1, 1)])
def test_a_role_without_ranks_is_refused(attention: int, ffn: int) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        Topology(attention, ffn).validate()


@given(st.sampled_from(list(Role)), st.integers(0, 10**6))
def test_a_rank_reads_back_what_it_prints(role: Role, index: int) -> None:
    assert Rank.parse(str(Rank(role, index))) == Rank(role, index)


@pytest.mark.parametrize("text", ["", "A", "0", "B0", "A-1", "A01", "a0", "A0 ", "A0\n", "A٣"])
def test_text_that_is_not_a_rank_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a rank"):
        Rank.parse(text)


def test_ranks_outside_the_topology_are_misuse() -> None:
    topology = Topology(2, 1)
    for broken in (
        lambda: topology.world_rank(Rank(Role.FFN, 1)),
        lambda: topology.rank_at(3),
        lambda: topology.rank_at(-1),
        lambda: topology.ffn_of(2),
        lambda: topology.attention_of(1),
        lambda: topology.fold([1]),
        lambda: topology.pair_key(0, 0, -1),
        lambda: Rank(Role.FFN, -1),
    ):
        with pytest.raises(MisuseError):
            broken()


@given(st.integers(1, 8), st.integers(1, 8))
def test_attention_ranks_are_numbered_without_gaps_over_dp_and_tp(dp: int, tp: int) -> None:
    assert [attention_rank(d, t, tp) for d in range(dp) for t in range(tp)] == list(range(dp * tp))


def test_an_attention_rank_outside_its_tp_group_is_misuse() -> None:
    with pytest.raises(MisuseError):
        attention_rank(0, 2, 2)


def test_roles_print_the_words_of_the_configuration() -> None:
    assert (str(Role.FFN), f"{Role.ATTENTION}") == ("ffn", "attention")
