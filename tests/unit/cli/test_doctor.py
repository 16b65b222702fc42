# SPDX-License-Identifier: Apache-2.0
"""``afd doctor``: what it sees, and that every complaint says what to do."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from afd import pins
from afd.agent import plan, run_directory
from afd.cli import checks, doctor, packages
from afd.cli.checks import FAIL, OK, SKIP, WARN, Finding
from afd.cli.main import run
from afd.launch.free_ports import free_port
from afd.observe import server


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = run(["doctor", "--json", *arguments])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, {check["id"]: check for check in found["checks"]}


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
    _, found = report(capsys, *free_ports)
    for name in (
        "system",
        "python",
        "vllm",
        "torch",
        "excluded",
        "rendezvous-port",
        "agent-port",
        "api-port",
    ):
        assert found[name]["status"] == OK, found[name]


def test_every_complaint_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    _, found = report(capsys, "--afd-host", "no such host")
    assert all(check["remedy"] for check in found.values() if check["status"] in (WARN, FAIL))
    assert found["config"]["status"] == FAIL


def test_a_port_in_use_is_named_with_its_owner_and_fails(
    capsys: pytest.CaptureFixture[str], free_ports: list[str], taken: int
) -> None:
    code, found = report(capsys, *free_ports, "--agent-port", str(taken))
    assert code == 71
    assert found["agent-port"]["status"] == FAIL
    assert f"in use by pid {os.getpid()}" in found["agent-port"]["found"]


def test_the_rendezvous_on_another_host_is_not_judged_here() -> None:
    assert [finding.status for finding in checks.ports([("p", "192.0.2.1", 9310)])] == [SKIP]


def test_npus_are_skipped_and_never_called_ok() -> None:
    assert packages.devices().status == SKIP


def test_the_exit_code_is_zero_without_failures_and_71_with_one() -> None:
    lines = list(doctor.as_lines([Finding("a", OK, "x"), Finding("bb", WARN, "y", "do z")]))
    assert "-> do z" in lines[2]
    assert lines[-1] == "1 ok, 1 to look at, 0 failed"


def test_other_versions_than_the_pinned_ones_fail() -> None:
    other = replace(pins.load(), vllm_version="9.9.9")
    found = {finding.id: finding for finding in packages.check(other)}
    assert found["vllm"].status == FAIL and "9.9.9 is needed" in found["vllm"].found
    assert found["v2-runner"].status == FAIL and "VLLM_USE_V2_MODEL_RUNNER=0" in found["v2-runner"].remedy
    older = replace(pins.load(), python=pins.PythonRange("3.5", "3.6"))
    assert {finding.id: finding.status for finding in packages.check(older)}["python"] == FAIL


def test_packages_that_break_imports_fail_when_they_are_there() -> None:
    row = replace(pins.load().platforms["cpu"], excluded=("numpy", "torchvision"))
    found = {f.id: f for f in packages.check(replace(pins.load(), platforms={"cpu": row}))}
    assert (found["excluded"].status, found["excluded"].found) == (FAIL, "numpy installed")
    assert found["excluded"].remedy.endswith("pip uninstall numpy")


def test_a_filter_that_keeps_the_plugin_out_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "ascend")
    found = {finding.id: finding for finding in packages.check(pins.load())}
    assert found["plugin"].status == FAIL


def test_a_distribution_that_is_not_installed_fails_and_says_how_to_get_it() -> None:
    row = replace(pins.load().platforms["cpu"], distribution="no-such-vllm")
    found = {f.id: f for f in packages.check(replace(pins.load(), platforms={"cpu": row}))}
    assert (found["vllm"].status, found["vllm"].remedy) == (FAIL, "run: make setup")
    assert found["vllm"].found.startswith("no-such-vllm is not installed")


def test_the_size_of_shared_memory_is_judged(tmp_path: Path) -> None:
    assert checks.shared_memory(str(tmp_path)).status in (OK, WARN, FAIL)
    assert [
        checks.judged("shm", "", mib * checks.MIB, checks._SHM_OK, checks._SHM_MIN, "more").status
        for mib in (64, 16, 1)
    ] == [OK, WARN, FAIL]
    absent = checks.shared_memory(str(tmp_path / "absent"))
    assert absent.status == FAIL and "mount a tmpfs" in absent.remedy


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """A place for directories of runs."""
    path = tmp_path / "with a blank"
    path.mkdir()
    return path


def test_segments_that_a_broken_start_left_are_reported(tmp_path: Path, temporary: Path) -> None:
    assert checks.leftovers(str(tmp_path), [temporary]).status == OK
    (tmp_path / "afd-012345abcdef-a0-f0-u0").write_text("")
    found = checks.leftovers(str(tmp_path), [temporary])
    assert found.status == WARN and "1 segment(s)" in found.found


def test_a_directory_of_a_killed_run_is_named_with_a_command_that_removes_it(
    tmp_path: Path, temporary: Path
) -> None:
    left, used = temporary / f"{run_directory.RUN}x1", temporary / f"{run_directory.LOGS}x2"
    for path in (left, used):
        path.mkdir()
        (path / "owner").write_text("")
    with open(used / "owner") as owner:
        fcntl.flock(owner, fcntl.LOCK_EX)
        found = checks.leftovers(str(tmp_path / "absent"), [temporary])
        assert found.status == WARN
        assert str(left) in found.found and str(used) not in found.found
        subprocess.run(found.remedy, shell=True, check=True)
        assert checks.leftovers(str(tmp_path / "absent"), [temporary]).status == OK
    assert not left.exists() and used.exists()


def test_a_tmpdir_that_cannot_be_used_is_a_warning_that_names_what_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "absent"))
    found = {finding.id: finding for finding in checks.directories()}["tmp"]
    assert found.status == WARN and found.remedy
    assert f"{tmp_path / 'absent'}" in found.found and f"{tempfile.gettempdir()} is used" in found.found


@pytest.mark.parametrize(("limit", "status"), [(1024, OK), (512, WARN), (128, FAIL)])
def test_a_low_limit_on_open_files_is_seen(limit: int, status: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        found = checks.open_files()
        assert (found.status, found.remedy[:14]) == (status, "" if status == OK else "run: ulimit -n")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(("value", "status"), [(10, OK), (9, WARN), (5, WARN), (4, FAIL)])
def test_a_value_is_judged_by_two_bounds(value: int, status: str) -> None:
    found = checks.judged("x", "found", value, 10, 5, "do")
    assert (found.status, found.remedy) == (status, "" if status == OK else "do")


def test_without_a_compiler_there_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CC", raising=False)
    assert checks.compiler().status == WARN


def test_a_cache_that_cannot_be_written_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AFD_CACHE_DIR", str(tmp_path / "file" / "below"))
    found = {finding.id: finding for finding in checks.directories()}
    assert found["cache"].status == FAIL and "AFD_CACHE_DIR" in found["cache"].remedy


def test_a_library_to_preload_that_is_absent_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/nowhere/libjemalloc.so")
    assert checks.preloads().status == WARN


def test_the_ports_it_looks_at_are_those_that_roles_use() -> None:
    assert (doctor.AGENT_PORT, doctor.API_PORT) == (server.PORT, plan.API_PORT)
