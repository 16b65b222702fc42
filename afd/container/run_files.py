# SPDX-License-Identifier: Apache-2.0
"""The directory that says what runs in this container: for the health check, for supervisord, for its listener.

It has a fixed place, because a health check comes from outside with nothing but the image's environment:
``AFD_RUN_DIR``, or ``afd-UID`` below the directory for temporary files.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from afd.errors import ConfigError

VARIABLE = "AFD_RUN_DIR"
AGENTS = "agents.json"
_LOCK = "owner"
_LONGEST = 80
"""Bytes of the path: below it supervisord makes a socket, under a longer name first."""


def place(environment: Mapping[str, str]) -> Path:
    """Where the directory is, for this user."""
    chosen = environment.get(VARIABLE, "")
    return Path(chosen) if chosen else Path(tempfile.gettempdir()) / f"afd-{os.geteuid()}"


class RunFiles:
    """The directory while its owner lives. What a former life of the container left in it is removed first."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Raises ConfigError when it cannot be made, is not this user's own, or another entry point uses it."""
        self.path = place(environment)
        advice = f"set {VARIABLE} to a writable directory with a short path"
        if len(os.fsencode(self.path)) > _LONGEST:
            raise ConfigError(
                f"{self.path}: more than {_LONGEST} bytes, too long for sockets below it; {advice}"
            )
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self.path.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                raise ConfigError(f"{self.path}: not a directory of uid {os.geteuid()}; {advice}")
            self.path.chmod(0o700)
            self._lock = os.open(
                self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
        except OSError as error:
            raise ConfigError(f"{self.path}: {error.strerror}; {advice}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise ConfigError(
                f"{self.path}: another afd-entrypoint of this user runs here; set {VARIABLE} to another directory"
            ) from None
        for name in os.listdir(self.path):
            if name != _LOCK:
                (self.path / name).unlink()

    def write(self, name: str, content: Any) -> Path:
        """Write JSON that only this user can read, in one step."""
        return write(self.path / name, content)

    def agents(self, ports: Mapping[str, int]) -> None:
        """Say which agent ports this container has, by role; those of port 0 are not known."""
        self.write(AGENTS, {role: port for role, port in ports.items() if port})

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def write(path: Path, content: Any) -> Path:
    """Write JSON that only this user can read, in one step."""
    new = path.with_name(f".{path.name}.new")
    with open(
        os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w", encoding="utf-8"
    ) as file:
        json.dump(content, file)
    new.replace(path)
    return path
