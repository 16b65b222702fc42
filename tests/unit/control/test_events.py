# SPDX-License-Identifier: Apache-2.0
"""A wait for an event ends with it, at its deadline, or by a cancellation, which is never lost."""

from __future__ import annotations

import asyncio

import pytest

from afd.control.events import happens


def test_an_event_is_seen_and_a_deadline_is_kept() -> None:
    async def work() -> None:
        event = asyncio.Event()
        assert not await happens(event, 0.02)
        asyncio.get_running_loop().call_later(0.02, event.set)
        assert await happens(event, 5.0)
        assert await happens(event, None)
        assert len(asyncio.all_tasks()) == 1, "a wait leaves no task behind"

    asyncio.run(work())


@pytest.mark.parametrize("turns", range(5))
def test_a_cancellation_that_comes_together_with_the_event_is_not_lost(turns: int) -> None:
    async def work() -> None:
        event = asyncio.Event()
        waiting = asyncio.create_task(happens(event, 5.0))
        await asyncio.sleep(0.02)
        event.set()
        for _ in range(turns):  # of the loop, until the one who waits has heard of it
            await asyncio.sleep(0)
        if waiting.cancel():
            with pytest.raises(asyncio.CancelledError):
                await waiting

    asyncio.run(work())
