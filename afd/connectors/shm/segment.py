# SPDX-License-Identifier: Apache-2.0
"""A piece of shared memory: reserved in full when it is created, nameless as soon as both sides have it.

The memory lives as long as a mapping, a view of it or a call that uses it does; dropping the last reference unmaps it.
Nothing here unmaps by hand, so a view that somebody still holds can go stale but never crash.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
from pathlib import Path

from afd.errors import ResourceError

DIRECTORY = Path("/dev/shm")
_PREFIX = "afd-"


def segment_name(epoch: str, pair_key: str) -> str:
    """The file name of the segment for one pair in one epoch, such as "afd-0f3a9c11d2e4-a0-f0-u0"."""
    return f"{_epoch_prefix(epoch)}{pair_key}"


def _epoch_prefix(epoch: str) -> str:
    return f"{_PREFIX}{epoch[:12]}-"


def sweep(epoch: str, directory: Path = DIRECTORY) -> list[str]:
    """Remove what an FFN rank that was killed between creating and opening left behind. Returns the names.

    Only names of ``epoch`` are touched. Needs no torch, so that an agent can call it when its epoch has ended.
    """
    removed = []
    for path in directory.glob(f"{_epoch_prefix(epoch)}*"):
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
            removed.append(path.name)
    return removed


def mebibytes(size: int) -> str:
    """A size for people: whole MiB, rounded up."""
    return f"{-(-size // 2**20)} MiB"


def check_room(needed: int, what: str, directory: Path = DIRECTORY) -> None:
    """Raise :class:`ResourceError` when ``directory`` has fewer than ``needed`` bytes free."""
    try:
        status = os.statvfs(directory)
    except OSError as error:
        raise ResourceError(
            f"no shared memory: {directory}: {error.strerror}; mount a tmpfs there"
        ) from error
    free = status.f_bavail * status.f_frsize
    if free < needed:
        raise _no_room(needed, free, what, directory)


def _no_room(needed: int, free: int, what: str, directory: Path) -> ResourceError:
    return ResourceError(
        f"shared memory is too small: {what} needs {mebibytes(needed)} in {directory}, {free // 2**20} MiB are free; "
        f"give the container more (--shm-size, or an emptyDir with medium Memory), remove what fills {directory}, "
        "or lower --max-num-batched-tokens"
    )


class Segment:
    """One mapped segment of ``size`` bytes. ``address`` is where it is mapped, ``bytes`` a writable view."""

    def __init__(self, path: Path, descriptor: int, size: int) -> None:
        self.path = path
        self.size = size
        self._map = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.bytes = memoryview(self._map)
        self.words = self.bytes.cast("I")

    @property
    def buffer(self) -> mmap.mmap:
        """The mapping, for ``torch.frombuffer``; whoever gets a tensor from it keeps the memory alive."""
        return self._map

    @classmethod
    def create(cls, path: Path, size: int, what: str) -> Segment:
        """Create and reserve a segment that is readable by this user only.

        The memory is allocated now: a full ``/dev/shm`` is a :class:`ResourceError` here, not a SIGBUS in a later step.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            try:
                os.posix_fallocate(descriptor, 0, size)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
                    raise
                status = os.statvfs(path)
                raise _no_room(size, status.f_bavail * status.f_frsize, what, path.parent) from error
            return cls(path, descriptor, size)
        except BaseException:
            path.unlink(missing_ok=True)  # whatever else went wrong, what is raised is the reason
            raise
        finally:
            os.close(descriptor)

    @classmethod
    def open(cls, path: Path) -> Segment:
        """Map a segment that another process created. Raises :class:`FileNotFoundError` when there is none."""
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return cls(path, descriptor, os.fstat(descriptor).st_size)
        finally:
            os.close(descriptor)

    def unlink(self) -> None:
        """Remove the name; mappings stay. Doing it twice is fine."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
