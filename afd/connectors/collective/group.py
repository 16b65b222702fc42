# SPDX-License-Identifier: Apache-2.0
"""A process group for sends and receives, on this process's own terms.

It is made directly, not through ``torch.distributed.init_process_group`` or ``new_group``: those belong to vLLM, and
neither its default group nor any other learns of this one. Making it waits for the other members in C++, so that is
done in a thread of its own, which an abort leaves behind.

Gloo has three habits that decide what stands here. A wait that has begun can be woken by nothing but its own deadline
or a broken connection, so :meth:`Group.wake` breaks the connections: a receive with a deadline of a millisecond
fails all that wait in the same group at once. It never recovers, and it needs not to, because the epoch ends. Second,
one thread of Gloo's own moves the bytes: made by a thread that OpenMP has bound to one core it would fight for it with
the model. Third, a message longer than the buffer posted for it ends the process (see ``message``).
"""

from __future__ import annotations

import contextlib
import datetime
import os
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed

from afd.connectors.collective.meeting import Meeting
from afd.control.abort import Abort
from afd.errors import ClosedError, PeerLostError, ResourceError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import Work

# The stubs of torch.distributed leave out most of what is used here.
_Gloo: Any = torch.distributed.ProcessGroupGloo
PUBLISH_S = 10.0
"""How long a group may take to listen."""
CONNECT_S = 10.0
"""How long members that have all published may take to connect."""
LEAVE_S = 0.5
"""How long closing waits for the thread that makes the group, which a peer that never connects may hold longer."""
ROWS_TAG, WAKE_TAG = 0, 1
_AT_ONCE = datetime.timedelta(milliseconds=1)


def open_device(host: str) -> Any:
    """What the groups of one end share: a thread that moves bytes, and sockets at address ``host`` of this machine.

    Raises :class:`ResourceError` when this machine has no such address.
    """
    with _on_all_cores():
        try:
            return _Gloo.create_device(hostname=host)
        except RuntimeError as error:
            raise ResourceError(
                f"transport collective cannot listen on {host}: {_first_line(error)}"
            ) from error


@contextlib.contextmanager
def _on_all_cores() -> Iterator[None]:
    """Inside the block new threads may use every core that some thread of this process may use."""
    own = os.sched_getaffinity(0)
    everywhere = set(own)
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):
            everywhere |= os.sched_getaffinity(int(thread))
    os.sched_setaffinity(0, everywhere)
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


class Group:
    """Member ``index`` of ``size`` of one group. Make it, publish what it says, bring what the others said, join.

    After :meth:`join` sends and receives may be posted; any thread may :meth:`wake` or :meth:`close` at any time.
    """

    def __init__(self, device: Any, index: int, size: int) -> None:
        self.index, self.size = index, size
        self.closed = False
        self._meeting = Meeting()
        self._scratch = torch.zeros(1, dtype=torch.uint8)
        self._made = threading.Event()
        self._group: Any = None
        self._error: BaseException | None = None
        options = _Gloo._Options()
        options._devices = [device]
        options._threads = 1  # for collectives only, of which there are none
        options._timeout = datetime.timedelta(seconds=CONNECT_S)
        self._thread = threading.Thread(target=self._make, args=(options,), name="afd-connect", daemon=True)
        self._thread.start()

    def _make(self, options: Any) -> None:
        try:
            self._group = _Gloo(self._meeting, self.index, self.size, options)
        except BaseException as error:  # noqa: BLE001 - join() raises it in the thread that asked
            self._error = error
            self._meeting.end(f"the group was not made: {_first_line(error)}")
        self._made.set()

    def published(self) -> Mapping[str, bytes]:
        """What the others need to find this member. Raises :class:`ResourceError` when it cannot listen."""
        try:
            found = self._meeting.published(PUBLISH_S)
        except ClosedError as error:
            raise ResourceError(f"transport collective cannot listen: {error}") from self._error
        if found is None:
            raise ResourceError(f"transport collective did not listen within {PUBLISH_S:g} s")
        return found

    def bring(self, values: Mapping[str, bytes]) -> None:
        """What the others published."""
        self._meeting.bring(values)

    def join(self, abort: Abort, who: str) -> None:
        """Wait until all members are connected. Raises the cause of an abort, :class:`ClosedError` after
        :meth:`close`, :class:`PeerLostError` when a member of ``who`` does not connect."""
        unsubscribe = abort.subscribe(self._made.set)
        try:
            self._made.wait(CONNECT_S + 1.0)
        finally:
            unsubscribe()
        abort.check()
        if self.closed:
            raise ClosedError("the link was closed while it connected")
        if self._group is None:
            detail = f": {_first_line(self._error)}" if self._error is not None else ""
            raise PeerLostError(f"{who} did not connect within {CONNECT_S:g} s{detail}") from self._error

    def send(self, tensor: Tensor, to: int) -> Work:
        """Post a send. ``tensor`` (contiguous bytes) must stay as it is until the work is waited for. Raises
        RuntimeError when the connection is broken."""
        work: Work = self._open_group().send([tensor], to, ROWS_TAG)
        return work

    def receive(self, tensor: Tensor, source: int) -> Work:
        """Post a receive of at most the bytes of ``tensor``. Raises RuntimeError when the connection is broken."""
        work: Work = self._open_group().recv([tensor], source, ROWS_TAG)
        return work

    def _open_group(self) -> Any:
        group = self._group
        if group is None:
            raise RuntimeError("the group is closed")
        return group

    def wake(self) -> None:
        """End every wait of this process in this group with an error, now and from now on."""
        group = self._group
        if group is not None:
            # The error is the aim.
            with contextlib.suppress(RuntimeError):
                group.recv([self._scratch], (self.index + 1) % self.size, WAKE_TAG).wait(_AT_ONCE)

    def close(self) -> None:
        """Wake what waits, and give everything back once the last work is dropped. Twice is fine."""
        self.closed = True
        self._meeting.end("the link was closed")
        self.wake()
        self._made.set()
        self._group = None
        self._thread.join(LEAVE_S)
        self._error = None  # its traceback would keep everything until the next garbage collection


def _first_line(error: BaseException | None) -> str:
    return str(error).strip().partition("\n")[0]
