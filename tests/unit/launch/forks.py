# SPDX-License-Identifier: Apache-2.0
"""Connections to the launcher of tests/unit/conftest.py, and what tests ask of processes."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from afd.agent.launcher import Child, Launcher

TARGETS = "tests.unit.launch.targets"
CHECKOUT = Path(__file__).resolve().parents[3]


def environment(**variables: str) -> dict[str, str]:
    """What a launcher and its processes need here, and nothing of this machine's settings."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return {**kept, "PYTHONPATH": str(CHECKOUT), "OMP_NUM_THREADS": "1", **variables}


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float = 45.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.02)


def gone(*pids: int) -> bool:
    """Whether none of these processes runs any more."""

    def runs(pid: int) -> bool:
        try:
            return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    return not any(runs(pid) for pid in pids)


@dataclass
class Forks:
    """A connection to the launcher, with a shorthand to fork the functions of targets.py."""

    launcher: Launcher
    lines: list[str] = field(default_factory=list)

    async def fork(
        self, function: str, *argv: str, env: Mapping[str, str] | None = None, name: str = ""
    ) -> Child:
        target = function if ":" in function else f"{TARGETS}:{function}"
        return await self.launcher.spawn(
            name or function, target, argv, environment() if env is None else env, self.lines.append
        )

    async def run(
        self, function: str, *argv: str, env: Mapping[str, str] | None = None
    ) -> tuple[int, list[str]]:
        """Fork it, wait for its end; the exit code and what it said."""
        child = await self.fork(function, *argv, env=env)
        code = await child.exited
        await self.launcher.drain_output(5.0)
        return code, self.lines


@asynccontextmanager
async def connected(path: str, tmp_path: Path) -> AsyncIterator[Forks]:
    launcher = await Launcher.open(tmp_path, {}, 30.0, path=path)
    try:
        yield Forks(launcher)
    finally:
        await launcher.close()
