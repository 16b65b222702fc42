# SPDX-License-Identifier: Apache-2.0
"""A machine that runs out of shared memory, a network that loses everything, and two hosts instead of one."""

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
ENDED_S = 3 * HEARTBEAT_S + 5.0
"""From a cut to the exit: three heartbeats without a sign of life, then timeouts.grace_s for requests and processes."""
UNSHARE = ("unshare", "--mount", "--net", "--map-root-user")
LEAVE_OUT = 'leave these tests out with -m "not isolated"'

pytestmark = pytest.mark.isolated


def isolated(module: str, *arguments: object, timeout_s: float = 150) -> dict[str, Any]:
    """Run a module of this directory in namespaces of its own, and return what it prints last."""
    missing = [tool for tool in ("unshare", "ip", "mount", "ss") if shutil.which(tool) is None]
    assert missing == [], f"not installed: {', '.join(missing)}; {LEAVE_OUT}"
    probe = subprocess.run(
        [*UNSHARE, "ip", "link", "set", "lo", "up"], capture_output=True, text=True, timeout=30
    )
    assert probe.returncode == 0, f"no namespaces for this user: {probe.stderr.strip()}; {LEAVE_OUT}"
    done = subprocess.run(
        [*UNSHARE, sys.executable, "-m", f"tests.system.{module}", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(f"\n{module} {arguments[:-1]}: {found}")
    return found


@pytest.mark.timeout(200)
def test_shared_memory_that_is_full_while_serving_is_named_as_the_likely_cause(tmp_path: Path) -> None:
    found = isolated("isolated", "fill", tmp_path)
    assert found["codes"] == {"ffn": 70, "attention": 71}
    assert "was killed by SIGBUS (a full /dev/shm does that; see afd doctor)" in found["errors"]["ffn"]
    assert found["errors"]["ffn"] == found["errors"]["attention"]
    assert found["left"] == []


@pytest.mark.timeout(200)
def test_a_network_that_loses_every_packet_ends_both_roles_by_the_silence_of_the_other(
    tmp_path: Path,
) -> None:
    found = isolated("isolated", "cut", tmp_path)
    assert found["codes"] == {"ffn": 70, "attention": 70}
    assert found["seconds"] < ENDED_S
    assert "A0: its agent" in found["errors"]["ffn"] and "F0: its agent" in found["errors"]["attention"]
    assert all("gave no sign of life" in words for words in found["errors"].values())
    assert found["left"] == []


@pytest.mark.timeout(420)
def test_two_hosts_without_common_memory_serve_native_tokens(tmp_path: Path) -> None:
    found = isolated("two_hosts", "near", "stop", tmp_path, timeout_s=400)
    for side, address in (("ffn", "10.77.0.1"), ("attention", "10.77.0.2")):
        assert (found[side]["code"], found[side]["error"]) == (0, "")
        assert found[side]["transport"] == "collective"
        assert (
            "transport collective: not all ranks are on one host with one /dev/shm" in found[side]["reason"]
        )
        assert address in found[side]["listening"]
        assert found[side]["left"] == []
    # vLLM's own store listens on all addresses of Attention's host; of AFD's nothing does.
    assert found["ffn"]["listening"] == ["10.77.0.1"]
    assert found["attention"]["tokens"] > 100
    assert found["attention"]["wrong"] == []


@pytest.mark.timeout(420)
def test_a_cable_that_is_cut_between_two_hosts_ends_both_roles(tmp_path: Path) -> None:
    found = isolated("two_hosts", "near", "cut", tmp_path, timeout_s=400)
    assert found["attention"]["wrong"] == []
    assert found["attention"]["seconds"] < ENDED_S
    assert (found["ffn"]["code"], found["attention"]["code"]) == (70, 70)
    assert "A0: its agent" in found["ffn"]["error"] and "F0: its agent" in found["attention"]["error"]
    assert found["ffn"]["left"] == found["attention"]["left"] == []


@pytest.mark.timeout(420)
def test_replicas_on_two_hosts_give_native_tokens_and_stop_together(tmp_path: Path) -> None:
    found = isolated("replicas_on_two_hosts", "near", "stop", tmp_path, timeout_s=400)
    assert found["tokens"] > 100
    assert found["wrong"] == []
    far = found["far"]
    assert (far["ranks"], far["state"], far["transport"]) == (["A1"], "ready", "collective")
    assert far["steps"] > found["tokens"]
    assert [(found[side]["code"], found[side]["error"]) for side in ("attention", "ffn", "far")] == [
        (0, "")
    ] * 3
    assert found["left"] == far["left"] == []


@pytest.mark.timeout(420)
def test_a_cable_that_is_cut_between_replicas_ends_all_agents(tmp_path: Path) -> None:
    found = isolated("replicas_on_two_hosts", "near", "cut", tmp_path, timeout_s=400)
    assert found["wrong"] == []
    far = found["far"]
    assert [found[side]["code"] for side in ("attention", "ffn", "far")] == [70, 70, 70]
    assert all(found[side]["seconds"] < ENDED_S for side in ("attention", "ffn", "far"))
    assert found["attention"]["error"] == found["ffn"]["error"]
    assert "A1: its agent" in found["ffn"]["error"] and "its agent" in far["error"]
    assert found["left"] == far["left"] == []
