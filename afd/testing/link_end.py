# SPDX-License-Identifier: Apache-2.0
"""Scenarios of the conformance suite: links that are closed, reopened or lose their peer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from afd.connectors.base import AttentionLink, ConnectorSpec, FFNLink, Slot
from afd.control.abort import Abort, Cause
from afd.control.messages import Step
from afd.errors import ClosedError, PeerLostError
from afd.testing.link_rig import (
    HIDDEN,
    Rig,
    all_layers,
    hop,
    in_threads,
    raises,
    rows_for,
    scenario,
    serve,
)
from afd.topology import Rank, Role


@scenario()
def a_closed_link_says_so_and_closes_twice(rig: Rig) -> None:
    spec = rig.spec()
    step = rig.step(0, 2, rank=0)
    with rig.link(spec) as link:
        if rig.attention:
            link.begin(step)
            all_layers(link, spec, step, 0)
        else:
            serve(link, {Rank(Role.ATTENTION, 0): step})
        rig.context.exchange("played", None)
        assert not link.closed
        link.close("enough")
        link.close("again")
        assert link.closed
        if rig.attention:
            with raises(ClosedError, "enough"):
                link.begin(step)
            with raises(ClosedError, "enough"):
                link.send(Slot(0, 0), torch.zeros(2, HIDDEN))
            with raises(ClosedError, "enough"):
                link.receive(Slot(0, 0))
        else:
            with raises(ClosedError, "enough"):
                link.works({Rank(Role.ATTENTION, 0): step})


@scenario()
def a_link_can_be_reopened_in_a_new_epoch(rig: Rig) -> None:
    for _ in range(3):
        rig.play(rig.spec(), [{0: [4]}])


@scenario()
def closing_wakes_what_waits_on_both_sides(rig: Rig) -> None:
    spec = rig.spec()
    step = rig.step(0, 2, rank=0)
    with rig.link(spec) as link:
        if rig.attention:
            link.begin(step)
            link.send(Slot(0, 0), torch.zeros(2, HIDDEN))
            threading.Timer(0.2, link.close, ("changed my mind",)).start()
            with raises(ClosedError, "F0", "layer 0", within_s=1.0):
                link.receive(Slot(0, 0))
            rig.context.exchange("closed", None)
        else:
            works = link.works({Rank(Role.ATTENTION, 0): step})
            first = next(works)
            rig.context.exchange("closed", None)
            link.reply(first, first.hidden)
            with raises(PeerLostError, "A0 closed its end", "layer 1", within_s=2.0):
                next(works)
        rig.context.exchange("compared", None)


def _lost(rig: Rig, lost: str, survivor: Callable[[Any, ConnectorSpec, Step], None], told: bool) -> None:
    """Rank ``lost`` is killed while the other runs ``survivor``, which must raise in time and name the rank.

    When nobody is told it is stopped instead: a kill would close its connections.
    """
    spec = rig.spec(step_s=10.0 if told else 0.3)
    step = rig.step(8, 3, rank=0)
    with rig.link(spec) as link:
        if str(rig.context.rank) == lost:
            rig.context.exchange("ready", None)
            rig.context.sleep_for_ever()
        rig.context.exchange("ready", None)
        if told:
            rig.context.lose(lost, told=True, after_s=0.2)
            with raises(PeerLostError, lost, "was killed"):
                survivor(link, spec, step)
            late = time.monotonic() - rig.context.told_at
            assert late < 0.5, f"woke up {late:.2f} s after the abort"
        else:
            rig.context.lose(lost, told=False, after_s=0.0, stopped=True)
            with raises(
                PeerLostError, lost, "no progress for 0.3 s", "step 8", "ubatch 0", "layer", within_s=3.0
            ):
                survivor(link, spec, step)


def _receive_for_ever(link: AttentionLink, spec: ConnectorSpec, step: Step) -> None:
    link.begin(step)
    hop(link, spec, step, Slot(0, 0))


def _send_for_ever(link: AttentionLink, spec: ConnectorSpec, step: Step) -> None:
    link.begin(step)
    while True:
        link.send(Slot(0, 0), *rows_for(spec, step, Slot(0, 0), 0))


def _serve_for_ever(link: FFNLink, spec: ConnectorSpec, step: Step) -> None:
    serve(link, {Rank(Role.ATTENTION, 0): step})


@scenario()
def a_lost_ffn_rank_fails_what_receives_from_it(rig: Rig) -> None:
    _lost(rig, "F0", _receive_for_ever, told=True)


@scenario()
def a_lost_ffn_rank_fails_what_sends_to_it(rig: Rig) -> None:
    _lost(rig, "F0", _send_for_ever, told=True)


@scenario()
def a_lost_attention_rank_fails_what_receives_from_it(rig: Rig) -> None:
    _lost(rig, "A0", _serve_for_ever, told=True)


@scenario()
def an_idle_link_fails_at_its_next_use(rig: Rig) -> None:
    spec = rig.spec()
    step = rig.step(8, 3, rank=0)
    with rig.link(spec) as link:
        if not rig.attention:
            rig.context.exchange("ready", None)
            rig.context.sleep_for_ever()
        rig.context.exchange("ready", None)
        link.begin(step)
        woken = threading.Event()  # set after the link was woken, which subscribed before
        rig.context.abort.subscribe(woken.set)
        rig.context.lose("F0", told=True, after_s=0.0)
        assert woken.wait(5.0), "no word of the loss in 5 s"
        with raises(PeerLostError, "F0", within_s=0.2):
            link.send(Slot(0, 0), *rows_for(spec, step, Slot(0, 0), 0))
        with raises(PeerLostError, "F0", within_s=0.2):
            link.begin(step)


@scenario()
def silence_without_word_ends_at_the_deadline_when_receiving(rig: Rig) -> None:
    _lost(rig, "F0", _receive_for_ever, told=False)


@scenario()
def silence_without_word_ends_at_the_deadline_when_sending(rig: Rig) -> None:
    _lost(rig, "F0", _send_for_ever, told=False)


@scenario()
def silence_without_word_ends_at_the_deadline_when_serving(rig: Rig) -> None:
    _lost(rig, "A0", _serve_for_ever, told=False)


@scenario()
def an_abort_wakes_every_thread_at_once_and_a_new_epoch_works(rig: Rig) -> None:
    spec = rig.spec(num_ubatches=2)
    step = rig.step(0, 2, 2, rank=0)
    with rig.link(spec) as link:
        if rig.attention:
            link.begin(step)
            for ubatch in (0, 1):
                link.send(Slot(0, ubatch), torch.zeros(2, HIDDEN))
            cause = Cause("PeerLostError", "was told to end", rank="F0")
            threading.Timer(0.2, spec.abort.trigger, (cause,)).start()

            def wait_for_reply(ubatch: int) -> None:
                with raises(PeerLostError, "was told to end", within_s=0.6):
                    link.receive(Slot(0, ubatch))

            in_threads(partial(wait_for_reply, 0), partial(wait_for_reply, 1))
        rig.context.exchange("woken", None)
    rig.context.abort = Abort()
    rig.play(rig.spec(), [{0: [4]}])
