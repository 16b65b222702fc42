# SPDX-License-Identifier: Apache-2.0
"""The directory that says what runs in this container: for the health check, for supervisord, for its listener.

It has a fixed place, because a health check comes from outside with nothing but the image's environment: ``afd-UID``
below ``AFD_RUN_DIR``, or else below the directory for temporary files. What is above it is left alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from afd.errors import ConfigError

VARIABLE = "AFD_RUN_DIR"
AGENTS = "agents.json"
_LOCK = "owner"
OURS = re.compile(
    rf"{_LOCK}|stopping|(agents|ends|ffn|attention)\.json|\.\w+\.json\.new|(ffn|attention|watch)\.out"
    r"|supervisord\.(conf|log|pid)|supervisor\.sock(\.\d+)?"
)
"""Everything that an entry point and its supervisord make here, and so may remove."""
_LONGEST = 80
"""Bytes of the path: below it supervisord makes a socket, under a longer name first."""


def place(environment: Mapping[str, str]) -> Path:
    """Where the directory is, for this user."""
    return Path(environment.get(VARIABLE) or tempfile.gettempdir()) / f"afd-{os.geteuid()}"


class RunFiles:
    """The directory while its owner lives. What a former life of the container left in it is removed first."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Raises ConfigError when it cannot be made, is not this user's own, holds what no entry point has made, or
        another entry point uses it."""
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
            there = os.listdir(self.path)
            strange = sorted(name for name in there if _LOCK not in there or not OURS.fullmatch(name))
            if strange:
                raise ConfigError(
                    f"{self.path}: holds {strange[0]}, which no afd-entrypoint has left there; remove it, or {advice}"
                )
            self.path.chmod(0o700)
            self._lock = os.open(
                self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
        except OSError as error:
            raise ConfigError(f"{self.path}: {error.strerror}; {advice}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._clear()
        except BlockingIOError:
            os.close(self._lock)
            raise ConfigError(
                f"{self.path}: another afd-entrypoint of this user runs here; set {VARIABLE} to another directory"
            ) from None
        except OSError as error:
            os.close(self._lock)
            raise ConfigError(f"{error.filename}: {error.strerror}; remove it, or {advice}") from None

    def write(self, name: str, content: Any) -> Path:
        """Write JSON that only this user can read, in one step."""
        return write(self.path / name, content)

    def agents(self, addresses: Mapping[str, tuple[str, int]]) -> None:
        """Say where the agents of this container listen, host and port by role; those of port 0 are not known."""
        self.write(AGENTS, {role: (host, port) for role, (host, port) in addresses.items() if port})

    def close(self) -> None:
        """Remove it, and nothing that somebody else has put there. Who was asked to end does not fail over that."""
        with contextlib.suppress(OSError):
            self._clear()
            (self.path / _LOCK).unlink()
            self.path.rmdir()
        os.close(self._lock)

    def _clear(self) -> None:
        """Remove all files of entry points but the lock."""
        for name in os.listdir(self.path):
            if name != _LOCK and OURS.fullmatch(name):
                (self.path / name).unlink()


def write(path: Path, content: Any) -> Path:
    """Write JSON that only this user can read, in one step."""
    new = path.with_name(f".{path.name}.new")
    with open(
        os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w", encoding="utf-8"
    ) as file:
        json.dump(content, file)
    new.replace(path)
    return path
