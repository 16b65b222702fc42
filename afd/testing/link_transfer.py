# SPDX-License-Identifier: Apache-2.0
"""Scenarios of the conformance suite: what crosses, at what speed, and what is refused."""

from __future__ import annotations

import random
import time
from functools import partial

import torch

from afd.connectors.base import FFNLink, Slot
from afd.control.messages import Step
from afd.errors import MisuseError
from afd.testing.link_rig import (
    HIDDEN,
    LAYERS,
    MAX_TOKENS,
    Rig,
    all_layers,
    compute,
    expect_reply,
    hop,
    in_threads,
    raises,
    rows_for,
    scenario,
    serve,
)
from afd.topology import Rank, Role

# ---- what crosses -------------------------------------------------------------------------------------------


@scenario()
def any_number_of_rows_crosses_both_ways(rig: Rig) -> None:
    rig.play(rig.spec(), [{0: [rows]} for rows in (1, 3, 0, MAX_TOKENS, 7, MAX_TOKENS, 0, 0, 1)])


@scenario()
def every_dtype_crosses_bit_by_bit(rig: Rig) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        rig.play(rig.spec(dtype=dtype), [{0: [5]}, {0: [MAX_TOKENS]}])


@scenario()
def rows_that_are_not_contiguous_cross(rig: Rig) -> None:
    spec = rig.spec(layers=(2,))
    with rig.link(spec) as link:
        step = rig.step(0, 4, rank=0)
        if rig.attention:
            link.begin(step)
            wide = torch.randn(4, 2 * HIDDEN)
            link.send(Slot(2, 0), wide[:, ::2])
            assert torch.equal(link.receive(Slot(2, 0)), wide[:, ::2] * 2 + 2)
        else:
            for work in link.works({Rank(Role.ATTENTION, 0): step}):
                out = torch.empty(4, 2 * HIDDEN)[:, ::2]
                out.copy_(work.hidden * 2 + 2)
                link.reply(work, out)
        rig.context.exchange("compared", None)


@scenario()
def token_ids_cross_with_their_rows(rig: Rig) -> None:
    for dtype in (torch.int32, torch.int64):
        rig.play(rig.spec(ids=True, ids_dtype=dtype), [{0: [3]}, {0: [0]}, {0: [MAX_TOKENS]}])


@scenario()
def ids_mode_has_no_way_around_it(rig: Rig) -> None:
    spec = rig.spec(ids=True, layers=(0,))
    with rig.link(spec) as link:
        step = rig.step(0, 4, rank=0, ids=True)
        if rig.attention:
            with raises(MisuseError, "ids"):
                link.begin(rig.step(0, 4, rank=0, ids=False))
            link.begin(step)
            hidden, ids = rows_for(spec, step, Slot(0, 0), 0)
            assert ids is not None
            with raises(MisuseError, "without token ids"):
                link.send(Slot(0, 0), hidden)
            with raises(MisuseError, "token ids of shape"):
                link.send(Slot(0, 0), hidden, ids[:3])
            with raises(MisuseError, "int32", "int64"):
                link.send(Slot(0, 0), hidden, ids.long())
            hop(link, spec, step, Slot(0, 0))
        else:
            serve(link, {Rank(Role.ATTENTION, 0): step})
        rig.context.exchange("compared", None)


@scenario()
def both_ubatches_are_in_flight_at_once(rig: Rig) -> None:
    spec = rig.spec(num_ubatches=2)
    steps = [(5, 9), (4, 0), (0, 6), (7,), (0, 0), (MAX_TOKENS, MAX_TOKENS)]
    with rig.link(spec) as link:
        for number, counts in enumerate(steps):
            step = rig.step(number, *counts, rank=0)
            if not rig.attention:
                serve(link, {Rank(Role.ATTENTION, 0): step})
                continue
            link.begin(step)
            for layer in LAYERS:
                for ubatch in (0, 1):
                    link.send(Slot(layer, ubatch), *rows_for(spec, step, Slot(layer, ubatch), 0))
                for ubatch in (0, 1):
                    expect_reply(link, spec, step, Slot(layer, ubatch), view=ubatch == 0)
        rig.context.exchange("compared", None)


