# SPDX-License-Identifier: Apache-2.0
"""What a check is: a stable number, a name, what it expects, how to put it right, and a function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum

from afd.doctor.subject import Subject

OK, WARN, FAIL, SKIP = "ok", "warn", "fail", "skip"
GIB, MIB = 1 << 30, 1 << 20


class Group(Enum):
    """What a check needs to be done at all."""

    OFFLINE = "offline"
    HOST = "host"
    DEVICE = "device"


@dataclass(frozen=True)
class Finding:
    """The outcome of one check.

    ``found`` is what was read; ``remedy`` what to do, unless the status is ok or skip; ``expected`` replaces the
    general sentence of the check where this subject asks for something more precise.
    """

    status: str
    found: str
    remedy: str = ""
    expected: str = ""


def ok(found: str, expected: str = "") -> Finding:
    return Finding(OK, found, expected=expected)


def warn(found: str, remedy: str, expected: str = "") -> Finding:
    return Finding(WARN, found, remedy, expected)


def fail(found: str, remedy: str, expected: str = "") -> Finding:
    return Finding(FAIL, found, remedy, expected)


def skip(why: str) -> Finding:
    return Finding(SKIP, why)


def judged(found: str, value: float, good: float, least: float, remedy: str) -> Finding:
    """ok from ``good`` on, fail below ``least``, warn in between."""
    status = OK if value >= good else FAIL if value < least else WARN
    return Finding(status, found, "" if status == OK else remedy)


class Need(Enum):
    """Without which a check says nothing about this subject, and is skipped."""

    IMAGE = "only in an image of AFD"
    NPU = "only with an NPU"
    CPU = "only on the CPU platform"
    RUNNING = "only of the running machine"
    CHILD = "starts a child that loads libraries"


def missing(need: Need, subject: Subject) -> str:
    """Why ``subject`` does not have ``need``; "" when it has."""
    if need is Need.IMAGE:
        return "" if subject.manifest else f"not in an image of AFD ({subject.no_manifest})"
    if need is Need.NPU:
        return "" if subject.soc != "cpu" else "not on the CPU platform"
    if need is Need.CPU:
        return "" if subject.soc == "cpu" else f"not on {subject.soc}"
    if need is Need.RUNNING:
        return "" if subject.running else f"about a running machine, and {subject.root} is not one"
    return "" if subject.loads else f"nothing below {subject.root} is loaded"


@dataclass(frozen=True)
class Check:
    """One check. ``id`` never changes its meaning and is not used again; ``name`` is what people say.

    ``about`` is what is read, ``expected`` and ``fix`` are for the documentation and where the finding has nothing more
    precise. ``prevents`` are public reports ("owner/repo#number") of what happens without it. A ``slow`` check loads
    libraries for seconds: it is done in an image and when it is asked for by ``--only``.
    """

    id: str
    name: str
    group: Group
    about: str
    expected: str
    fix: str
    function: Callable[[Subject], Finding] = field(repr=False)
    needs: tuple[Need, ...] = ()
    prevents: tuple[str, ...] = ()
    slow: bool = False

    def run(self, subject: Subject, *, slow: bool = True) -> Finding:
        """Do it, a slow one if that is wanted. Never raises: a check that breaks has failed, and says why."""
        try:
            for need in self.needs:
                if why := missing(need, subject):
                    return skip(why)
            if self.slow and not slow:
                return skip("it takes seconds; --only with its id does it")
            found = self.function(subject)
            if found.status not in (OK, WARN, FAIL, SKIP):
                raise TypeError(f"the status {found.status!r} is none")
        except PermissionError as error:
            path = error.filename or "it"
            remedy = f"let {subject.user} read {path}, or do this as a user who may"
            found = fail(f"what it reads is closed to {subject.user}: {error}", remedy)
        except Exception as error:  # noqa: BLE001 (what stops a check is a result of it: never silent, never ok)
            why = f"the check itself broke: {type(error).__name__}: {error}"
            found = fail(why, f"do by hand what it checks ({self.about}), and report this as a bug of AFD")
        if found.status in (WARN, FAIL) and not found.remedy:
            found = replace(found, remedy=self.fix)
        return found if found.expected or found.status == SKIP else replace(found, expected=self.expected)


def check(
    identity: str,
    name: str,
    group: Group,
    *,
    about: str,
    expected: str,
    fix: str,
    needs: tuple[Need, ...] = (),
    prevents: tuple[str, ...] = (),
    slow: bool = False,
) -> Callable[[Callable[[Subject], Finding]], Check]:
    """Decorator that makes a check of a function."""

    def decorate(function: Callable[[Subject], Finding]) -> Check:
        return Check(identity, name, group, about, expected, fix, function, needs, prevents, slow)

    return decorate
