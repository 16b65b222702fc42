# SPDX-License-Identifier: Apache-2.0
"""Rank processes for tests: real processes that exchange values, can be killed and can be told of it.

:func:`run_ranks` plays the part of the agents: it gathers what ranks offer, ends a rank with SIGKILL when another rank
asks for it and, if it shall, tells the survivors through their :class:`afd.control.abort.Abort`.
"""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

from afd.control.abort import Abort, Cause
from afd.topology import Rank, Topology

_PRELOAD = ("torch", "afd.testing.conformance", "pytest")
"""Imported once by the server that rank processes are forked from; what is not installed is skipped."""

_EXCHANGE_S = 20.0


class RankContext:
    """What a rank's body may use. ``abort`` is told of lost ranks; ``exchange`` gathers one value per rank."""

    def __init__(self, rank: Rank, connection: Connection) -> None:
        self.rank = rank
        self.abort = Abort()
        self.told_at = 0.0
        self._connection = connection
        self._gathered: queue.Queue[tuple[str, Mapping[str, Any]]] = queue.Queue()
        threading.Thread(target=self._listen, name="ranks", daemon=True).start()

    def exchange(self, key: str, value: Any, /) -> Mapping[str, Any]:
        """Offer ``value`` and return ``{"A0": …, "F0": …}`` when all ranks have. A key may be used again."""
        self._connection.send(("offer", key, value))
        found, values = self._gathered.get(timeout=_EXCHANGE_S)
        if found != key:
            raise AssertionError(f"{self.rank} offered {key} while others offered {found}")
        return values

    def lose(self, rank: str, *, told: bool, after_s: float, stopped: bool = False) -> None:
        """Have ``rank`` killed (or just ``stopped``) ``after_s`` from now, and all others told right after that if
        ``told``."""
        self._connection.send(("lose", rank, (told, after_s, stopped)))

    def sleep_for_ever(self) -> None:
        """Do nothing until killed."""
        signal.pause()

    def _listen(self) -> None:
        try:
            while True:
                kind, key, value = self._connection.recv()
                if kind == "gathered":
                    self._gathered.put((key, value))
                else:
                    self.told_at = time.monotonic()
                    self.abort.trigger(value)
        except EOFError:
            return


def _fork_server() -> ForkServerContext:
    """The context to start rank processes with: forked from a process that has no threads and has imported torch."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOAD))
    # The server imports with its own sys.path, which is not that of a test runner started in a checkout.
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    return context


Body = Callable[[RankContext], None]


def _main(rank: Rank, connection: Connection, body: Body, limit_s: float) -> None:
    faulthandler.dump_traceback_later(limit_s, exit=True)
    gc.freeze()  # what the server has imported is not ours to collect, and looking at it takes 0.1 s each time
    try:
        body(RankContext(rank, connection))
    except BaseException:  # noqa: BLE001 - whatever it is, the parent raises it
        connection.send(("failed", "", traceback.format_exc()))
    else:
        connection.send(("done", "", None))
    # The parent reads this and ends the process: no exit handler of any library takes part in a test.
    connection.close()
    os._exit(0)


def run_ranks(topology: Topology, body: Body, *, limit_s: float = 30.0) -> None:
    """Run ``body`` (picklable) once per rank, each in its own process, until all have returned or were killed.

    Raises :class:`AssertionError` with the traceback of a rank whose body raised, or the names of the ranks that
    were not done after ``limit_s`` (their stacks are on stderr).
    """
    context = _fork_server()
    processes: dict[str, ForkServerProcess] = {}
    connections: dict[Connection, str] = {}
    try:
        for rank in topology.ranks:
            ours, theirs = context.Pipe()
            process = context.Process(target=_main, args=(rank, theirs, body, limit_s), daemon=True)
            process.start()
            theirs.close()
            processes[str(rank)] = process
            connections[ours] = str(rank)
        _conduct(processes, connections, time.monotonic() + limit_s)
    finally:
        for connection in connections:
            connection.close()
        for process in processes.values():
            if process.is_alive():
                process.kill()
            process.join()
            process.close()


def _lose(process: ForkServerProcess, stopped: bool) -> None:
    if stopped:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
    else:
        process.kill()
        process.join()


def _conduct(
    processes: Mapping[str, ForkServerProcess], connections: Mapping[Connection, str], deadline: float
) -> None:
    open_ones = dict(connections)
    gathered: dict[str, dict[str, Any]] = {}
    killed: set[str] = set()
    done: set[str] = set()
    failures: list[str] = []
    while len(done | killed) < len(processes) and not failures:
        ready = wait(list(open_ones), timeout=deadline - time.monotonic())
        if not ready:
            missing = sorted(set(processes) - done - killed)
            raise AssertionError(f"not done in time: {', '.join(missing)}")
        for connection in ready:
            assert isinstance(connection, Connection)
            rank = open_ones[connection]
            try:
                kind, key, value = connection.recv()
            except (EOFError, ConnectionResetError):
                del open_ones[connection]
                if rank not in done | killed:
                    failures.append(f"{rank} died")
                continue
            if kind == "offer":
                values = gathered.setdefault(key, {})
                values[rank] = value
                if len(values) == len(processes):
                    del gathered[key]
                    for one in open_ones:
                        one.send(("gathered", key, values))
            elif kind == "lose":
                told, after_s, stopped = value
                time.sleep(after_s)
                killed.add(key)
                _lose(processes[key], stopped)
                cause = Cause("PeerLostError", "was killed", rank=key)
                for one, name in open_ones.items():
                    if told and name not in killed:
                        one.send(("abort", "", cause))
            elif kind == "done":
                done.add(rank)
            else:
                failures.append(f"{rank} failed:\n{value}")
    if failures:
        raise AssertionError("\n".join(failures))
