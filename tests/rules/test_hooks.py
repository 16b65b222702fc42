# SPDX-License-Identifier: Apache-2.0
"""The table of hooks into upstream is complete and has no stale rows."""

from __future__ import annotations

import pytest

from afd.rebind import HOOKS, Hook
from tests.rules.hooks import incomplete
from tests.rules.sources import Source, checkout, clean, python


def test_every_hook_into_upstream_has_a_row_and_every_row_a_use() -> None:
    clean(incomplete(python(checkout()), HOOKS))


ROW = Hook("vllm.x", "Runner", "class", "afd.a.Worker.start", "why", "when")
CALL = "class Worker:\n    def start(self):\n        with rebind(x, {}):\n            pass\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (CALL.format("Runner=Ours, Other=Ours"), "rebind of Other in afd.a.Worker.start has no row"),
        (
            CALL.format("Runner=Ours") + "with rebind(x, Runner=Ours): pass",
            "rebind of Runner in afd.a has no row",
        ),
        (
            CALL.format("Runner=Ours") + "def f():\n    rebind(x, **names)",
            "rebind of * in afd.a.f has no row",
        ),
        ("", "nothing rebinds Runner in afd.a.Worker.start"),
    ],
)
def test_a_hook_without_a_row_or_a_row_without_a_hook_is_found(text: str, says: str) -> None:
    (found,) = incomplete((Source("afd/a.py", text),), (ROW,))
    assert says in found


@pytest.mark.parametrize("names", ["Runner=Ours", "**names"])
def test_a_hook_that_has_its_row_is_not_reported(names: str) -> None:
    assert incomplete((Source("afd/a.py", CALL.format(names)),), (ROW,)) == []
