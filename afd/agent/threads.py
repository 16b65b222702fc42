# SPDX-License-Identifier: Apache-2.0
"""Threads of an agent: nobody waits for their end, and signals are not theirs.

A signal to the process goes to any thread that does not block it, so what the main thread blocks in its last moments
every other thread must have blocked before. And a name server that does not answer must not keep a role from ending.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

_T = TypeVar("_T")
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""The signals that stop a role."""


def block_signals() -> set[int | signal.Signals]:
    """None of :data:`ENDING` for the calling thread, nor for those that it starts from here on. Returns what was
    blocked before."""
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, ENDING))


def unblock_signals() -> None:
    """Let :data:`ENDING` through to the calling thread, those that have waited first."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Threads that are started inside the block get no signals. For imports of libraries that start some."""
    before = block_signals()
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_thread(target: Callable[[], object], name: str) -> threading.Thread:
    """Run ``target`` in a daemon thread that gets no signals."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    with signals_blocked():  # it inherits them; blocking its own would leave a moment
        thread.start()
    return thread


class Calls(ThreadPoolExecutor):
    """An executor for an event loop, with a thread for each call. Its end does not wait for calls that hang."""

    def submit(self, fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> Future[_T]:
        future: Future[_T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 (it is the waiting side's)
                future.set_exception(error)
            else:
                future.set_result(result)

        start_thread(run, "afd-call")
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait=False, cancel_futures=cancel_futures)
