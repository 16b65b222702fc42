# SPDX-License-Identifier: Apache-2.0
"""Do the NPUs work: each question is put by a child with a deadline, because a driver in trouble hangs its callers.

On the CPU platform all of these are skipped, and never ok.
"""

from __future__ import annotations

from afd.doctor import child, socs
from afd.doctor.check import GIB, Check, Finding, Group, Need, check, fail, judged, ok, skip
from afd.doctor.image import VLLM_ASCEND, rebuild
from afd.doctor.subject import Subject
from afd.number_list import parse

_PROGRAM = "afd.doctor.ascend"
_ONE_S, _TWO_S, _COMPILE_S = 120.0, 300.0, 300.0
# Less means that somebody else uses the card: an idle one has all but a few hundred MiB free.
_FREE_OK, _FREE_MIN = 0.9, 0.5
_LOOK = "look at `npu-smi info` on the host"
_NEEDS = (Need.NPU, Need.CHILD)


def _ask(subject: Subject, question: str, deadline_s: float) -> child.Outcome:
    return child.python(["-m", _PROGRAM, question], subject.env, deadline_s)


def _silent(outcome: child.Outcome) -> Finding:
    return fail(
        outcome.problem, f"{_LOOK}, see the checks of the host first, then restart the device or the driver"
    )


@check(
    "AFD-DEV-001",
    "npu",
    Group.DEVICE,
    about="the number of its SOC that the first card answers",
    expected="one of the SOC of this image",
    fix="take the image for this SOC",
    needs=_NEEDS,
    prevents=(f"{VLLM_ASCEND}#11160", f"{VLLM_ASCEND}#9799", f"{VLLM_ASCEND}#6206"),
    slow=True,
)
def npu(subject: Subject) -> Finding:
    outcome = _ask(subject, "soc", _ONE_S)
    if outcome.answer is None:
        return _silent(outcome)
    number = int(outcome.answer["number"])
    found, wanted = socs.of_number(number), socs.NUMBERS[subject.soc]
    expected = f"{wanted.start} to {wanted.stop - 1}"
    if found != subject.soc:
        other = f"make image SOC={found}" if found else rebuild(subject)
        return fail(
            f"SOC number {number}, which is {found or 'unknown'}", f"take the image for it: {other}", expected
        )
    return ok(f"SOC number {number}, {found}", expected)


@check(
    "AFD-DEV-002",
    "device-count",
    Group.DEVICE,
    about="how many devices a process sees",
    expected="as many as there are device nodes, or as ASCEND_RT_VISIBLE_DEVICES names",
    fix="see visible-devices and device-nodes",
    needs=_NEEDS,
    prevents=(f"{VLLM_ASCEND}#6063", "Project-HAMi/HAMi#1894"),
    slow=True,
)
def device_count(subject: Subject) -> Finding:
    try:
        chosen = parse(subject.env.get("ASCEND_RT_VISIBLE_DEVICES", ""))
    except ValueError as error:
        return fail(f"ASCEND_RT_VISIBLE_DEVICES: {error}", "see visible-devices")
    outcome = _ask(subject, "count", _ONE_S)
    if outcome.answer is None:
        return _silent(outcome)
    count = int(outcome.answer["count"])
    wanted = len(chosen or subject.cards())
    if count != wanted:
        return fail(
            f"{count} device(s)", "unset ASCEND_RT_VISIBLE_DEVICES, or see visible-devices", f"{wanted}"
        )
    return ok(f"{count} device(s)")


@check(
    "AFD-DEV-003",
    "device-memory",
    Group.DEVICE,
    about="free memory of every card",
    expected=f"{_FREE_OK:.0%} or more: a card belongs to one container",
    fix=f"{_LOOK}, and end what else uses the card",
    needs=_NEEDS,
    prevents=(f"{VLLM_ASCEND}#2698", f"{VLLM_ASCEND}#632"),
    slow=True,
)
def device_memory(subject: Subject) -> Finding:
    outcome = _ask(subject, "memory", _ONE_S)
    if outcome.answer is None:
        return _silent(outcome)
    cards = [(int(free), int(total)) for free, total in outcome.answer["memory"]]
    if not cards:
        return fail("no device", "see device-nodes")
    free, total = min(cards, key=lambda card: card[0] / card[1])
    told = f"{free / GIB:.1f} of {total / GIB:.1f} GiB free on card {cards.index((free, total))}"
    return judged(told, free / total, _FREE_OK, _FREE_MIN, "")


@check(
    "AFD-DEV-004",
    "one-card",
    Group.DEVICE,
    about="a sum on every card",
    expected="the right one",
    fix=f"{_LOOK}; restart the device or the driver",
    needs=_NEEDS,
    prevents=(f"{VLLM_ASCEND}#6063",),
    slow=True,
)
def one_card(subject: Subject) -> Finding:
    outcome = _ask(subject, "sum", _ONE_S)
    if outcome.answer is None:
        return _silent(outcome)
    sums = list(outcome.answer["sums"])
    wrong = [index for index, value in enumerate(sums) if value != outcome.answer["expected"]]
    if wrong or not sums:
        return fail(f"sums {sums}, wrong on card(s) {wrong}", "", str(outcome.answer["expected"]))
    return ok(f"right on {len(sums)} card(s)")


@check(
    "AFD-DEV-005",
    "two-cards",
    Group.DEVICE,
    about="an all-reduce over the first two cards by HCCL",
    expected="the right sum on both",
    fix="see hccn, ranktable, user and interfaces",
    needs=_NEEDS,
    prevents=(
        f"{VLLM_ASCEND}#9490",
        f"{VLLM_ASCEND}#7711",
        "vllm-project/recipes#907",
        "gpustack/runtime#25",
    ),
    slow=True,
)
def two_cards(subject: Subject) -> Finding:
    if len(subject.cards()) < 2:
        return skip("one card")
    outcome = _ask(subject, "all-reduce", _TWO_S)
    if outcome.answer is None:
        return _silent(outcome)
    if outcome.answer["sums"] != [outcome.answer["expected"]] * 2:
        return fail(f"sums {outcome.answer['sums']}", "", str(outcome.answer["expected"]))
    return ok("right on both")


@check(
    "AFD-DEV-006",
    "triton-kernel",
    Group.DEVICE,
    about="compiling and running a kernel of one line by Triton Ascend",
    expected="the right result: Triton Ascend and CANN fit together",
    fix="build the image again: Triton Ascend and CANN are pinned together",
    needs=_NEEDS,
    prevents=(f"{VLLM_ASCEND}#3219", f"{VLLM_ASCEND}#5750", f"{VLLM_ASCEND}#7421"),
    slow=True,
)
def triton_kernel(subject: Subject) -> Finding:
    outcome = _ask(subject, "triton", _COMPILE_S)
    if outcome.answer is None:
        return fail(outcome.problem, rebuild(subject))
    if not outcome.answer["right"]:
        return fail("a kernel that adds one gave something else", rebuild(subject))
    return ok("compiled, and right")


CHECKS: tuple[Check, ...] = (
    npu,
    device_count,
    device_memory,
    one_card,
    two_cards,
    triton_kernel,
)
