# SPDX-License-Identifier: Apache-2.0
"""Compile ``ring.c`` once per machine and load it.

The library goes to a cache directory under a name that covers source, machine and C library: a changed source,
another architecture or another image that shares the home directory gets its own. It is compiled to a temporary
name and renamed, so any number of processes may do this at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import logging
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from afd.cache import cache_dir
from afd.connectors.payload import HEADER_BYTES
from afd.connectors.shm import layout
from afd.errors import ConfigError

log = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("ring.c")
COMPILERS = ("cc", "gcc", "clang")
_FLAGS = ("-std=c11", "-O2", "-shared", "-fPIC")
_COMPILE_S = 60.0


class RingState(ctypes.Structure):
    """Mirrors ``afd_ring`` of ring.c: where a ring is, and how far this process has come in it."""

    _fields_ = (
        ("mine", ctypes.c_uint64),
        ("peer", ctypes.c_uint64),
        ("head", ctypes.c_uint64),
        ("tail", ctypes.c_uint64),
        ("cells", ctypes.c_uint64),
        ("stride", ctypes.c_uint64),
        ("hidden_at", ctypes.c_uint64),
        ("ids_at", ctypes.c_uint64),
        ("row_bytes", ctypes.c_uint64),
        ("id_bytes", ctypes.c_uint64),
        ("epoch", ctypes.c_uint64),
        ("spin_ns", ctypes.c_uint64),
        ("slice_ns", ctypes.c_uint64),
        ("count", ctypes.c_uint32),
        ("ubatch", ctypes.c_uint32),
        ("position", ctypes.c_uint32),
        ("poison", ctypes.c_uint32),
    )


_ABI = (
    layout.LINE,
    layout.WAITING,
    layout.ABORTED,
    layout.CLOSED,
    layout.LINE,
    HEADER_BYTES,
    HEADER_BYTES - 4,
    ctypes.sizeof(RingState),
)


class Library:
    """The loaded helper. Calls drop the interpreter lock, so a waiting lane does not stop other threads."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        u32, u64, i32, pointer, integer = (
            ctypes.c_uint32,
            ctypes.c_uint64,
            ctypes.c_int32,
            ctypes.c_void_p,
            ctypes.c_int,
        )
        self.send = library.afd_ring_send
        self.send.argtypes, self.send.restype = (pointer, u64, i32, u32, pointer, pointer), integer
        self.peek = library.afd_ring_peek
        self.peek.argtypes, self.peek.restype = (pointer, u64, i32, u32), integer
        self.take = library.afd_ring_take
        self.take.argtypes, self.take.restype = (pointer, u64, i32, u32, pointer, pointer), integer
        self.release = library.afd_ring_release
        self.release.argtypes, self.release.restype = (pointer,), None
        self.abort = library.afd_side_abort
        self.abort.argtypes, self.abort.restype = (pointer,), None
        self.close = library.afd_side_close
        self.close.argtypes, self.close.restype = (pointer, pointer), None
        abi = (ctypes.c_uint64 * len(_ABI))()
        library.afd_ring_abi(abi)
        if tuple(abi) != _ABI:
            raise OSError(f"{path}: layout {tuple(abi)} is not {_ABI}")


def library_name() -> str:
    """File name of the compiled helper for this source, machine and C library."""
    key = hashlib.sha256(SOURCE.read_bytes())
    for part in (*_FLAGS, platform.machine(), *platform.libc_ver()):
        key.update(part.encode() + b"\0")
    return f"afd-ring-{platform.machine()}-{key.hexdigest()[:16]}.so"


def cache_directories() -> Iterator[Path]:
    """Where the helper may be kept, best first: AFD_CACHE_DIR, the user's cache, a private temporary directory."""
    with contextlib.suppress(ConfigError):  # a user without a home directory
        yield cache_dir()
    yield Path(tempfile.gettempdir()) / f"afd-{os.getuid()}"


def _ours(directory: Path) -> bool:
    """Whether only this user or root can write to ``directory`` (created if need be): code is loaded from it."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.stat()
    except OSError:
        return False
    return status.st_uid in (0, os.getuid()) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def build(directory: Path, compilers: Sequence[str] = COMPILERS) -> Path:
    """The compiled helper in ``directory``, compiled now unless it is there.

    Raises :class:`OSError` when the directory cannot be used or no compiler does the job.
    """
    target = directory / library_name()
    if not _ours(directory):
        raise OSError(f"{directory} cannot be used: it must be a directory that this user only can write to")
    if target.exists():
        return target
    found = [path for path in map(shutil.which, compilers) if path is not None]
    if not found:
        raise OSError(f"no C compiler ({', '.join(compilers)})")
    handle, temporary = tempfile.mkstemp(dir=directory, prefix=".afd-ring-", suffix=".so")
    os.close(handle)
    try:
        problem = ""
        for compiler in found:
            result = subprocess.run(
                (compiler, *_FLAGS, "-o", temporary, str(SOURCE)),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_COMPILE_S,
                check=False,
            )
            if result.returncode == 0:
                os.replace(temporary, target)
                return target
            problem = f"{compiler}: {result.stderr.strip() or result.returncode}"
        raise OSError(f"the C helper does not compile: {problem}")
    finally:
        Path(temporary).unlink(missing_ok=True)


def find(directories: Sequence[Path], compilers: Sequence[str] = COMPILERS) -> Library | None:
    """The helper from the first directory where it can be built and loaded; None and one line in the log if none."""
    problems = []
    for directory in directories:
        try:
            return Library(build(directory, compilers))
        except (OSError, subprocess.SubprocessError) as error:
            problems.append(str(error))
    log.warning("shared memory transport runs without its C helper (slower): %s", "; ".join(problems))
    return None


@lru_cache(maxsize=1)
def load() -> Library | None:
    """The helper for this process, looked for once."""
    return find(tuple(cache_directories()))
