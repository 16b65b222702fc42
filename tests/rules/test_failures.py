# SPDX-License-Identifier: Apache-2.0
"""The catalogue of public failures is whole, and every test that it names is one that pytest collects."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Collection
from dataclasses import replace

import pytest

from scripts.render_docs import Catalogue, Failure, load_failures
from tests.rules.sources import ROOT, clean

NUMBERS = range(1, 34)
"""The failures that were known when the catalogue was made; a later one gets the next number."""

CATALOGUE = load_failures()


def incomplete(catalogue: Catalogue) -> list[str]:
    """Failures that are not there, twice there, or say too little."""
    numbers = [one.number for one in catalogue.failures]
    found = [f"failure {number} is not in the catalogue" for number in NUMBERS if number not in numbers]
    if numbers != sorted(set(numbers)):
        found.append(f"the numbers are not in order, or one is there twice: {numbers}")
    for one in catalogue.failures:
        if not (one.references and one.title and one.symptom and one.cause):
            found.append(f"failure {one.number} has no reference, title, symptom or cause")
        if not one.tests and not one.later:
            found.append(f"failure {one.number} has neither a test nor work that will have to show it")
        found += [
            f"failure {one.number}: nobody knows the work {w!r}"
            for w in one.later
            if w not in catalogue.later
        ]
    return found


def unknown(catalogue: Catalogue, collected: Collection[str]) -> list[str]:
    """Tests that are named and that pytest does not collect."""
    known = {*collected, *(name.partition("[")[0] for name in collected)}
    return [
        f"failure {one.number}: there is no test {name}"
        for one in catalogue.failures
        for name in one.tests
        if name not in known
    ]


@functools.cache
def collected() -> frozenset[str]:
    """What pytest collects in the files that the catalogue names. In a process of its own: a run inside of this one
    would share its modules and plugins."""
    files = sorted({name.partition("::")[0] for one in CATALOGUE.failures for name in one.tests})
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files],
        cwd=ROOT,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=280,
    )
    return frozenset(
        line for line in done.stdout.splitlines() if "::" in line and not line.startswith("ERROR")
    )


def test_every_failure_of_the_catalogue_is_there_and_says_what_shows_it() -> None:
    clean(incomplete(CATALOGUE))


@pytest.mark.timeout(300)
def test_every_test_that_the_catalogue_names_is_collected_by_pytest() -> None:
    clean(unknown(CATALOGUE, collected()))


FIRST = CATALOGUE.failures[0]


@pytest.mark.parametrize(
    "broken",
    [
        replace(CATALOGUE, failures=CATALOGUE.failures[1:]),
        replace(CATALOGUE, failures=(*CATALOGUE.failures, FIRST)),
        replace(CATALOGUE, failures=(replace(FIRST, references=()), *CATALOGUE.failures[1:])),
        replace(CATALOGUE, failures=(replace(FIRST, tests=(), later={}), *CATALOGUE.failures[1:])),
        replace(CATALOGUE, failures=(replace(FIRST, later={"some day": "x"}), *CATALOGUE.failures[1:])),
    ],
    ids=["missing", "twice", "without-reference", "shown-by-nothing", "unknown-work"],
)
def test_a_catalogue_that_is_not_whole_is_found(broken: Catalogue) -> None:
    assert len(incomplete(broken)) == 1


def test_a_test_that_does_not_exist_is_found() -> None:
    known = "tests/unit/test_a.py::test_there_is_one"

    def naming(*tests: str) -> Catalogue:
        one: Failure = replace(FIRST, tests=tests)
        return Catalogue({}, (one,))

    assert unknown(naming(known, f"{known}[a]"), {f"{known}[a]", f"{known}[b]"}) == []
    assert len(unknown(naming(f"{known}[c]", f"{known}_more"), {f"{known}[a]"})) == 2
