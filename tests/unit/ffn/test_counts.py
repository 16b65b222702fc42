# SPDX-License-Identifier: Apache-2.0
"""Rows of any number from any rank, for a thousand steps: the failures of tests/failures.toml that come from counts."""

from __future__ import annotations

import os
import random
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from afd.control.messages import Step
from afd.control.step_sender import StepSender
from afd.control.steps import StepListener
from afd.topology import Rank
from tests.unit.connectors.conftest import EPOCH
from tests.unit.ffn.test_server import F0, HIDDEN, LAYERS, Pair, announce, attend, native, run

MOST = 32
"""Rows that a rank may send in one step: the links of a Pair have room for no more."""

READS = ("item", "tolist", "numpy", "cpu", "nonzero", "equal", "allclose", "__array__")
CONVERSIONS = ("__bool__", "__int__", "__float__", "__index__", "__contains__")


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Products this small gain nothing from a pool of threads, which waits for every one of them on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@contextmanager
def pair_of(attention: int, num_ubatches: int = 1) -> Iterator[Pair]:
    with tempfile.TemporaryDirectory() as directory:
        pair = Pair(Path(directory), attention, num_ubatches)
        try:
            yield pair
        finally:
            pair.close()


counts = st.lists(st.lists(st.integers(0, MOST), min_size=3, max_size=3), min_size=1, max_size=6)


@settings(max_examples=12)
@given(counts)
def test_whatever_each_rank_sends_is_computed_and_goes_back_to_it(steps: list[list[int]]) -> None:
    with pair_of(3) as pair:
        ranks = list(pair.attention)
        inputs = {rank: [[torch.randn(step[i], HIDDEN)] for step in steps] for i, rank in enumerate(ranks)}
        announced = [
            {rank: announce(number, str(rank), step[i]) for i, rank in enumerate(ranks)}
            for number, step in enumerate(steps)
        ]
        outputs = run(pair, announced, inputs)
        for rank in ranks:
            for given_, found in zip(inputs[rank], outputs[rank], strict=True):
                torch.testing.assert_close(found[0], native(pair, given_)[0])
        assert pair.counters.snapshot()["afd_ffn_tokens_total"] == sum(map(sum, steps)) * len(LAYERS)


@settings(max_examples=12)
@given(st.integers(1, MOST), st.data())
def test_padding_changes_no_row_before_it(padded: int, data: st.DataObject) -> None:
    real = data.draw(st.integers(0, padded))
    rows, rubbish = torch.randn(real, HIDDEN), torch.full((padded - real, HIDDEN), 1e30)
    with pair_of(1) as pair:
        (a0,) = pair.attention
        inputs = [[rows], [torch.cat([rows, rubbish])]]
        steps = [{a0: announce(0, "A0", real)}, {a0: announce(1, "A0", padded, real=[real])}]
        alone, among = run(pair, steps, {a0: inputs})[a0]
        torch.testing.assert_close(among[0][:real], alone[0])
        found = pair.counters.snapshot()
        assert found["afd_tokens_total{kind=real}"] == 2 * real
        assert found["afd_tokens_total{kind=padded}"] == real + padded


