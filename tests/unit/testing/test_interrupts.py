# SPDX-License-Identifier: Apache-2.0
"""What a signal does to a run, before and while it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import pytest

from afd.testing.interrupts import Interrupts


@pytest.mark.parametrize("number", Interrupts.NUMBERS)
def test_a_signal_interrupts_until_the_end_begins_and_is_noted_from_then_on(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
        interrupts.ending()
        assert not interrupts.again
        os.kill(os.getpid(), number)
        assert interrupts.again
    assert signal.getsignal(number) is before


def test_a_run_that_shall_survive_the_end_of_its_terminal_does() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", Interrupts.NUMBERS)
def test_a_signal_cancels_what_runs_and_the_interrupt_comes_when_it_has_ended(number: signal.Signals) -> None:
    ended: list[str] = []

    async def work() -> None:
        threading.Timer(0.1, os.kill, (os.getpid(), number)).start()
        try:
            await asyncio.sleep(20)
        finally:
            await asyncio.sleep(0.01)
            ended.append("in order")

    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt):
        interrupts.run(work())
    assert ended == ["in order"]


def test_a_signal_in_code_that_loses_exceptions_is_not_lost() -> None:
    class Careless:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    async def work() -> str:
        Careless()
        return "done"

    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt):
            interrupts.run(work())
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
        interrupts.take()
        interrupts.check()
        assert interrupts.run(asyncio.sleep(0, "done")) == "done"


def test_a_second_signal_hurries_what_the_first_one_has_begun_to_end_and_does_not_cut_it_off() -> None:
    ended: list[str] = []

    async def work(interrupts: Interrupts) -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(20)
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(0.05)
            ended.append(f"in order, again: {interrupts.again}")

    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt):
        interrupts.run(work(interrupts))
    assert ended == ["in order, again: True"]
