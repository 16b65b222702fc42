# SPDX-License-Identifier: Apache-2.0
"""The end of a reference, with a small function in vLLM's place."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

import pytest

from afd.testing.reference import Reference
from afd.testing.stack import Layout
from afd.topology import Topology
from tests.unit.agent.plans import small_model
from tests.unit.launch.forks import gone, wait_until


def test_an_end_that_is_cut_short_leaves_no_process_and_no_directory_of_sockets(
    tmp_path: Path, launcher_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Short enough for sockets, and of this test only.
    with tempfile.TemporaryDirectory(prefix="afd-test-", dir="/tmp") as temporary:
        monkeypatch.setenv("TMPDIR", temporary)
        monkeypatch.setattr(tempfile, "tempdir", None)
        chosen = Layout(str(small_model(tmp_path)), "v2", Topology(1, 1), ("--dtype", "float32"))

        async def cut_short() -> int:
            target = "tests.unit.launch.targets:wait"
            reference = await Reference.start(chosen, tmp_path, launcher_path, target=target)
            assert len(os.listdir(temporary)) == 1
            closing = asyncio.create_task(reference.close())
            await asyncio.sleep(0)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            assert os.listdir(temporary) == []
            return reference.pid

        pid = asyncio.run(cut_short())
        wait_until(lambda: gone(pid), "it is gone")
