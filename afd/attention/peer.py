# SPDX-License-Identifier: Apache-2.0
"""An Attention rank's connection to FFN: the step channel, the link, and what is counted on the way."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from vllm.config import VllmConfig
from vllm.distributed import get_tensor_model_parallel_rank, tensor_model_parallel_all_gather

from afd.connectors.base import AttentionLink
from afd.connectors.slicing import split_rows
from afd.connectors.step_counters import StepCounters
from afd.control.messages import Phase, Step
from afd.control.reporter import Reporter
from afd.control.session import RankSession
from afd.control.step_sender import StepSender
from afd.errors import AFDError
from afd.models.crossing import Crossing, agree, tp_rank
from afd.models.resolved import Resolved
from afd.models.row_group import RowGroup
from afd.topology import Rank, Role, attention_rank


def attention_rank_of(vllm_config: VllmConfig, rank: int) -> Rank:
    """The AFD rank of vLLM's ``rank`` inside one engine. Pipelines are not supported, so that is its TP rank."""
    parallel = vllm_config.parallel_config
    return Rank(
        Role.ATTENTION, attention_rank(parallel.data_parallel_rank, rank, parallel.tensor_parallel_size)
    )


def report_failure(rank: Rank, error: Exception) -> None:
    """Tell the agent why ``rank`` ends before it has joined its group."""
    try:
        session = RankSession.attach(rank=rank)
        session.fail(error)
        session.close("it failed")
    except AFDError:
        return  # the agent has a cause already, or is gone


class Peer:
    """FFN, as one Attention rank sees it. Used by the model thread only.

    The ranks of a tensor-parallel group run every forward together. The first of them, the group's leader, announces
    it; each counts and sends its own range of the rows.
    """

    def __init__(self, crossing: Crossing, sender: StepSender | None, link: AttentionLink) -> None:
        """``sender`` is None on a rank that is not its group's leader."""
        self._crossing = crossing
        self._sender = sender
        self.link = link
        self.ids = crossing.spec.ids
        self._tp, self._tp_rank = crossing.spec.attention_tp, tp_rank(crossing.spec)
        self._leader = str(Rank(Role.ATTENTION, crossing.rank.index - self._tp_rank))
        self._step = 0
        self._counters = StepCounters(Role.FFN)
        self._counters.follow(lambda: link.counters)
        self._reporter = Reporter(crossing.session, self._counters.snapshot)

    @classmethod
    def connect(cls, vllm_config: VllmConfig, layers: tuple[int, ...], resolved: Resolved) -> Peer:
        """Join the group with a built model whose ``layers`` have their FFN elsewhere; blocks until FFN is there.

        Raises MismatchError, PeerAbsentError or PeerLostError as the control plane tells.
        """
        rank = attention_rank_of(vllm_config, get_tensor_model_parallel_rank())
        session = RankSession.attach(rank=rank)
        try:
            crossing = agree(vllm_config, session, rank, layers, resolved)
            published = crossing.exchange("steps", "")
            addresses = {Rank.parse(name): address for name, address in published.items() if address}
            sender = None if tp_rank(crossing.spec) else cls.open_sender(crossing, addresses)
            link = cls.open_link(crossing)
        except BaseException as error:
            session.fail(error)
            raise
        session.report({}, state="ready-to-warm")
        return cls(crossing, sender, link)

    @classmethod
    def open_sender(cls, crossing: Crossing, addresses: Mapping[Rank, str]) -> StepSender:
        """A step channel to the FFN ranks at ``addresses``."""
        timeouts, session = crossing.config.timeouts, crossing.session
        sender = StepSender(
            crossing.rank,
            session.epoch,
            abort=session.abort,
            step_s=timeouts.step_s,
            token=crossing.config.token(),
        )
        sender.connect(addresses, timeouts.load_s)
        return sender

    @classmethod
    def open_link(cls, crossing: Crossing) -> AttentionLink:
        """This rank's end of the link; returns when every rank of both roles has opened its own."""
        return crossing.connector.open_attention(crossing.spec, crossing.exchange)

    def row_group(self) -> RowGroup | None:
        """This rank's tensor-parallel group; None when it has no other rank."""
        if self._tp == 1:
            return None
        return RowGroup(self._tp, self._tp_rank, partial(tensor_model_parallel_all_gather, dim=0))

    @contextmanager
    def step(self, phase: Phase, real: int, padded: int) -> Iterator[None]:
        """Announce the forward inside the block to every FFN rank: ``padded`` rows, of which ``real`` are tokens.

        What the forward raises becomes the cause of the end of the epoch, before vLLM starts to tear itself down.
        """
        started = time.perf_counter()
        self._step += 1
        step = Step(
            epoch=self._crossing.spec.epoch,
            step=self._step,
            rank=self._leader,
            phase=phase,
            real=(real,),
            padded=(padded,),
            ids=self.ids,
        )
        try:
            if self._sender is not None:
                self._sender.send(step)
            self.link.begin(step)
            yield
        except BaseException as error:
            self.blame(error)
            raise
        start, stop = split_rows(padded, self._tp)[self._tp_rank]
        own = min(max(real - start, 0), stop - start)
        self._counters.add(phase, own, stop - start, time.perf_counter() - started, self.link.counters)

    def blame(self, error: BaseException) -> None:
        """End the epoch with ``error`` as its cause. Raises the cause that everybody is told when ``error`` is ours:
        what this rank saw is often only an effect of it."""
        cause = self._crossing.session.fail(error)
        if isinstance(error, AFDError):
            raise cause.error() from error

    def close(self, reason: str) -> None:
        """Leave the group on purpose. Twice is fine."""
        if self._sender is not None:
            self._sender.close(reason)
        self.link.close(reason)
        self._reporter.close()
        self._crossing.session.close(reason)
