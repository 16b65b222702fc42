# SPDX-License-Identifier: Apache-2.0
"""What every connector over every transport must do, as scenarios between real processes.

:func:`check_link` runs all of them for one way to make connectors; :data:`SCENARIOS` and :func:`run` are for test
runners that want one test for each. A scenario is a function that every rank process runs; its name says what holds.
"""

from __future__ import annotations

import gc
import os
import threading
from functools import partial
from pathlib import Path

import torch

from afd.testing import link_end, link_transfer
from afd.testing.link_rig import SCENARIOS, MakeConnector, Rig, wait_for
from afd.testing.ranks import RankContext, run_ranks

__all__ = ["SCENARIOS", "MakeConnector", "check_link", "run"]

SCENARIO_MODULES = (link_transfer, link_end)
"""Importing them fills :data:`SCENARIOS`."""


def _body(name: str, make: MakeConnector, tag: str, context: RankContext) -> None:
    torch.set_num_threads(1)
    topology, function = SCENARIOS[name]
    rig = Rig(context, topology, make, tag)
    descriptors, threads = _descriptors(), threading.active_count()
    function(rig)
    gc.collect()
    # The thread that told of an abort may still be on its way out of the callback that woke us.
    wait_for(lambda: _descriptors() <= descriptors, "file descriptors to be closed")
    wait_for(lambda: threading.active_count() <= threads, "threads to end")


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def run(name: str, make: MakeConnector) -> None:
    """Run one scenario of :data:`SCENARIOS`. Raises :class:`AssertionError` when it does not hold."""
    tag = os.urandom(4).hex()
    run_ranks(SCENARIOS[name][0], partial(_body, name, make, tag))
    left = [path.name for path in Path("/dev/shm").glob(f"*{tag}*")]
    assert not left, f"left in shared memory: {sorted(left)}"


def check_link(make: MakeConnector) -> None:
    """Run every scenario. Raises :class:`AssertionError` at the first that does not hold."""
    for name in SCENARIOS:
        run(name, make)
