# SPDX-License-Identifier: Apache-2.0
"""``docs/faults.md``: which experiments there are, what came out of them, and which are impossible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.chaos import cells
from tests.chaos.cells import LAYOUTS, ON_LOSS, Cell, Fault, Phase, Target
from tests.chaos.expected import KILL_S, SILENCE_S, STEP_BOUND_S, STEP_S
from tests.chaos.experiment import ATTEMPTS
from tests.chaos.results import Result

HEAD = f"""# Faults

What a group of real processes makes of faults on purpose, done by `make chaos` (`python -m tests.chaos --help`). Every
experiment uses `afd serve` with real vLLM: it brings the group into a phase, does the deed at one target, first proves
that it took effect, and looks what becomes of the group. It has *passed* when

- every agent that is left names one cause, the right one, within a bound (below). When the two agents lose each other
  (a cut network, a closed connection between agents), none can tell the other: there are two causes then, Attention
  names FFN's agent (`F0: …`) and FFN names Attention's (`A0: …`);
- each role ends with the exit code that the [architecture](architecture.md) promises, or stays, with `on_loss=rejoin`;
- where *goes on* is said, nobody needed what was broken: every answer is right, no cause is named, no role ends, and a
  group that was draining ends in both roles with 0;
- every client gets an error, or an answer that is native vLLM's;
- no process, thread, socket, directory or file in `/dev/shm` is left;
- the next request, after the new start or in the new epoch, gets native tokens.

Bounds, from the fault to the cause in the log: {KILL_S:g} s for a process that was killed or a connection that was
closed; {SILENCE_S:.1f} s for silence, which is a cut network or a stopped agent (three heartbeats are 2 s);
{STEP_BOUND_S:g} s for any other stopped process, with `step_s` at {STEP_S:g} s.

A deed that came too late for its phase is done again, in {ATTEMPTS} attempts at most; the table of every result says
how many it took, and why. Nothing else is tried again: a group that does not start, or does not get to the phase, has
failed, and a deed without effect is an error.

A result counts when its commit is an ancestor of this one and its tree had no changes. Where nothing is recorded a
table has `-`, and where there is no such experiment `×`; the reasons are at the end of this page.
"""
_DEEDS = {
    Fault.KILL: "SIGKILL; proved by the process being gone",
    Fault.STOP: "SIGSTOP; proved by its state T",
    Fault.CLOSE: "connections to the other role are shut down under the process; proved by their TCP state",
    Fault.CUT: "all packets between the roles' network namespaces are lost; proved by a connection that times out",
    Fault.FILL: "a small /dev/shm of the group's own is filled; proved by no byte being free",
}


def render(found: Mapping[Cell, Result]) -> str:
    """The page for these results."""
    parts = [HEAD, "## Deeds\n\n" + _table(("fault", "what is done"), [(str(f), _DEEDS[f]) for f in Fault])]
    parts.append(_summary(found))
    for layout in LAYOUTS:
        for on_loss in ON_LOSS:
            parts += [_grid(found, fault, layout, on_loss) for fault in Fault]
    parts.append(_details(found))
    parts.append(_impossible())
    return "\n".join(part for part in parts if part)


def _summary(found: Mapping[Cell, Result]) -> str:
    def count(chosen: Sequence[Cell]) -> str:
        passed = sum(cell in found and found[cell].outcome == "passed" for cell in chosen)
        bad = sum(cell in found and found[cell].outcome != "passed" for cell in chosen)
        return f"{passed} passed, {bad} not passed, {len(chosen) - passed - bad} not recorded"

    every = cells.product()
    possible = cells.possible(every)
    rows = [
        ("`--complete`: kill -9 of each process in each phase, 1A1F, exit", count(cells.complete())),
        ("`--pairwise`: any two values of all dimensions meet", count(cells.pairwise())),
        ("all that can be done", count(possible)),
        ("impossible", str(len(every) - len(possible))),
    ]
    return "## Selections\n\n" + _table(("selection", "cells"), rows)


def _grid(found: Mapping[Cell, Result], fault: Fault, layout: str, on_loss: str) -> str:
    """The cells of a fault: a row for each target that can have it, a column for each phase."""
    rows = []
    for target in Target:
        row = [Cell(fault, target, phase, layout, on_loss) for phase in Phase]
        if not all(map(cells.impossible, row)):
            rows.append((str(target), *(_entry(cell, found.get(cell)) for cell in row)))
    if not any(cell in found for cell in _cells_of(fault, layout, on_loss)):
        return ""
    return f"## {fault}, {layout}, {on_loss}\n\n" + _table(("target", *map(str, Phase)), rows)


def _cells_of(fault: Fault, layout: str, on_loss: str) -> list[Cell]:
    return [Cell(fault, target, phase, layout, on_loss) for target in Target for phase in Phase]


def _entry(cell: Cell, result: Result | None) -> str:
    if cells.impossible(cell):
        return "×"
    if result is None:
        return "-"
    if result.outcome != "passed":
        return f"**{result.outcome}**"
    if result.survived:
        return "passed, goes on"
    return f"passed, {max(result.noticed_s.values()):.2f} s" if result.noticed_s else "passed"


def _details(found: Mapping[Cell, Result]) -> str:
    if not found:
        return ""
    rows = []
    for cell in sorted(found, key=cells.product().index):
        result = found[cell]
        rows.append(
            (
                f"`{cell}`",
                result.outcome if not result.problems else f"{result.outcome}: {'; '.join(result.problems)}",
                ", ".join(f"{role} {at:.2f}" for role, at in result.noticed_s.items()) or "-",
                "; ".join(dict.fromkeys(result.causes.values())) or "-",
                ", ".join(f"{role} {code}" for role, code in result.codes.items()) or "-",
                result.clients or "-",
                f"{result.again_s:.1f}" if result.again_s is not None else "-",
                _attempts(result),
                f"`{result.commit[:9]}`",
            )
        )
    head = (
        "cell",
        "outcome",
        "noticed after, s",
        "cause",
        "exit codes",
        "clients",
        "ready again, s",
        "attempts",
        "commit",
    )
    return "## Every result\n\n" + _table(head, rows)


def _attempts(result: Result) -> str:
    """How many it took, with why the others were in vain."""
    if result.attempts is None:
        return "-"
    return ": ".join(
        [str(result.attempts), *(["; ".join(dict.fromkeys(result.missed))] if result.missed else [])]
    )


def _impossible() -> str:
    """Each reason once, with what it is about."""
    reasons: dict[str, list[Cell]] = {}
    for cell in cells.product():
        if reason := cells.impossible(cell):
            reasons.setdefault(reason, []).append(cell)
    rows = []
    for reason, members in reasons.items():
        about = [
            ", ".join(dict.fromkeys(str(value) for value in column))
            for column in zip(*((c.fault, c.target, c.phase, c.layout) for c in members), strict=True)
        ]
        rows.append((reason, str(len(members)), *about))
    head = ("why there is no such experiment", "cells", "fault", "target", "phase", "layout")
    return "## Impossible\n\n" + _table(head, rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
