# SPDX-License-Identifier: Apache-2.0
"""Announcements of any number of ranks: what FFN hears is what Attention said, once, in few bytes."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afd.control.abort import Abort
from afd.control.messages import Phase, Step, encode
from afd.control.step_sender import StepSender
from afd.control.steps import StepListener
from afd.topology import Rank, Role

EPOCH = "e" * 12


class Channel:
    """Every Attention rank connected to every FFN rank."""

    def __init__(self, attention: int, ffn: int) -> None:
        self.ranks = [Rank(Role.ATTENTION, index) for index in range(attention)]
        self.listeners = [
            StepListener(Rank(Role.FFN, index), EPOCH, self.ranks, abort=Abort(), step_s=5.0)
            for index in range(ffn)
        ]
        addresses = {Rank(Role.FFN, i): listener.address for i, listener in enumerate(self.listeners)}
        self.senders = [StepSender(rank, EPOCH, abort=Abort(), step_s=5.0) for rank in self.ranks]
        with ThreadPoolExecutor(attention + ffn) as pool:
            waits = [pool.submit(sender.connect, addresses, 5.0) for sender in self.senders]
            waits += [pool.submit(listener.connect_all, 5.0) for listener in self.listeners]
            for wait in waits:
                wait.result(10)

    def close(self) -> None:
        for sender in self.senders:
            sender.close("done")
        for listener in self.listeners:
            listener.close("done")


@contextmanager
def channel(attention: int, ffn: int) -> Iterator[Channel]:
    made = Channel(attention, ffn)
    try:
        yield made
    finally:
        made.close()


def step(number: int, rank: Rank, padded: Sequence[int], phase: Phase = "eager") -> Step:
    real = tuple(count - count // 3 for count in padded)
    return Step(
        epoch=EPOCH, step=number, rank=str(rank), phase=phase, real=real, padded=tuple(padded), ids=True
    )


@settings(max_examples=24)
@given(st.integers(1, 8), st.data())
def test_what_one_to_eight_ranks_announce_arrives_as_they_said_it(size: int, data: st.DataObject) -> None:
    ubatches = st.lists(st.integers(0, 10**9), min_size=1, max_size=2)
    counts = data.draw(st.lists(ubatches, min_size=size, max_size=size))
    phase: Phase = data.draw(st.sampled_from(["profile", "warmup", "capture", "eager", "replay"]))
    with channel(size, 1) as made:
        said = {rank: step(3, rank, padded, phase) for rank, padded in zip(made.ranks, counts, strict=True)}
        for sender, rank in zip(made.senders, made.ranks, strict=True):
            sender.send(said[rank])
        assert made.listeners[0].next(timeout_s=5.0) == said


@pytest.mark.parametrize(("attention", "ffn"), [(1, 1), (2, 2), (4, 2), (3, 1)])
def test_every_ffn_rank_hears_of_each_step_exactly_once(attention: int, ffn: int) -> None:
    steps = 50
    with channel(attention, ffn) as made:

        def announce(sender: StepSender, rank: Rank) -> None:
            for number in range(steps):
                sender.send(step(number, rank, [number]))

        threads = [
            threading.Thread(target=announce, args=pair)
            for pair in zip(made.senders, made.ranks, strict=True)
        ]
        for thread in threads:
            thread.start()
        for listener in made.listeners:
            for number in range(steps):
                heard = listener.next(timeout_s=5.0)
                assert heard == {rank: step(number, rank, [number]) for rank in made.ranks}
            assert listener.next(timeout_s=0.02) == {}, "a message that belongs to no step"
        for thread in threads:
            thread.join(5)


def test_an_announcement_is_as_short_for_many_tokens_as_for_one() -> None:
    rank = Rank(Role.ATTENTION, 0)
    one, many = (len(encode(step(7, rank, [count, count]))) for count in (1, 10**9))
    assert many - one <= 4 * 4, "it carries counts, not tokens"
    assert many < 200
