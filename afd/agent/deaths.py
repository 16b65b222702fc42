# SPDX-License-Identifier: Apache-2.0
"""In which order the processes of a role end, and how, as the kernel tells it.

When a worker is killed while it loads, its engine fails, then the API server, and only that one is a child whose exit
code the agent hears. The first death is the one worth telling.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import struct
from dataclasses import dataclass
from pathlib import Path

import psutil

from afd.agent.exits import describe_exit
from afd.agent.leftovers import runs
from afd.control.events import happens

_VLLM = "VLLM::"
_OURS = (_VLLM, "afd::")
"""How the processes of a role call themselves. Compilers and such come and go, and may fail."""
_GET_INFO = 0xC040FF0B
"""The ioctl PIDFD_GET_INFO of linux/pidfd.h, with the first version of its structure."""
_INFO_BYTES, _INFO_EXIT, _EXIT_CODE_AT = 64, 1 << 3, 60
"""Of that structure: its size, the bit that asks for the status of a process that is gone, and where that is."""


@dataclass(frozen=True)
class Death:
    """``name`` as in "VLLM::Worker (process 12)"; ``code`` as in subprocess, None when the kernel forgot it already."""

    pid: int
    name: str
    code: int | None
    lasting: bool = False
    """Whether it was seen under this name before: a process that is forked to run another program has its parent's."""

    @property
    def unexplained(self) -> bool:
        """Whether one that should last has ended, and its parent took its exit code along."""
        return self.code is None and self.lasting and self.name.startswith(_VLLM)

    @property
    def violent(self) -> bool:
        """Whether it was killed or crashed, and not just told to end by its parent: it has no last words."""
        return self.code is not None and self.code < 0 and -self.code not in (signal.SIGTERM, signal.SIGINT)

    def __str__(self) -> str:
        return f"{self.name} {'was killed or crashed' if self.code is None else describe_exit(self.code)}"


@dataclass(frozen=True)
class _Watched:
    process: psutil.Process
    name: str
    parent: int
    lasting: bool
    own: bool
    """Whether the name is its own. One with its parent's name may be a helper, which ends as it likes."""


class Deaths:
    """Hears of each watched process when it ends. Belongs to the event loop."""

    def __init__(self) -> None:
        self._watched: dict[int, _Watched] = {}
        self._descriptors: dict[psutil.Process, int] = {}
        self._first: Death | None = None
        self._changed = asyncio.Event()
        self._closed = False

    def watch(self, process: psutil.Process, name: str, parent: int) -> None:
        """Hear of the end of ``process``, a child of ``parent``. Called again, it takes over the name."""
        if name.startswith(_OURS):
            above = self._watched.get(parent)
            self._watch(process, name, parent, own=above is None or _title(name) != _title(above.name))

    def _watch(self, process: psutil.Process, name: str, parent: int, own: bool) -> None:
        if self._closed or (process not in self._descriptors and not self._hear(process)):
            return
        before = self._watched.get(process.pid)
        lasting = before is not None and (before.process, before.name) == (process, name)
        self._watched[process.pid] = _Watched(process, name, parent, lasting, own)

    def _hear(self, process: psutil.Process) -> bool:
        """Hear of the end of ``process``, unless there is no such call here; False when it is gone already."""
        try:
            descriptor = os.pidfd_open(process.pid)
        except ProcessLookupError:
            return False
        except (
            OSError,
            AttributeError,
        ):  # a sandbox or a Python without it: who is whose child is known all the same
            return process.is_running()
        if not process.is_running():  # somebody else has its number now
            os.close(descriptor)
            return False
        self._descriptors[process] = descriptor
        asyncio.get_running_loop().add_reader(descriptor, self._on_end, process)
        return True

    def meet(self, process: psutil.Process, above: str, parent: int) -> None:
        """Hear of the end of a process that was just forked from one named ``above``, and has no name yet."""
        if process.pid not in self._watched or self._watched[process.pid].process != process:
            name = f"a process forked from {above} (process {process.pid})"
            self._watch(process, name, parent, own=False)

    def is_below(self, pid: int, above: int) -> bool:
        """Whether process ``pid`` was forked from ``above``, or from one that was, as far as both were watched."""
        while (watched := self._watched.get(pid)) is not None:
            pid = watched.parent
            if pid == above:
                return True
        return False

    @property
    def first(self) -> Death | None:
        """The first that was no success."""
        return self._first

    async def wait(self, timeout_s: float | None) -> Death | None:
        """The first that was no success; waits for it at most ``timeout_s``, or for ever."""
        return self._first if await happens(self._changed, timeout_s) else None

    def close(self) -> None:
        self._closed = True
        for process in list(self._descriptors):
            self._forget(process)

    def _on_end(self, process: psutil.Process) -> None:
        code = _exit_code(process.pid, self._descriptors[process])
        self._forget(process)
        watched = self._watched[process.pid]
        death = Death(process.pid, watched.name, code, watched.lasting)
        if code != 0 and self._first is None and (watched.own or death.violent):
            self._first = self._topmost(death)
            self._changed.set()

    def _topmost(self, death: Death) -> Death:
        """``death``, or that of a parent that was killed: the kernel kills its children before all of its threads are
        gone, and only then tells of it."""
        above = self._watched.get(self._watched[death.pid].parent)
        while above is not None:
            descriptor = self._descriptors.get(above.process)
            code = None if runs(above.process) else _exit_code(above.process.pid, descriptor)
            if code is not None and code < 0:
                death = Death(above.process.pid, above.name, code)
            above = self._watched.get(above.parent)
        return death

    def _forget(self, process: psutil.Process) -> None:
        descriptor = self._descriptors.pop(process)
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)


def _title(name: str) -> str:
    """ "VLLM::Worker" of "VLLM::Worker (process 12)"."""
    return name.partition(" (process ")[0]


def _exit_code(pid: int, descriptor: int | None) -> int | None:
    """The exit code of a process that has ended, negative for a signal; None when nobody knows it any more.

    While nobody has waited for it, its entry in /proc says so. Later only a ``descriptor`` that was opened before does,
    and that since Linux 6.15.
    """
    try:
        # The name in brackets may hold anything; the fields after it are numbers. Field 52 is the status.
        fields = (
            Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        )
        status = int(fields[49]) if fields[0] == "Z" else None
    except OSError:
        status = None if descriptor is None else _status_of_the_gone(descriptor)
    return None if status is None else os.waitstatus_to_exitcode(status)


def _status_of_the_gone(descriptor: int) -> int | None:
    info = bytearray(_INFO_BYTES)
    struct.pack_into("Q", info, 0, _INFO_EXIT)
    try:
        fcntl.ioctl(descriptor, _GET_INFO, info)
    except OSError:  # an older kernel
        return None
    known: int = struct.unpack_from("Q", info, 0)[0]
    status: int = struct.unpack_from("i", info, _EXIT_CODE_AT)[0]
    return status if known & _INFO_EXIT else None
