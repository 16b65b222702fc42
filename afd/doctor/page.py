# SPDX-License-Identifier: Apache-2.0
"""The page about the checks, docs/doctor.md, from the table of checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from afd.doctor.check import Check, Group, Need
from afd.doctor.table import CHECKS

_HEAD = """# Checks of `afd doctor`

`afd doctor` looks at a machine, a container or an image, and says for each check what it read, what it expected and
what to do. Nothing is started, and the command itself imports neither torch nor vLLM nor anything of CANN: what has to
load a library does that in a child with a deadline, because a driver in trouble hangs its callers.

```
afd doctor                              # everything that can be checked here
afd doctor --only device                # a group: offline, host or device
afd doctor --only AFD-HOST-004 --json   # one check, for programs
afd doctor --list                       # what there is
afd doctor --root DIR --env-file FILE --uid 1000
```

`--root` looks at the files below a directory instead, such as an image that is unpacked there; its environment is then
that of the file, and `--uid` says which user runs the roles. Nothing below that directory is run.

A check is `ok`, `warn`, `fail`, or `skip` with the reason why it says nothing here; on the CPU platform every check of
a device is a `skip`. A check that breaks has failed, with its error. Checks that load libraries take seconds: outside
an image they are done when `--only` names them.

| exit code | meaning |
| --- | --- |
| 0 | nothing failed; there may be warnings |
| 1 | nothing failed, but something warned, and `--strict` was given |
| 2 | a check failed |
| 64 | the command line is wrong |

With `--json` every check has `id`, `name`, `group`, `status`, `found`, `expected` and `remedy`. An id keeps its meaning
and is not given to another check. A requirement that an installed package does not meet fails the check `conflicts`,
unless `afd/images/conflicts.toml` names it with a reason.
"""
_GROUPS = {
    Group.OFFLINE: "These read files: an image in its build, a container, an environment.",
    Group.HOST: "These ask what the machine gives: nodes, driver, mounts, user, limits, ports.",
    Group.DEVICE: "These use NPUs, each by a small program in a child. They have not been run on a device yet.",
}
_WHERE = {
    Need.IMAGE: "images",
    Need.NPU: "NPUs",
    Need.CPU: "CPU",
    Need.RUNNING: "the running machine",
    Need.CHILD: "loads libraries",
}


def render(link: Callable[[str], str]) -> str:
    """The page; ``link`` makes a link of "owner/repo#number"."""
    parts = [_HEAD]
    for group, about in _GROUPS.items():
        parts.append(f"\n## {group.value.capitalize()}\n\n{about}\n\n")
        parts += _table([check for check in CHECKS if check.group is group], link)
    return "".join(parts)


def _table(checks: Iterable[Check], link: Callable[[str], str]) -> Iterable[str]:
    yield "| id | name | what is read | what is expected | the fix | only for | reported in public |\n"
    yield f"|{' --- |' * 7}\n"
    for check in checks:
        cells = (
            check.id,
            f"`{check.name}`",
            check.about,
            check.expected,
            check.fix,
            ", ".join(_WHERE[need] for need in check.needs),
            ", ".join(map(link, check.prevents)),
        )
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"