def test_a_thousand_steps_with_idle_ranks_leave_all_ranks_at_the_same_step() -> None:
    """Also: nothing that a process can run out of is made anew for a step."""
    steps, dice = 1000, random.Random(7)
    with ExitStack() as stack:
        pair = stack.enter_context(pair_of(3))
        ranks = list(pair.attention)
        plan = [[dice.choice((0, 0, 1, 2, 7)) for _ in ranks] for _ in range(steps)]
        listener = StepListener(F0, EPOCH, ranks, abort=pair.abort, step_s=20.0)
        stack.callback(lambda: listener.close("the test has ended"))
        held: dict[int, tuple[int, int]] = {}
        taken: list[Mapping[Rank, Step]] = []

        def next_steps() -> Mapping[Rank, Step] | None:
            found = listener.next()
            if found:
                taken.append(found)
                held[len(taken)] = (len(os.listdir("/proc/self/fd")), threading.active_count())
            return found

        def attention(index: int, rank: Rank) -> list[Tensor]:
            sender = StepSender(rank, EPOCH, abort=pair.abort, step_s=20.0)
            sender.connect({F0: listener.address}, 10.0)
            last: list[Tensor] = []
            for number, step in enumerate(plan):
                announced = announce(number, str(rank), step[index])
                sender.send(announced)
                last = attend(pair.attention[rank], announced, [torch.full((step[index], HIDDEN), 0.5)])
            sender.close("all steps are done")
            return last

        pool = stack.enter_context(ThreadPoolExecutor(len(ranks) + 1))
        attending = [pool.submit(attention, index, rank) for index, rank in enumerate(ranks)]
        listener.connect_all(10.0)
        pair.server.serve(next_steps)
        last = [future.result(20) for future in attending]

        assert [{step.step for step in one.values()} for one in taken] == [{i} for i in range(steps)]
        expected = sum(map(sum, plan)) * len(LAYERS)
        assert pair.counters.snapshot()["afd_ffn_tokens_total"] == expected
        for index in range(len(ranks)):
            alone = native(pair, [torch.full((plan[-1][index], HIDDEN), 0.5)])
            torch.testing.assert_close(last[index][0], alone[0])
        # An Attention thread that has announced its last step may be gone already: fewer is fine.
        assert max(held[number] for number in range(steps // 2, steps + 1)) <= held[steps // 4]


# ---- reads of tensors ------------------------------------------------------------------------------------------


class Reads(TorchFunctionMode):
    """Counts what would make a host wait for a device: a tensor's value that becomes a Python object."""

    def __init__(self, found: Counter[str]) -> None:
        super().__init__()
        self._found = found

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func.__name__ in READS + CONVERSIONS:
            self._found[func.__name__] += 1
        return func(*args, **(kwargs or {}))


class Watched:
    """Counts the reads of one thread for as long as it is inside."""

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()

    def during(self, work: Callable[[], Any]) -> Any:
        with Reads(self.found):
            return work()


def reads(pair: Pair, steps: Sequence[Step]) -> tuple[Counter[str], Counter[str]]:
    """What Attention and FFN read while they go through ``steps``."""
    (a0,) = pair.attention
    inputs = [torch.randn(step.padded[0], HIDDEN) for step in steps]
    attention, ffn = Watched(), Watched()
    coming: Iterator[Mapping[Rank, Step] | None] = iter([*({a0: step} for step in steps), None])
    with ThreadPoolExecutor(2) as pool:
        serving = pool.submit(ffn.during, lambda: pair.server.serve(lambda: next(coming)))
        attending = pool.submit(
            attention.during,
            lambda: [
                attend(pair.attention[a0], step, [hidden]) for step, hidden in zip(steps, inputs, strict=True)
            ],
        )
        attending.result(20)
        serving.result(20)
    return attention.found, ffn.found


def test_neither_role_reads_a_tensors_value_in_the_layer_loop() -> None:
    with pair_of(1) as pair:
        few, many = [announce(0, "A0", 1)], [announce(number, "A0", MOST) for number in range(1, 20)]
        for steps in (few, many):
            assert reads(pair, steps) == (Counter(), Counter())


def test_a_layer_that_reads_a_value_is_noticed() -> None:
    class Reading(nn.Module):
        def forward(self, hidden: Tensor) -> Tensor:
            return hidden * float(hidden[0, 0]) if hidden.sum() > 0 else hidden * hidden.max().item()

    with pair_of(1) as pair:
        pair.layers[1] = nn.Sequential(Reading())
        attention, ffn = reads(pair, [announce(0, "A0", 3)])
        assert attention == Counter()
        assert ffn["__bool__"] == 1 and ffn["__float__"] + ffn["item"] == 1
