# SPDX-License-Identifier: Apache-2.0
"""No thread of an agent is asked for a signal, and none keeps it from ending."""

from __future__ import annotations

import asyncio
import signal
import threading
import time

import pytest

from afd.agent.threads import Calls, block_signals, start_thread, unblock_signals


def test_a_thread_gets_no_signal_and_the_one_that_started_it_gets_them_as_before() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    found: list[set[int]] = []
    thread = start_thread(lambda: found.append({*signal.pthread_sigmask(signal.SIG_BLOCK, ())}), "a test")
    thread.join(10)
    assert found and {signal.SIGTERM, signal.SIGINT} <= found[0]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_signals_that_were_kept_back_arrive_when_they_are_let_through() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, _: heard.append(number))
    try:
        block_signals()
        signal.raise_signal(signal.SIGHUP)
        assert heard == []
        unblock_signals()
        assert heard == [signal.SIGHUP]
    finally:
        unblock_signals()
        signal.signal(signal.SIGHUP, before)


def test_a_loop_ends_although_a_call_hangs() -> None:
    hanging = threading.Event()

    async def work() -> str:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(Calls())
        call = asyncio.ensure_future(asyncio.to_thread(hanging.wait, 30))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(call, 0.1)
        with pytest.raises(ValueError, match="as the test asked"):
            await asyncio.to_thread(_raise)
        return await asyncio.to_thread(str, 7)

    started = time.monotonic()
    assert asyncio.run(work()) == "7"
    assert time.monotonic() - started < 10
    hanging.set()


def _raise() -> None:
    raise ValueError("as the test asked")