@scenario()
def each_ubatch_may_have_its_own_thread(rig: Rig) -> None:
    spec = rig.spec(num_ubatches=2)
    with rig.link(spec) as link:
        for number in range(20):
            step = rig.step(number, 5 + number % 3, 8 - number % 5, rank=0)
            if not rig.attention:
                serve(link, {Rank(Role.ATTENTION, 0): step})
                continue
            link.begin(step)
            in_threads(partial(all_layers, link, spec, step, 0), partial(all_layers, link, spec, step, 1))
        rig.context.exchange("compared", None)


@scenario(attention=2)
def an_ffn_rank_serves_its_ranks_in_rank_order(rig: Rig) -> None:
    counts = [(3, 5), (0, 4), (2, 0), (0, 0), (MAX_TOKENS, 1), (MAX_TOKENS, MAX_TOKENS)]
    for ids in (False, True):
        rig.play(rig.spec(ids=ids), [{0: [first], 1: [second]} for first, second in counts])


@scenario(attention=2)
def ranks_may_differ_in_ubatches(rig: Rig) -> None:
    steps = [{0: [3, 2], 1: [5]}, {0: [0], 1: [4, 4]}, {0: [0, 0], 1: [1]}, {0: [6, 1], 1: [0, 7]}]
    rig.play(rig.spec(num_ubatches=2), steps)


@scenario(attention=4, ffn=2)
def each_ffn_rank_gets_the_rows_of_its_own_ranks(rig: Rig) -> None:
    steps = [{0: [3], 1: [1], 2: [0], 3: [9]}, {0: [0], 1: [0], 2: [2], 3: [2]}]
    rig.play(rig.spec(), steps)


@scenario(attention=2)
def a_tensor_parallel_group_sends_each_row_once(rig: Rig) -> None:
    rig.play(rig.spec(attention_tp=2), [{0: [7]}, {0: [1]}, {0: [0]}, {0: [2 * MAX_TOKENS]}])


@scenario()
def random_steps_keep_their_order(rig: Rig) -> None:
    dice = random.Random(7)
    steps = [
        {0: [dice.choice((0, 1, 2, 17, MAX_TOKENS)) for _ in range(dice.choice((1, 2)))]} for _ in range(60)
    ]
    rig.play(rig.spec(num_ubatches=2), steps)


# ---- speed differs ------------------------------------------------------------------------------------------


@scenario()
def a_fast_sender_waits_and_overwrites_nothing(rig: Rig) -> None:
    spec = rig.spec(layers=(0, 1, 2, 3))
    step = rig.step(0, 6, rank=0)
    with rig.link(spec) as link:
        if rig.attention:
            link.begin(step)
            started = time.monotonic()
            for layer in spec.layers:
                link.send(Slot(layer, 0), *rows_for(spec, step, Slot(layer, 0), 0))
            assert time.monotonic() - started > 0.2, (
                "the sender did not wait for a reader that has not started"
            )
            time.sleep(0.3)  # now the FFN rank is the fast one: its replies find no room
            for layer in spec.layers:
                expect_reply(link, spec, step, Slot(layer, 0), view=layer % 2 == 0)
        else:
            time.sleep(0.3)
            started = time.monotonic()
            serve(link, {Rank(Role.ATTENTION, 0): step})
            assert time.monotonic() - started > 0.2, "replies did not wait for a reader that has not started"
        rig.context.exchange("compared", None)


@scenario()
def a_slow_peer_is_not_a_lost_one(rig: Rig) -> None:
    spec = rig.spec(step_s=0.5, layers=(0, 1, 2, 3))
    step = rig.step(0, 6, rank=0)
    with rig.link(spec) as link:
        if rig.attention:
            link.begin(step)
            all_layers(link, spec, step, 0)  # 4 x 0.15 s: longer than step_s in all, shorter for each wait
        else:
            serve(link, {Rank(Role.ATTENTION, 0): step}, pause_s=0.15)
        rig.context.exchange("compared", None)


# ---- misuse: refused before anything crosses, and the link still works ---------------------------------------


