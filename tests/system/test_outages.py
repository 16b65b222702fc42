# SPDX-License-Identifier: Apache-2.0
"""Ranks that raise in the middle of their work: the original words arrive on both sides, and nobody hangs."""

from __future__ import annotations

from pathlib import Path

import pytest

from afd.topology import Role
from tests.system.conftest import Groups, layout
from tests.system.driver import driving
from tests.system.rig import Client, Traces, decoding, ends, start, until
from tests.system.variants import ORDERS_DIRECTORY

LIMIT_S = 2.0
"""From the order to the exit of the other role."""

OUTAGES = {
    Role.FFN: driving(target="tests.system.variants.outages:ffn"),
    Role.ATTENTION: driving(worker="tests.system.variants.outages.Worker"),
}


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    """Where to write orders."""
    directory = tmp_path / "orders"
    directory.mkdir()
    return directory


@pytest.mark.parametrize(
    ("order", "words", "own"),
    [
        pytest.param(
            "ffn raises",
            "F0: ValueError('expert 3 of layer 2 is broken')",
            Role.FFN,
            marks=pytest.mark.pairwise,
        ),
        ("ffn leaves", "exited with code 3", Role.FFN),
        ("attention raises", "A0: ValueError('the attention of layer 1 is broken')", Role.ATTENTION),
        (
            "attention raises before its forward",
            "A0: ValueError('the batch cannot be prepared')",
            Role.ATTENTION,
        ),
    ],
)
def test_what_a_rank_raises_in_a_step_is_what_both_roles_say(
    groups: Groups, orders: Path, order: str, words: str, own: Role
) -> None:
    group = groups(layout("v2"), programs=OUTAGES, environment={ORDERS_DIRECTORY: str(orders)})
    start(group)
    client = Client(group.attention.api_url).start()
    decoding(group.attention)
    traces = Traces.of(group)
    (orders / order).touch()
    taken = until(lambda: not (orders / order).exists(), 10, "the order was taken")
    found = ends(group, taken)
    client.join(5)
    print(f"{order}: {found}; {group.ffn.error()}; {client.ends}")
    other = Role.FFN if own is Role.ATTENTION else Role.ATTENTION
    assert found.codes == {own: 71, other: 70}
    assert found.seconds[other] < LIMIT_S
    assert words in group.ffn.error()
    assert group.ffn.error() == group.attention.error()
    assert all(isinstance(end, Exception) for end in client.ends.values())
    assert traces.left() == []


def test_what_ffn_raises_while_it_loads_is_what_both_roles_say(groups: Groups, orders: Path) -> None:
    (orders / "ffn raises while loading").touch()
    group = groups(layout("v2"), programs=OUTAGES, environment={ORDERS_DIRECTORY: str(orders)})
    group.start()
    taken = until(lambda: not any(orders.iterdir()), 60, "the order was taken")
    found = ends(group, taken)
    print(f"{found}; {group.ffn.error()}")
    assert found.codes == {Role.FFN: 71, Role.ATTENTION: 70}
    assert max(found.seconds.values()) < LIMIT_S
    assert "F0: ValueError('the weights of layer 2 are broken')" in group.ffn.error()
    assert group.ffn.error() == group.attention.error()
