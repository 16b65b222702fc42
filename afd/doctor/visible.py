# SPDX-License-Identifier: Apache-2.0
"""Which devices the roles would see: the variables of two layers that are easily taken for each other, and how the
devices are dealt out to the roles of one container.
"""

from __future__ import annotations

import os
import re

from afd.doctor.check import Check, Finding, Group, Need, check, fail, ok, warn
from afd.doctor.image import VLLM_ASCEND
from afd.doctor.subject import Subject
from afd.number_list import parse, spell

_HOST, _CONTAINER = "ASCEND_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"
_RUNTIME = "ASCEND_DOCKER_RUNTIME"
_ATTENTION, _FFN = "AFD_ATTENTION_DEVICES", "AFD_FFN_DEVICES"


@check(
    "AFD-HOST-021",
    "visible-devices",
    Group.HOST,
    about=f"{_HOST} (numbers of the host, read by the container runtime), {_CONTAINER} (numbers inside the container, "
    "from 0, read by the process), and the cards that are here",
    expected=f"{_CONTAINER} not set, or numbers of cards that are here; as many cards as {_HOST} names",
    fix=f"unset {_CONTAINER}, or count from 0",
    needs=(Need.NPU,),
    prevents=(
        f"{VLLM_ASCEND}#6063",
        f"{VLLM_ASCEND}#6942",
        "Project-HAMi/HAMi#1894",
        "Project-HAMi/HAMi#2238",
    ),
)
def visible_devices(subject: Subject) -> Finding:
    count = len(subject.cards())
    host, inside = subject.env.get(_HOST), subject.env.get(_CONTAINER)
    told = f"{count} card(s), {_HOST} {host or 'not set'}, {_CONTAINER} {inside or 'not set'}"
    every = spell(list(range(count)))
    if host and host not in ("void", "all") and re.fullmatch(r"[\d,\s-]+", host):
        try:
            asked = len(parse(host))
        except ValueError as error:
            return fail(
                f"{_HOST}: {error}", f"write numbers and ranges, such as docker run --env {_HOST}={every}"
            )
        if asked != count:
            why = "the container runtime gave others than were asked for"
            if not subject.env.get(_RUNTIME):
                return fail(
                    f"{told}: nothing in this container reads {_HOST}, which is for the Ascend Docker Runtime",
                    f"start with docker run --runtime=ascend, or unset {_HOST}",
                )
            return fail(f"{told}: {why}", f"use: docker run --runtime=ascend --env {_HOST}={every}")
    if not inside:
        return ok(told)
    try:
        chosen = parse(inside)
    except ValueError as error:
        return fail(f"{_CONTAINER}: {error}", f"use: docker run --env {_CONTAINER}={every}")
    beyond = [number for number in chosen if number >= count]
    if beyond:
        mixed = f"; it has the numbers of {_HOST}, which count on the host" if inside == host else ""
        remedy = f"unset it (unset {_CONTAINER}), or count from 0"
        return fail(f"{told}: there is no {spell(beyond)} in this container{mixed}", remedy)
    if subject.soc == "a5" and subject.env.get(_RUNTIME) and len(chosen) < count:
        return warn(f"{told}: on A5 the runtime has chosen already", f"unset {_CONTAINER}")
    return ok(told)


@check(
    "AFD-HOST-022",
    "role-devices",
    Group.HOST,
    about=f"{_ATTENTION} and {_FFN}, which deal out the devices (on CPU: cores) of one container",
    expected="neither, or both without a number in common, and only numbers that are here",
    fix="give each role its own numbers",
    prevents=(f"{VLLM_ASCEND}#6063", f"{VLLM_ASCEND}#6942"),
)
def role_devices(subject: Subject) -> Finding:
    given = {name: subject.env.get(name, "") for name in (_ATTENTION, _FFN)}
    if not any(given.values()):
        return ok("neither is set")
    source, text = _source(subject)
    try:
        there = parse(text)
    except ValueError as error:
        repair = "write numbers and ranges such as 0-3,8 into it"
        return fail(f"{source}: {error}", f"{repair}, or: unset {source}" if source == _CONTAINER else repair)
    half = max(1, len(there) // 2)
    remedy = f"use: docker run --env {_ATTENTION}={spell(there[:half])} --env {_FFN}={spell(there[half:])}"
    if len(there) < 2:
        remedy = f"give the container two devices, or unset both: unset {_ATTENTION}; unset {_FFN}"
    chosen: dict[str, tuple[int, ...]] = {}
    for name, text in given.items():
        try:
            chosen[name] = parse(text)
        except ValueError as error:
            return fail(f"{name}: {error}", remedy)
    both = sorted(set(chosen[_ATTENTION]) & set(chosen[_FFN]))
    told = ", ".join(f"{name}={text}" for name, text in given.items())
    if both:
        return fail(f"{told}: {spell(both)} belong to both roles", remedy)
    absent = sorted({number for values in chosen.values() for number in values} - set(there))
    if absent:
        return fail(f"{told}: there is no {spell(absent)}, only {spell(there) or 'none'}", remedy)
    for name, values in chosen.items():
        if not values:
            return warn(
                f"{name} is not set, and the other one is; that is for a container with one role", remedy
            )
    return ok(told)


def _source(subject: Subject) -> tuple[str, str]:
    """The numbers that can be dealt out (devices inside the container, on CPU cores) as a list, and who says so."""
    if subject.soc != "cpu":
        visible = subject.env.get(_CONTAINER, "")
        return (_CONTAINER, visible) if visible.strip() else ("/dev", spell(range(len(subject.cards()))))
    if not subject.running:
        for name in ("/sys/fs/cgroup/cpuset.cpus.effective", "/sys/devices/system/cpu/online"):
            if text := (subject.text(name) or "").strip():
                return name, text
    return "the affinity of this process", spell(sorted(os.sched_getaffinity(0)))


CHECKS: tuple[Check, ...] = (visible_devices, role_devices)