@scenario()
def wrong_arguments_are_refused_before_anything_crosses(rig: Rig) -> None:
    spec = rig.spec()
    step = rig.step(3, 4, rank=0)
    with rig.link(spec) as link:
        if rig.attention:
            slot = Slot(0, 0)
            with raises(MisuseError, "begin"):
                link.send(slot, torch.zeros(4, HIDDEN))
            with raises(MisuseError, str(MAX_TOKENS + 1), str(MAX_TOKENS)):
                link.begin(rig.step(3, MAX_TOKENS + 1))
            with raises(MisuseError, "epoch"):
                link.begin(Step(epoch="x", step=3, rank="A0", phase="eager", real=(4,), padded=(4,)))
            with raises(MisuseError, "2 ubatches"):
                link.begin(rig.step(3, 1, 1))
            link.begin(step)
            for wrong in (
                torch.zeros(MAX_TOKENS + 1, HIDDEN),
                torch.zeros(5, HIDDEN),
                torch.zeros(4, HIDDEN + 1),
                torch.zeros(4, HIDDEN, dtype=torch.float16),
            ):
                with raises(MisuseError, "(4, 48) torch.float32"):
                    link.send(slot, wrong)
            with raises(MisuseError, "with token ids"):
                link.send(slot, torch.zeros(4, HIDDEN), torch.zeros(4, dtype=torch.int32))
            with raises(MisuseError, "layer 3"):
                link.send(Slot(3, 0), torch.zeros(4, HIDDEN))
            with raises(MisuseError, "ubatch 1"):
                link.send(Slot(0, 1), torch.zeros(4, HIDDEN))
            with raises(MisuseError, "layer 0"):
                link.receive(slot)
            link.send(slot, *rows_for(spec, step, slot, 0))
            with raises(MisuseError, "begins before"):
                link.begin(step)
            with raises(MisuseError, "contiguous"):
                link.receive(slot, torch.zeros(HIDDEN, 4).T)
            expect_reply(link, spec, step, slot)
            for layer in LAYERS[1:]:
                hop(link, spec, step, Slot(layer, 0))
        else:
            _serve_with_mistakes(link, rig, step)
        rig.context.exchange("compared", None)


def _serve_with_mistakes(link: FFNLink, rig: Rig, step: Step) -> None:
    rank = Rank(Role.ATTENTION, 0)
    with raises(MisuseError, "A0"):
        link.works({Rank(Role.ATTENTION, 1): step})
    with raises(MisuseError, "epoch"):
        link.works({rank: Step(epoch="x", step=3, rank="A0", phase="eager", real=(4,), padded=(4,))})
    works = link.works({rank: step})
    work = next(works)
    with raises(MisuseError, "(4, 48)"):
        link.reply(work, torch.zeros(3, HIDDEN))
    with raises(MisuseError, "not replied"):
        link.works({rank: step})
    link.reply(work, compute(work.hidden, None, work.slot.layer))
    with raises(MisuseError, "does not wait"):
        link.reply(work, torch.zeros(4, HIDDEN))
    for work in works:
        link.reply(work, compute(work.hidden, None, work.slot.layer))


@scenario()
def a_payload_that_is_not_the_next_one_is_named(rig: Rig) -> None:
    for sent, awaited, words in (
        ((3, 4), (4, 4), ("step 4 expected, 3 found", "A0")),
        ((3, 4), (3, 5), ("rows 5 expected, 4 found", "A0")),
    ):
        spec = rig.spec()
        with rig.link(spec) as link:
            if rig.attention:
                link.begin(rig.step(*sent))
                link.send(Slot(0, 0), torch.zeros(sent[1], HIDDEN))
            else:
                with raises(MisuseError, *words):
                    next(link.works({Rank(Role.ATTENTION, 0): rig.step(*awaited, rank=0)}))
            rig.context.exchange("compared", None)
    spec = rig.spec(layers=LAYERS if rig.attention else LAYERS[::-1])
    with rig.link(spec) as link:
        if rig.attention:
            link.begin(rig.step(1, 4))
            link.send(Slot(0, 0), torch.zeros(4, HIDDEN))
        else:
            with raises(MisuseError, "layer 4 expected, 0 found"):
                next(link.works({Rank(Role.ATTENTION, 0): rig.step(1, 4, rank=0)}))
        rig.context.exchange("compared", None)
