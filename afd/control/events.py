# SPDX-License-Identifier: Apache-2.0
"""Waiting for an event in asyncio, with a deadline, and without losing a cancellation."""

from __future__ import annotations

import asyncio


async def happens(event: asyncio.Event, timeout_s: float | None) -> bool:
    """Whether ``event`` is set within ``timeout_s`` seconds (None: wait for ever).

    Before Python 3.12 ``asyncio.wait_for`` swallows a cancellation that comes together with the event. A loop around it
    would then go on for ever, and the stop that was asked for would never come.
    """
    waiting = asyncio.ensure_future(event.wait())
    try:
        done, _ = await asyncio.wait({waiting}, timeout=timeout_s)
        return bool(done)
    finally:
        waiting.cancel()
