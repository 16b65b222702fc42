# SPDX-License-Identifier: Apache-2.0
"""The directories that a run makes for temporary files: where they may be, and whether their run is over.

A unix socket's path has at most 107 bytes, and vLLM names its sockets by 36 of them, so a directory for sockets cannot
be anywhere. Its owner holds a lock on a file in it: who can take that lock knows that the owner is gone, also when it
was killed, in another container, or long ago.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import stat
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from afd.errors import ResourceError

log = logging.getLogger(__name__)

RUN, LOGS = "afd-run-", "afd-smoke-"
"""How the names of directories begin: for the sockets of processes, and for the logs of ``afd smoke``."""

PATH_BYTES = 107
"""The longest path of a unix socket on Linux, without the byte that ends it."""
_LONGEST_NAME = len("/") + 36
"""vLLM names a socket by a UUID; AFD's own names are shorter."""
_NEW = ".afd-new-"
"""A directory has its name only when its owner holds the lock."""
_OWNER = "owner"


class RunDirectory:
    """A directory that is removed by :meth:`close`, or at the end of this process at the latest."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock
        self._finalizer = weakref.finalize(self, _remove, path, lock, os.getpid())

    @classmethod
    def for_sockets(cls) -> RunDirectory:
        """A new directory, of this user only, in which unix sockets can be made: below TMPDIR when its path is short
        enough and there is room, else below XDG_RUNTIME_DIR or /tmp.

        Removes what killed runs left there. Raises ResourceError when there is no such place.
        """
        problems = []
        if asked := ignored_tmpdir():
            problems.append(f"TMPDIR is {asked}, where nothing can be written")
        if isinstance(reason := _temporary(), str):
            problems.append(reason)
        for base in _bases():
            longest = PATH_BYTES - _LONGEST_NAME - len(f"/{RUN}") - _RANDOM
            length = len(os.fsencode(base))
            if length > longest:
                problems.append(
                    f"the path of {base} has {length} bytes, and sockets need one of at most {longest}"
                )
                continue
            try:
                made = cls._make(base, RUN)
            except OSError as error:
                problems.append(f"{base}: {error.strerror}")
                continue
            if problems:
                _tell(base, "; ".join(problems))
            sweep([base])
            return made
        raise ResourceError(
            f"no directory for unix sockets: {'; '.join(problems)}; "
            "set TMPDIR to a writable directory with a short path"
        )

    @classmethod
    def for_logs(cls) -> RunDirectory:
        """A new directory below TMPDIR. Raises ResourceError when it cannot be made."""
        base = _temporary()
        if isinstance(base, str):
            raise ResourceError(f"no directory for logs: {base}; set TMPDIR to a writable directory")
        try:
            return cls._make(base, LOGS)
        except OSError as error:
            raise ResourceError(
                f"no directory for logs: {base}: {error.strerror}; free some space there, or set TMPDIR"
            ) from error

    @classmethod
    def _make(cls, base: Path, prefix: str) -> RunDirectory:
        new = Path(tempfile.mkdtemp(prefix=_NEW, dir=base))
        try:
            with open(new / _OWNER, "x", encoding="ascii") as file:
                file.write(f"{os.getpid()}\n")
            lock = os.open(new / _OWNER, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path = base / f"{prefix}{new.name.removeprefix(_NEW)}"
            new.rename(path)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        return cls(path, lock)

    def close(self) -> None:
        """Remove it. Twice is fine."""
        self._finalizer()

    def keep(self) -> None:
        """Leave it to the user, who was told of it: nobody will call it a leftover."""
        if self._finalizer.detach() is not None:
            (self.path / _OWNER).unlink(missing_ok=True)
            os.close(self._lock)


def stale(bases: Iterable[Path] | None = None) -> list[Path]:
    """Directories of this user's runs that were killed, in ``bases`` or where runs of this environment put them."""
    return [path for base in bases or _bases() for path in _stale_in(base, (RUN, LOGS))]


def sweep(bases: Iterable[Path] | None = None) -> None:
    """Remove the directories for sockets that killed runs left. Nobody can miss them."""
    for base in bases or _bases():
        for path in _stale_in(base, (RUN,)):
            shutil.rmtree(path, ignore_errors=True)


_RANDOM = 8
"""Characters that mkdtemp chooses."""


@lru_cache
def _tell(base: Path, problems: str) -> None:
    """Once: a smoke run makes several directories."""
    log.warning("unix sockets are made in %s: %s", base, problems)


def _remove(path: Path, lock: int, owner: int) -> None:
    if os.getpid() == owner:  # not in a process forked from it
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _bases() -> list[Path]:
    """Where sockets may be, best first."""
    temporary = _temporary()
    found = [] if isinstance(temporary, str) else [temporary]
    for other in (os.environ.get("XDG_RUNTIME_DIR", ""), "/tmp"):
        if other.startswith("/") and Path(other) not in found:
            found.append(Path(other))
    return found


def _temporary() -> Path | str:
    """Python's directory for temporary files, or why there is none."""
    try:
        return Path(tempfile.gettempdir())
    except OSError as error:
        return error.strerror or str(error)


def ignored_tmpdir() -> str:
    """The value of TMPDIR when temporary files go elsewhere: it is absent, read-only, or full. Else ""."""
    asked = os.environ.get("TMPDIR", "")
    found = _temporary()
    return asked if asked and not isinstance(found, str) and os.path.abspath(asked) != str(found) else ""


def _stale_in(base: Path, prefixes: tuple[str, ...]) -> Iterator[Path]:
    try:
        with os.scandir(base) as entries:
            paths = sorted(Path(entry.path) for entry in entries if entry.name.startswith(prefixes))
    except OSError:
        return
    for path in paths:
        if _is_stale(path):
            yield path


def _is_stale(path: Path) -> bool:
    """Whether it is a directory of this user whose owner holds no lock any more."""
    try:
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            return False
        lock = os.open(path / _OWNER, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return True
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        return False
    finally:
        os.close(lock)
