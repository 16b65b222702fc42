# SPDX-License-Identifier: Apache-2.0
"""``afd doctor`` on this machine and on trees; the checks themselves are tested in tests/unit/doctor."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from afd.agent import plan
from afd.cli import doctor
from afd.cli.main import run
from afd.doctor.check import FAIL, OK, SKIP, WARN
from afd.doctor.table import CHECKS
from afd.launch.free_ports import free_port
from afd.observe import server
from tests.unit.doctor.roots import UID, Root

NO_IMPORTS = """
import sys
from afd.cli.main import run
code = run(["doctor", "--json", *sys.argv[1:]])
found = sorted({"torch", "vllm", "transformers", "triton"} & set(sys.modules))
sys.exit(f"imported {found}" if found else 100 + code)
"""


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = run(["doctor", "--json", *arguments])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, {check["name"]: check for check in found["checks"]}


@pytest.fixture
def free_ports() -> list[str]:
    """Flags with three ports that nobody listens on."""
    flags = ("--afd-port", "--agent-port", "--api-port")
    return [word for flag in flags for word in (flag, str(free_port()))]


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        yield int(found.getsockname()[1])


def test_this_environment_is_as_pinned(capsys: pytest.CaptureFixture[str], free_ports: list[str]) -> None:
    code, found = report(capsys, *free_ports)
    for name in (
        "system",
        "python",
        "vllm",
        "torch",
        "excluded",
        "conflicts",
        "rendezvous-port",
        "agent-port",
        "api-port",
    ):
        assert found[name]["status"] == OK, found[name]
    assert len(found) == len(CHECKS)
    assert code == (2 if any(check["status"] == FAIL for check in found.values()) else 0)


def test_every_complaint_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    _, found = report(capsys, "--afd-host", "no such host")
    complaints = [check for check in found.values() if check["status"] in (WARN, FAIL)]
    assert all(check["remedy"] and check["expected"] for check in complaints)
    assert found["config"]["status"] == FAIL


def test_a_port_in_use_is_named_with_its_owner_and_the_exit_code_is_two(
    capsys: pytest.CaptureFixture[str], free_ports: list[str], taken: int
) -> None:
    code, found = report(capsys, *free_ports, "--agent-port", str(taken))
    assert code == 2
    assert found["agent-port"]["status"] == FAIL
    assert f"in use by pid {os.getpid()}" in found["agent-port"]["found"]


def test_on_cpu_devices_are_skipped_and_never_called_ok(capsys: pytest.CaptureFixture[str]) -> None:
    _, found = report(capsys, "--only", "device")
    assert {check["status"] for check in found.values()} == {SKIP} and "npu" in found


def test_nothing_heavy_is_imported_by_the_doctor_itself(tmp_path: Path) -> None:
    root = Root(tmp_path, "a3")
    for arguments in ([], ["--root", str(root.root)], ["--only", "import-torch"]):
        done = subprocess.run(
            [sys.executable, "-c", NO_IMPORTS, *arguments], capture_output=True, text=True, timeout=110
        )
        assert done.returncode in (100, 102), done.stderr


def test_a_tree_is_read_with_its_own_environment_and_user(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    root = Root(tmp_path, "a3")
    root.path("/dev/shm").chmod(0o1777)
    env = tmp_path / "env"
    env.write_text("# of the image\n\n" + "".join(f"{name}={value}\n" for name, value in root.env.items()))
    arguments = ["--root", str(root.root), "--env-file", str(env)]
    code, found = report(capsys, *arguments, "--uid", str(UID))
    assert found["manifest"]["status"] == found["operators-a2e"]["status"] == found["user"]["status"] == OK
    # The real /dev/shm of a tree is the disk it is on, and closed device nodes are seen as this user sees them.
    assert {n for n, c in found.items() if c["status"] == FAIL} <= {"shm", "device-nodes"}, found
    _, other = report(capsys, *arguments, "--uid", "54321", "--only", "user", "--only", "device-nodes")
    assert {name: check["status"] for name, check in other.items()} == {"user": FAIL, "device-nodes": FAIL}
    _, bare = report(capsys, "--root", str(root.root), "--only", "cann-environment")
    assert "ASCEND_HOME_PATH is not set" in bare["cann-environment"]["found"]
    assert code in (0, 2)


def test_warnings_count_only_when_it_is_strict(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    root = Root(tmp_path, "cpu")
    root.write("/dev/shm/afd-left", "")
    arguments = ["--root", str(root.root), "--only", "leftovers"]
    assert report(capsys, *arguments)[0] == 0
    assert report(capsys, *arguments, "--strict")[0] == 1


@pytest.mark.parametrize("word", ["AFD-HOST-004", "afd-host-004", "shm"])
def test_one_check_may_be_asked_for(capsys: pytest.CaptureFixture[str], word: str) -> None:
    _, found = report(capsys, "--only", word)
    assert list(found) == ["shm"] and found["shm"]["id"] == "AFD-HOST-004"


def test_a_check_that_does_not_exist_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--only", "AFD-HOST-999"]) == 64
    assert "there is no check 'AFD-HOST-999'" in capsys.readouterr().err


def test_the_list_names_every_check_and_does_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [check.id for check in CHECKS]


def test_an_environment_file_with_anything_else_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "env").write_text("A=1\nexport B\n")
    assert run(["doctor", "--env-file", str(tmp_path / "env")]) == 64
    assert "env:2: 'export B' is not NAME=VALUE" in capsys.readouterr().err


def test_the_ports_it_looks_at_are_those_that_roles_use() -> None:
    assert (doctor.AGENT_PORT, doctor.API_PORT) == (server.PORT, plan.API_PORT)
