# SPDX-License-Identifier: Apache-2.0
"""What any user needs to run in any container: a home, a name, and shared memory without a former life's segments."""

from __future__ import annotations

import fcntl
import os
import pwd
import stat
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from afd.agent.leftovers import mapped_by
from afd.connectors.shm.segment import DIRECTORY
from afd.errors import ConfigError

_SEGMENTS = "afd-"
_NAME = "afd"
_YOUNG_S = 2.0
"""A segment is mapped within milliseconds of its creation; until then nobody can see whose it is."""


def home(environment: Mapping[str, str], uid: int | None = None) -> dict[str, str]:
    """Variables that a user without a home that can be written, or without a name, lacks.

    vLLM, torch and the hub keep caches below HOME, and ask the system for the user's name, which a random uid has not.
    Raises ConfigError when there is no place to write at all.
    """
    uid = os.geteuid() if uid is None else uid
    found: dict[str, str] = {}
    current = environment.get("HOME", "")
    if not (current and os.path.isdir(current) and os.access(current, os.W_OK | os.X_OK)):
        found["HOME"] = str(_private(_temporary(current) / f"afd-home-{uid}", uid))
    try:
        pwd.getpwuid(uid)
    except KeyError:
        for name in ("USER", "LOGNAME"):
            if not environment.get(name):
                found[name] = _NAME
    return found


def _temporary(current: str) -> Path:
    try:
        return Path(tempfile.gettempdir())
    except OSError:
        raise ConfigError(
            f"HOME ({current or 'not set'}) cannot be written, and neither can a temporary directory; with a read-only "
            "root give the container --tmpfs /tmp"
        ) from None


def _private(path: Path, uid: int) -> Path:
    """A directory of this user only. Raises ConfigError when somebody else made it."""
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid:
        raise ConfigError(
            f"{path}: not a directory of uid {uid}; remove it, or set HOME to a writable directory"
        )
    return path


class SharedMemory:
    """This container's claim on ``/dev/shm``: a lock that every entry point shares while it lives.

    It is a file lock, so it also counts between containers that share the directory and cannot see each other's
    processes. Who can have it alone knows that no other container is alive whose segments these could be.
    """

    def __init__(self, directory: Path = DIRECTORY) -> None:
        self._directory = directory
        self._lock = -1

    def claim(self) -> list[str]:
        """Take the lock, and remove AFD's segments that nobody uses if it is ours alone. Returns their names.

        Segments of other users, and those that a living process has mapped, stay.
        """
        path = self._directory / f".afd-entrypoint-{os.geteuid()}"
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:
            return []  # the role itself says what is wrong with its shared memory
        self._lock = lock
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(lock, fcntl.LOCK_SH)
            return []
        try:
            return self._clear()
        finally:
            fcntl.flock(lock, fcntl.LOCK_SH)

    def close(self) -> None:
        """Let go. Twice is fine."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def _clear(self) -> list[str]:
        ours = set()
        for entry in os.scandir(self._directory):
            if entry.name.startswith(_SEGMENTS):
                found = entry.stat(follow_symlinks=False)
                if found.st_uid == os.geteuid() and found.st_mtime < time.time() - _YOUNG_S:
                    ours.add(entry.name)
        if not ours:
            return []
        for process in psutil.process_iter():
            ours -= mapped_by(process.pid)
        for name in ours:
            (self._directory / name).unlink(missing_ok=True)
        return sorted(ours)
