# SPDX-License-Identifier: Apache-2.0
"""A machine that runs out of shared memory, and a network that loses everything: both roles end and say why."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.system.conftest import ROOT

HEARTBEAT_S = 0.66
"""The default of timeouts.heartbeat_s."""
UNSHARE = ("unshare", "--mount", "--net", "--map-root-user")
LEAVE_OUT = 'leave these tests out with -m "not isolated"'

pytestmark = pytest.mark.isolated


def isolated(deed: str, directory: Path) -> dict[str, Any]:
    """Run :mod:`tests.system.isolated` in namespaces of its own."""
    missing = [tool for tool in ("unshare", "ip", "mount") if shutil.which(tool) is None]
    assert missing == [], f"not installed: {', '.join(missing)}; {LEAVE_OUT}"
    probe = subprocess.run(
        [*UNSHARE, "ip", "link", "set", "lo", "up"], capture_output=True, text=True, timeout=30
    )
    assert probe.returncode == 0, f"no namespaces for this user: {probe.stderr.strip()}; {LEAVE_OUT}"
    done = subprocess.run(
        [*UNSHARE, sys.executable, "-m", "tests.system.isolated", deed, str(directory)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(f"\n{deed}: {found}")
    return found


@pytest.mark.timeout(200)
def test_shared_memory_that_is_full_while_serving_is_named_as_the_likely_cause(tmp_path: Path) -> None:
    found = isolated("fill", tmp_path)
    assert found["codes"] == {"ffn": 70, "attention": 71}
    assert "was killed by SIGBUS (a full /dev/shm does that; see afd doctor)" in found["errors"]["ffn"]
    assert found["errors"]["ffn"] == found["errors"]["attention"]
    assert found["left"] == []


@pytest.mark.timeout(200)
def test_a_network_that_loses_every_packet_ends_both_roles_by_the_silence_of_the_other(
    tmp_path: Path,
) -> None:
    found = isolated("cut", tmp_path)
    assert found["codes"] == {"ffn": 70, "attention": 70}
    assert found["seconds"] < 3 * HEARTBEAT_S + 2
    assert "A0: its agent" in found["errors"]["ffn"] and "F0: its agent" in found["errors"]["attention"]
    assert all("gave no sign of life" in words for words in found["errors"].values())
    assert found["left"] == []
