# SPDX-License-Identifier: Apache-2.0
"""The runner: ``python -m tests.chaos --complete --pairwise``. Interrupted, it goes on where it was."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from afd.support.records import Commits
from afd.testing.records import commits, cpu_devices, stack
from tests.chaos import cells, network, results
from tests.chaos.cells import Cell
from tests.chaos.experiment import run
from tests.chaos.results import Record, Result, Store
from tests.chaos.stand import MODEL, ROOT, RUNNER, Stand, native_answers

NAME = f"{MODEL.rpartition(':')[2]}-{RUNNER}"
"""Of the record."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--complete", is_flag=True, help="kill -9 of each process in each phase, 1A1F, exit")
@click.option("--pairwise", is_flag=True, help="a selection in which any two values of all dimensions meet")
@click.option("--cell", "names", multiple=True, metavar="NAME", help="this one; may be given again")
@click.option("--only", multiple=True, metavar="WORD", help="of all these, cells with WORD in their name")
@click.option("--list", "listing", is_flag=True, help="print names, and reasons of the impossible, and end")
@click.option("--again", is_flag=True, help="also those that have passed on this commit already")
@click.option(
    "--directory", type=click.Path(path_type=Path), default=ROOT / "build/chaos", show_default=False
)
@click.option("--records", type=click.Path(path_type=Path), help="keep the results here, as in tests/records")
@click.option("--inside", is_flag=True, hidden=True, help="this process has namespaces of its own")
def main(
    complete: bool,
    pairwise: bool,
    names: tuple[str, ...],
    only: tuple[str, ...],
    listing: bool,
    again: bool,
    directory: Path,
    records: Path | None,
    inside: bool,
) -> None:
    """Do experiments with faults in groups of real processes. Each leaves a file in build/chaos; those that have passed
    on this commit are not done again. Exits with 1 when one has not passed."""
    chosen = choose(complete, pairwise, names, only)
    if listing:
        every = cells.product() if not (complete or pairwise or names) else chosen
        for cell in every:
            if all(word in str(cell) for word in only):
                click.echo(f"{cell}  {cells.impossible(cell)}".rstrip())
        return
    if not chosen:
        raise click.UsageError("no cell chosen: --complete, --pairwise or --cell, see --list")
    store, source = Store(directory.resolve() / "cells"), commits(ROOT)
    waiting = [cell for cell in chosen if again or not store.done(cell, source)]
    if len(waiting) < len(chosen):
        click.echo(
            f"{len(chosen) - len(waiting)} of {len(chosen)} cells have passed on {source.afd[:9]} already"
        )
    began, trouble = time.monotonic(), ""
    before = {cell: store.read(cell) for cell in waiting}
    if waiting:
        native = native_answers(store.directory.parent)
        if inside:
            _experiment(waiting, Stand(directory.resolve(), native, network.furnish()), store, source)
            return
        plain = [cell for cell in waiting if not cell.fault.isolated]
        if plain:
            _experiment(plain, Stand(directory.resolve(), native), store, source)
        if isolated := [cell for cell in waiting if cell.fault.isolated]:
            trouble = _isolated(isolated, directory.resolve())
    found = {cell: store.read(cell) for cell in chosen}
    new = {cell: result for cell, result in found.items() if cell not in before or result != before[cell]}
    bad = [f"{cell}: {why}" for cell in chosen if (why := _not_passed(new.get(cell), source))]
    click.echo(f"{len(chosen) - len(bad)} of {len(chosen)} passed in {time.monotonic() - began:.0f} s")
    if records is not None:
        click.echo(f"record: {_keep([result for result in found.values() if result], records)}")
    for words in bad:
        click.echo(f"not passed: {words}")
    if trouble:
        raise click.ClickException(trouble)
    sys.exit(1 if bad else 0)


def choose(complete: bool, pairwise: bool, names: Sequence[str], only: Sequence[str]) -> list[Cell]:
    """The cells of all selections, each once, in an order in which groups can be handed on."""
    every = [*(cells.complete() if complete else []), *(cells.pairwise() if pairwise else [])]
    for name in names:
        try:
            cell = Cell.parse(name)
        except KeyError:
            raise click.BadParameter(f"there is no cell {name}; see --list") from None
        if reason := cells.impossible(cell):
            raise click.BadParameter(f"{name}: {reason}")
        every.append(cell)
    found = [cell for cell in dict.fromkeys(every) if all(word in str(cell) for word in only)]
    return sorted(
        found, key=lambda cell: (cell.fault.isolated, cell.layout, cell.on_loss, cell.phase.serving)
    )


def _experiment(chosen: Sequence[Cell], stand: Stand, store: Store, source: Commits) -> None:
    """Do them all, with a line for each."""
    try:
        for number, cell in enumerate(chosen, 1):
            result = run(cell, stand, source)
            store.write(result)
            click.echo(f"[{number}/{len(chosen)}] {line(result)}")
            for problem in result.problems:
                click.echo(f"    {problem}")
            sys.stdout.flush()
        stand.rest()
    finally:
        stand.close()


def line(result: Result) -> str:
    """The result in one line."""
    parts = [f"{result.cell}: {result.outcome}"]
    if result.noticed_s:
        parts.append("noticed " + ", ".join(f"{role} {at:.2f} s" for role, at in result.noticed_s.items()))
    if result.survived:
        parts.append("survived")
    if result.codes:
        parts.append("codes " + ", ".join(f"{role} {code}" for role, code in result.codes.items()))
    if result.again_s is not None:
        parts.append(f"ready again {result.again_s:.1f} s")
    return "; ".join([*parts, f"{result.duration_s:.0f} s"])


def _not_passed(result: Result | None, source: Commits) -> str:
    """Why a cell has not passed on this source; "" when it has. ``result`` is None when this run has none."""
    if result is None:
        return "it was not done"
    if (result.commit, result.dirty) != (source.afd, source.dirty):
        changed = " with changes" if result.dirty else ""
        return f"its result is of commit {result.commit[:9]}{changed}, not of this source"
    return "" if result.outcome == "passed" else result.outcome


def _isolated(chosen: Sequence[Cell], directory: Path) -> str:
    """Do them in a process with namespaces of its own. Returns why that did not come to its end, "" when it did."""
    if reason := network.unavailable():
        return f"{reason}; {len(chosen)} cells need namespaces: leave them out with --only"
    command = [*network.UNSHARE, sys.executable, "-m", "tests.chaos", "--inside", "--again"]
    command += ["--directory", str(directory), *(f"--cell={cell}" for cell in chosen)]
    code = subprocess.run(command, cwd=ROOT).returncode
    return f"the process with namespaces of its own ended with code {code}, not with 0" if code else ""


def _keep(found: Sequence[Result], directory: Path) -> Path:
    """Write the record; what it holds of other cells stays, when it was found with the same packages."""
    here = stack()
    kept = {
        result.cell: result
        for record in results.read_records(directory)
        if record.name == NAME and record.stack.digest == here.digest
        for result in record.results
    }
    kept |= {result.cell: result for result in found}
    record = Record(
        name=NAME,
        model=MODEL,
        runner=RUNNER,
        devices=cpu_devices(),
        stack=here,
        results=tuple(kept[name] for name in sorted(kept)),
    )
    return results.write_record(record, directory)


if __name__ == "__main__":
    main(prog_name="python -m tests.chaos")
