# SPDX-License-Identifier: Apache-2.0
"""What a signal does to a run, before and while it ends."""

from __future__ import annotations

import os
import signal

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
