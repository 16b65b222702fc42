# SPDX-License-Identifier: Apache-2.0
"""Shared-memory files that a killed role would leave behind, and their removal.

vLLM's message queues live in /dev/shm under random names and are removed by a clean exit only; after a SIGKILL
they stay, and some break the next start. The agent notes which files its process tree has mapped while the tree
lives, and unlinks those that are still there, unused by anybody else, when it is gone.
"""

from __future__ import annotations

import os
from pathlib import Path

import psutil

_SHM = "/dev/shm/"


def mapped_by(pid: int) -> set[str]:
    """Names in /dev/shm that a process has mapped or open. Empty when it is gone or not ours to read."""
    found: set[str] = set()
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps:
            for line in maps:
                place = line.find(_SHM)
                if place >= 0:
                    found.add(line[place + len(_SHM) :].strip().removesuffix(" (deleted)"))
    except OSError:
        return found
    return found


def tree(pid: int) -> set[int]:
    """A process and all its descendants. Empty when it is gone."""
    try:
        process = psutil.Process(pid)
        return {pid, *(child.pid for child in process.children(recursive=True))}
    except psutil.NoSuchProcess:
        return set()


def runs(pid: int) -> bool:
    """Whether a process exists and is more than an entry its parent has not read yet."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def title(pid: int) -> str:
    """What a process calls itself ("VLLM::EngineCore"); "a process" when it is gone."""
    try:
        words = psutil.Process(pid).cmdline()
    except psutil.Error:
        return "a process"
    return words[0].strip().rpartition("/")[2] if words else "a process"


class Leftovers:
    """Remembers what the tree of a role mapped in /dev/shm."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._pids: dict[int, str] = {}

    def observe(self, roots: list[int]) -> None:
        """Note what the trees below ``roots`` use now."""
        for root in roots:
            for pid in sorted(tree(root)):
                self._pids.setdefault(pid, f"{title(pid)} (process {pid})")
                self._names |= mapped_by(pid)

    def alive(self) -> list[int]:
        """Processes of the tree that still run."""
        return [pid for pid in self._pids if runs(pid)]

    def topmost_gone(self) -> tuple[int, str] | None:
        """The first process of the tree (parents come before children) that does not run any more."""
        return next(((pid, name) for pid, name in self._pids.items() if not runs(pid)), None)

    def remove(self) -> list[str]:
        """Unlink what the tree left, unless a living process outside it has it mapped. Returns the names."""
        candidates = {name for name in self._names if os.path.exists(_SHM + name)}
        if not candidates:
            return []
        in_use: set[str] = set()
        for pid in psutil.pids():
            if pid not in self._pids:
                in_use |= mapped_by(pid) & candidates
        removed = sorted(candidates - in_use)
        for name in removed:
            Path(_SHM + name).unlink(missing_ok=True)
        return removed
