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
from contextlib import contextmanager, suppress
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
"""A directory has its name only while its owner holds the lock: before and afterwards it begins like this."""
_OWNER = "owner"
_ATTEMPTS = 5
"""A directory without its lock may be swept while it is made: then another one is made."""


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
        for _ in range(_ATTEMPTS - 1):
            try:
                return cls._try(base, prefix)
            except (FileNotFoundError, BlockingIOError):  # swept under our hands
                continue
        return cls._try(base, prefix)

    @classmethod
    def _try(cls, base: Path, prefix: str) -> RunDirectory:
        new, lock = Path(tempfile.mkdtemp(prefix=_NEW, dir=base)), -1
        try:
            lock = os.open(new / _OWNER, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(lock, f"{os.getpid()}\n".encode("ascii"))
            path = base / f"{prefix}{new.name.removeprefix(_NEW)}"
            new.rename(path)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            if lock >= 0:
                os.close(lock)
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
    found = []
    for base in bases or _bases():
        for path in _named(base, (RUN, LOGS, _NEW)):
            with _taken(path, fcntl.LOCK_SH) as taken:
                if taken or _is_bare(path):
                    found.append(path)
    return found


def sweep(bases: Iterable[Path] | None = None) -> None:
    """Remove the directories for sockets that killed runs left. Nobody can miss them."""
    for base in bases or _bases():
        for path in _named(base, (RUN, _NEW)):
            with _taken(path, fcntl.LOCK_EX) as taken:
                if taken:
                    _clear(path)
                elif _is_bare(path):
                    with suppress(OSError):  # its maker was quicker
                        path.rmdir()


_RANDOM = 8
"""Characters that mkdtemp chooses."""


@lru_cache
def _tell(base: Path, problems: str) -> None:
    """Once: a smoke run makes several directories."""
    log.warning("unix sockets are made in %s: %s", base, problems)


def _remove(path: Path, lock: int, owner: int) -> None:
    if os.getpid() == owner:  # not in a process forked from it
        _clear(path)
        os.close(lock)


def _clear(path: Path) -> None:
    """Remove a directory whose lock this process holds, as far as it can. Cut off anywhere, it leaves what is stale."""
    gone = path.with_name(f"{_NEW}{path.name.rpartition('-')[2]}")
    with suppress(OSError):
        path.rename(gone)
        path = gone
    with suppress(OSError):
        with os.scandir(path) as entries:
            others = [entry for entry in entries if entry.name != _OWNER]
        for entry in others:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                with suppress(OSError):
                    os.unlink(entry.path)
        if os.listdir(path) == [_OWNER]:  # without it, what is left would be nobody's for ever
            os.unlink(path / _OWNER)
        path.rmdir()


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


def _named(base: Path, prefixes: tuple[str, ...]) -> list[Path]:
    """Directories of this user in ``base`` whose names begin like those of runs."""
    try:
        with os.scandir(base) as entries:
            paths = sorted(Path(entry.path) for entry in entries if entry.name.startswith(prefixes))
    except OSError:
        return []
    return [path for path in paths if _is_ours(path)]


def _is_ours(path: Path) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def _is_bare(path: Path) -> bool:
    """Whether it is empty because its maker was killed before it had a lock, or its remover before it was done."""
    try:
        return path.name.startswith(_NEW) and not os.listdir(path)
    except OSError:
        return False


@contextmanager
def _taken(path: Path, kind: int) -> Iterator[bool]:
    """Whether its owner holds no lock any more. Inside the block nobody else gets it, unless both only look."""
    try:
        lock = os.open(path / _OWNER, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        yield False
        return
    try:
        yield _locked(lock, kind)
    finally:
        os.close(lock)


def _locked(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        return False
    return True
