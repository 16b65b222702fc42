# SPDX-License-Identifier: Apache-2.0
"""A phase of a start that goes on is told again, with what the peers do meanwhile."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from afd.agent.progress import Progress
from afd.topology import Role
from tests.unit.agent.plans import planned
from tests.unit.control.agents import Agents, until


def test_a_phase_that_goes_on_is_told_again_with_the_states_of_the_peers(
    checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="afd.agent.progress")

    async def work() -> None:
        async with Agents() as agents:
            ffn, attention = await agents.pair()
            progress = Progress(planned(checkpoint, Role.FFN), tell_s=0.02)
            telling = asyncio.create_task(progress.keep_telling())
            await asyncio.sleep(0.1)
            assert caplog.messages == []  # the rendezvous tells by itself whom it waits for
            progress.joined(ffn)
            attention.set_state("loading")
            await until(lambda: "still importing vLLM after 0 s; A0 is loading" in caplog.messages)
            progress.imported()
            progress.loaded()
            await until(lambda: any(m.startswith("still waiting for Attention") for m in caplog.messages))
            progress.ready(9300)
            told = len(caplog.messages)
            assert "agent at http://127.0.0.1:9300, 1 Attention rank" in caplog.messages[-1]
            await asyncio.sleep(0.1)
            assert len(caplog.messages) == told
            telling.cancel()

    asyncio.run(asyncio.wait_for(work(), 30))
