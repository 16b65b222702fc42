# SPDX-License-Identifier: Apache-2.0
"""All checks, in the order of the report, and how some of them are chosen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from afd.config import nearest
from afd.doctor import (
    device,
    image,
    libraries,
    loading,
    machine,
    network,
    nodes,
    operators,
    packages,
    user,
    visible,
)
from afd.doctor.check import Check, Finding, Group
from afd.doctor.subject import Subject
from afd.errors import ConfigError

_MODULES = (image, packages, operators, libraries, loading, machine, user, nodes, visible, network, device)
CHECKS: tuple[Check, ...] = tuple(
    sorted(
        (check for module in _MODULES for check in module.CHECKS), key=lambda c: list(Group).index(c.group)
    )
)


@dataclass(frozen=True)
class Result:
    """A check, and what came of it."""

    check: Check
    finding: Finding


def chosen(words: Sequence[str]) -> tuple[Check, ...]:
    """The checks that ``words`` name, each an id, a name or a group; all of them for no words.

    Raises ConfigError for a word that is none of these.
    """
    if not words:
        return CHECKS
    wanted: set[str] = set()
    for word in words:
        found = {c.id for c in CHECKS if word.lower() in (c.id.lower(), c.name, c.group.value)}
        if not found:
            known = [name for c in CHECKS for name in (c.id, c.name)] + [group.value for group in Group]
            raise ConfigError(
                f"there is no check {word!r}{nearest(word, tuple(known))}; see: afd doctor --list"
            )
        wanted |= found
    return tuple(c for c in CHECKS if c.id in wanted)


def examine(subject: Subject, checks: Iterable[Check], *, slow: bool) -> Iterator[Result]:
    """Do ``checks``. Slow ones are done in an image, for an NPU, or when ``slow`` says so."""
    slow = slow or subject.manifest is not None or subject.soc != "cpu"
    for one in checks:
        yield Result(one, one.run(subject, slow=slow))
