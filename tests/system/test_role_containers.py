# SPDX-License-Identifier: Apache-2.0
"""One role under each entry point, as in a container for each role."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from afd.testing.completions import Answer, Question
from afd.testing.stack import Group
from afd.topology import Role
from tests.system.conftest import Groups
from tests.system.rig import STREAMED, Client, Traces, decoding, differences, ends, start

ENTRY = ("-m", "afd.container.entrypoint")
pytestmark = pytest.mark.timeout(240)


def entered(groups: Groups, directory: Path) -> Group:
    """Both roles, each as the child of an entry point of its own."""
    group = groups(
        programs=dict.fromkeys(Role, ENTRY),
        environments={role: {"AFD_RUN_DIR": str(directory / f"run-{role}")} for role in Role},
    )
    start(group)
    return group


def test_each_container_serves_answers_its_health_check_and_stops_with_0(
    groups: Groups, proofs: Callable[[str], tuple[list[Question], list[Answer]]], tmp_path: Path
) -> None:
    group = entered(groups, tmp_path)
    assert differences(group.attention.api_url, *proofs("v2")) == []
    for role in Role:
        checked = subprocess.run(
            [sys.executable, "-m", "afd.container.healthcheck", "--ready"],
            env={"AFD_RUN_DIR": str(tmp_path / f"run-{role}")},
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert (checked.returncode, checked.stdout) == (0, f"healthy: {role}: ready\n")
    traces = Traces.of(group)
    assert group.stop() == {Role.FFN: 0, Role.ATTENTION: 0}
    assert traces.left_after(1.0) == []
    assert not list(tmp_path.glob("run-*"))


def test_an_agent_that_is_killed_ends_its_container_with_137_and_the_other_with_70(
    groups: Groups, tmp_path: Path
) -> None:
    group = entered(groups, tmp_path)
    client = Client(group.attention.api_url, (STREAMED,)).start()
    decoding(group.attention)
    (agent,) = psutil.Process(group.ffn.process.pid).children()
    traces = Traces.of(group)
    at = time.monotonic()
    agent.kill()
    found = ends(group, at)
    client.join(5)
    assert found.codes == {Role.FFN: 128 + signal.SIGKILL, Role.ATTENTION: 70}
    assert re.search(r"F0: its agent \(pid \d+ on ", group.attention.error())
    assert traces.left_after(2.0) == []
