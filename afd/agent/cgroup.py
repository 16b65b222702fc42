# SPDX-License-Identifier: Apache-2.0
"""Limits of the control group this process is in, version 1 or 2: a container's share of the machine.

A limit may be set at any level, so the smallest one on the way up counts. ``root`` is the root of the file
system and exists for tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

# Version 1 has no word for "no limit": it shows the largest multiple of a page that fits.
_UNLIMITED_V1 = 1 << 60


def cpu_quota(root: Path = Path("/")) -> float | None:
    """CPU time per wall time that this process may use, in cores; None when there is no limit."""
    found: list[float] = []
    for directory in _levels(root, "cpu"):
        unified = _words(directory / "cpu.max")
        if len(unified) == 2 and unified[0] != "max":
            found.append(int(unified[0]) / int(unified[1]))
        quota, period = _words(directory / "cpu.cfs_quota_us"), _words(directory / "cpu.cfs_period_us")
        if quota and period and int(quota[0]) > 0:
            found.append(int(quota[0]) / int(period[0]))
    return min(found, default=None)


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes of memory that this process and its siblings may use; None when there is no limit."""
    found: list[int] = []
    for directory in _levels(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            words = _words(directory / name)
            if words and words[0] != "max" and int(words[0]) < _UNLIMITED_V1:
                found.append(int(words[0]))
    return min(found, default=None)


def task_limit(root: Path = Path("/")) -> int | None:
    """Processes and threads that this control group may have; None when there is no limit."""
    found = [_words(directory / "pids.max") for directory in _levels(root, "pids")]
    return min((int(words[0]) for words in found if words and words[0] != "max"), default=None)


def _levels(root: Path, controller: str) -> Iterator[Path]:
    """The directories of our control group and of all above it, for one controller."""
    mount = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0":
            base = mount
        elif controller in controllers.split(","):
            base = mount / controller
        else:
            continue
        # In a container without its own cgroup namespace the path is the host's, and only the top is visible.
        here = base / path.lstrip("/")
        for directory in (here, *here.parents):
            yield directory
            if directory == base:
                break


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
