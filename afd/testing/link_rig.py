# SPDX-License-Identifier: Apache-2.0
"""What the scenarios of the conformance suite are made of: links, steps and rows that every rank can predict."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from afd.connectors.base import AttentionLink, Connector, ConnectorSpec, FFNLink, Slot
from afd.connectors.slicing import slice_rows, split_rows
from afd.control.messages import Step
from afd.errors import AFDError
from afd.testing.ranks import RankContext
from afd.topology import Rank, Role, Topology

MakeConnector = Callable[[Role], Connector]
"""How a process of a role gets its connector; picklable, such as a module-level function or a partial of one."""

HIDDEN = 48
MAX_TOKENS = 33
LAYERS = (0, 1, 4)


class Rig:
    """One rank of a scenario: makes specs, links and steps. All its epochs begin with ``tag``."""

    def __init__(self, context: RankContext, topology: Topology, make: MakeConnector, tag: str) -> None:
        self.context = context
        self.topology = topology
        self.connector = make(context.rank.role)
        self.attention = context.rank.role is Role.ATTENTION
        self.index = context.rank.index
        self._tag = tag
        self.epoch = ""

    def spec(self, **changes: Any) -> ConnectorSpec:
        """A spec of a new epoch, agreed on by all ranks."""
        names = self.context.exchange("epoch", self._tag + os.urandom(8).hex())
        self.epoch = names[str(self.topology.root)]
        values: dict[str, Any] = {
            "epoch": self.epoch,
            "topology": self.topology,
            "rank": self.context.rank,
            "hidden_size": HIDDEN,
            "dtype": torch.float32,
            "max_tokens": MAX_TOKENS,
            "layers": LAYERS,
            "abort": self.context.abort,
            "step_s": 10.0,
        }
        return ConnectorSpec(**(values | changes))

    @contextlib.contextmanager
    def attention_link(self, spec: ConnectorSpec) -> Iterator[AttentionLink]:
        link = self.connector.open_attention(spec, self.context.exchange)
        yield link
        link.close("the scenario has ended")

    @contextlib.contextmanager
    def ffn_link(self, spec: ConnectorSpec) -> Iterator[FFNLink]:
        link = self.connector.open_ffn(spec, self.context.exchange)
        yield link
        link.close("the scenario has ended")

    def link(self, spec: ConnectorSpec) -> contextlib.AbstractContextManager[Any]:
        return self.attention_link(spec) if self.attention else self.ffn_link(spec)

    def step(self, number: int, *counts: int, rank: int | None = None, ids: bool = False) -> Step:
        leader = Rank(Role.ATTENTION, self.index if rank is None else rank)
        return Step(
            epoch=self.epoch,
            step=number,
            rank=str(leader),
            phase="eager",
            real=counts,
            padded=counts,
            ids=ids,
        )

    def play(self, spec: ConnectorSpec, steps: Sequence[Mapping[int, Sequence[int]]]) -> None:
        """Open, run ``steps`` (per step: counts per ubatch of each announcing Attention rank), compare, close."""
        with self.link(spec) as link:
            for number, counts in enumerate(steps):
                announced = {
                    Rank(Role.ATTENTION, rank): self.step(number, *per_ubatch, rank=rank, ids=spec.ids)
                    for rank, per_ubatch in counts.items()
                }
                if self.attention:
                    leader = Rank(Role.ATTENTION, self.index - self.index % spec.attention_tp)
                    link.begin(announced[leader])
                    for layer in spec.layers:
                        for ubatch in range(spec.num_ubatches):
                            hop(link, spec, announced[leader], Slot(layer, ubatch))
                else:
                    serve(link, announced)
            self.context.exchange("played", None)


def rows_for(spec: ConnectorSpec, step: Step, slot: Slot, rank: int) -> tuple[Tensor, Tensor | None]:
    """The rows that Attention rank ``rank`` sends: its number in column 0, and ids if they cross."""
    padded = step.padded[slot.ubatch] if slot.ubatch < len(step.padded) else 0
    seed = torch.Generator().manual_seed(step.step * 1000 + slot.layer * 10 + slot.ubatch)
    hidden = torch.randn(padded, spec.hidden_size, generator=seed).to(spec.dtype)
    hidden[:, 0] = rank - rank % spec.attention_tp
    ids = torch.randint(1000, (padded,), generator=seed, dtype=spec.ids_dtype) if spec.ids else None
    start, stop = split_rows(padded, spec.attention_tp)[rank % spec.attention_tp]
    return slice_rows(hidden, ids, start, stop, ids=spec.ids)


def compute(hidden: Tensor, token_ids: Tensor | None, layer: int) -> Tensor:
    """The "FFN" of the scenarios: element-wise, so that both roles get the same bits."""
    out = hidden * 2 + layer
    return out if token_ids is None else out + token_ids[:, None].to(out.dtype)


def hop(
    link: AttentionLink, spec: ConnectorSpec, step: Step, slot: Slot, *, view: bool | None = None
) -> None:
    """One round trip with a check of every bit. By default every other layer reads the reply in place."""
    hidden, ids = rows_for(spec, step, slot, spec.rank.index)
    link.send(slot, hidden, ids)
    expect_reply(link, spec, step, slot, view=slot.layer % 2 == 0 if view is None else view)


def expect_reply(
    link: AttentionLink, spec: ConnectorSpec, step: Step, slot: Slot, *, view: bool = False
) -> None:
    hidden, ids = rows_for(spec, step, slot, spec.rank.index)
    out = link.receive(slot, None if view else torch.full_like(hidden, float("nan")))
    expected = compute(hidden, ids, slot.layer)
    assert out.dtype is spec.dtype and torch.equal(out, expected), f"{slot}: {out} is not {expected}"


def serve(link: FFNLink, steps: Mapping[Rank, Step], *, pause_s: float = 0.0) -> None:
    """Compute one step, checking that each part holds the rows of its rank."""
    for work in link.works(steps):
        assert work.parts[0].start == 0 and work.parts[-1].stop == work.hidden.shape[0]
        for part in work.parts:
            marks = work.hidden[part.start : part.stop, 0]
            # A tensor-parallel group's rows carry the number of the rank that announced them.
            leader = max(rank.index for rank in steps if rank.index <= part.attention)
            assert torch.all(marks == leader), (part, leader, marks)
        time.sleep(pause_s)
        link.reply(work, compute(work.hidden, work.token_ids, work.slot.layer))


@contextlib.contextmanager
def raises(kind: type[AFDError], *words: str, within_s: float | None = None) -> Iterator[None]:
    """The block raises ``kind``, with a message that has all ``words``, before ``within_s`` seconds have passed."""
    started = time.monotonic()
    try:
        yield
    except kind as error:
        took = time.monotonic() - started
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"{missing} not in: {error}"
        assert within_s is None or took <= within_s, f"took {took:.2f} s: {error}"
        return
    raise AssertionError(f"no {kind.__name__}")


def all_layers(link: AttentionLink, spec: ConnectorSpec, step: Step, ubatch: int) -> None:
    for layer in spec.layers:
        hop(link, spec, step, Slot(layer, ubatch))


def in_threads(*bodies: Callable[[], None]) -> None:
    """Run bodies side by side; raises what the first of them raised."""
    errors: list[BaseException] = []

    def guarded(body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:  # noqa: BLE001 - raised in the calling thread
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def wait_for(condition: Callable[[], bool], what: str, limit_s: float = 5.0) -> None:
    """Return as soon as ``condition`` holds. Raises :class:`AssertionError` naming ``what`` after ``limit_s``."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, f"waited {limit_s:g} s for {what}"
        time.sleep(0.005)


Scenario = Callable[[Rig], None]
SCENARIOS: dict[str, tuple[Topology, Scenario]] = {}


def scenario(attention: int = 1, ffn: int = 1) -> Callable[[Scenario], Scenario]:
    def register(function: Scenario) -> Scenario:
        SCENARIOS[function.__name__] = (Topology(attention, ffn), function)
        return function

    return register
