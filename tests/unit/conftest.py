# SPDX-License-Identifier: Apache-2.0
"""A launcher that has imported nothing but torch: real forks, without the seconds that vLLM's import takes."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from afd.agent.launcher import start_launcher
from tests.unit.launch.forks import environment, wait_until


@pytest.fixture(scope="session")
def launcher_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The socket of the launcher."""
    path = str(tmp_path_factory.mktemp("launcher") / "socket")
    process = start_launcher(path, environment(), modules=("torch",))
    try:
        wait_until(lambda: os.path.exists(path) or process.poll() is not None, "the launcher listens", 60.0)
        assert process.poll() is None
        yield path
    finally:
        process.kill()
        process.wait()
