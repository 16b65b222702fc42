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
    """Names of files directly in /dev/shm that a process has mapped. Empty when it is gone or not ours to read.

    Directories there are somebody's own: a checkpoint, a cache.
    """
    found: set[str] = set()
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps:
            for line in maps:
                place = line.find(_SHM)
                if place >= 0:
                    name = line[place + len(_SHM) :].strip().removesuffix(" (deleted)")
                    if "/" not in name:
                        found.add(name)
    except OSError:
        return found
    return found


def tree(pid: int) -> list[psutil.Process]:
    """A process and all its descendants, parents before their children. Empty when it is gone."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def runs(process: psutil.Process) -> bool:
    """Whether a process exists, is not another one with the same number, and is more than an entry that its parent
    has not read yet."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def title(process: psutil.Process) -> str:
    """What a process calls itself ("VLLM::EngineCore"); "" when it is gone."""
    try:
        words = process.cmdline()
    except psutil.Error:
        return ""
    return words[0].strip().rpartition("/")[2] if words else ""


def _ours(path: str) -> bool:
    """Whether a file is there and belongs to this user."""
    try:
        return os.stat(path).st_uid == os.geteuid()
    except FileNotFoundError:
        return False


class Leftovers:
    """Remembers the processes of a role's tree, and what they mapped in /dev/shm.

    A process is known by its number and the time of its start: numbers are used again, and a role lives for weeks.
    """

    def __init__(self) -> None:
        self._before = set(os.listdir(_SHM))
        self._names: set[str] = set()
        self._titles: dict[psutil.Process, str] = {}

    def observe(self, roots: list[int]) -> None:
        """Note what the trees below ``roots`` use now."""
        for root in roots:
            for process in tree(root):
                # Again each time: a forked process bears its parent's title until it chooses its own.
                self._titles[process] = title(process) or self._titles.get(process, "")
                self._names |= mapped_by(process.pid)

    def alive(self) -> list[psutil.Process]:
        """Processes of the tree that still run; those that do not are forgotten."""
        for process in [process for process in list(self._titles) if not runs(process)]:
            self._titles.pop(process, None)
        return list(self._titles)

    def name(self, pid: int) -> str:
        """ "VLLM::Worker (process 12)", or "process 12" when it was never seen."""
        found = next((name for process, name in list(self._titles.items()) if process.pid == pid), "")
        return f"{found} (process {pid})" if found else f"process {pid}"

    def left(self) -> list[str]:
        """What the tree left, by name: not what was there before, nor what a living process outside it has mapped."""
        candidates = {name for name in self._names - self._before if _ours(_SHM + name)}
        if not candidates:
            return []
        in_use: set[str] = set()
        for process in psutil.process_iter():
            if process not in self._titles:
                in_use |= mapped_by(process.pid) & candidates
        return sorted(candidates - in_use)

    def remove(self) -> list[str]:
        """Unlink what the tree left, and return the names."""
        removed = self.left()
        for name in removed:
            Path(_SHM + name).unlink(missing_ok=True)
        return removed
