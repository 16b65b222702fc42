# SPDX-License-Identifier: Apache-2.0
"""Weights come from the hub while the role loads, and whatever goes wrong there is said in one line."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from afd.agent.fetch import fetch
from afd.agent.model_files import HubModel, inspect
from afd.errors import ConfigError, RoleFailedError
from tests.unit.agent.hub import COMMIT, Hub, hub
from tests.unit.agent.plans import small_model
from tests.unit.small_disk import on_small_disk

MODEL = HubModel("org/small", token="secret")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Hub]:
    with hub(MODEL.name, small_model(tmp_path), token="secret") as running:
        yield running


@pytest.fixture
def directory(served: Hub, tmp_path: Path) -> Path:
    """Where the model is, without its weights."""
    snapshot = tmp_path / "home/hub/models--org--small/snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    return snapshot


def get(served: Hub, directory: Path, model: HubModel = MODEL, timeout_s: float = 60.0) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "HF_HUB_OFFLINE"}
    home = directory.parents[3]
    environment |= {"HF_ENDPOINT": served.url, "HF_HOME": str(home)}
    asyncio.run(fetch(model, directory, environment, timeout_s))


def test_the_weights_of_the_commit_that_was_inspected_come_from_the_hub(served: Hub, directory: Path) -> None:
    get(served, directory)
    assert inspect(directory) == inspect(served.directory)
    assert "model.safetensors" in served.served
    assert served.revisions == {COMMIT}


def test_a_model_that_may_not_be_read_is_a_clear_error(served: Hub, directory: Path) -> None:
    with pytest.raises(ConfigError, match=r"model 'org/small': .*not available from the hub.*HF_TOKEN"):
        get(served, directory, HubModel("org/small", token="wrong"))


@pytest.mark.parametrize("ignored", [(), ("consolidated*",)])
def test_weights_that_nobody_would_read_are_not_downloaded(
    served: Hub, directory: Path, ignored: tuple[str, ...]
) -> None:
    weights = (served.directory / "model.safetensors").read_bytes()
    others = ("original/model.safetensors", "original/deep/model.safetensors", "consolidated.safetensors")
    for number, name in enumerate(others):  # what is equal would come once
        (served.directory / name).parent.mkdir(parents=True, exist_ok=True)
        (served.directory / name).write_bytes(weights[:-1] + bytes([number]))
    get(served, directory, replace(MODEL, ignored=ignored))
    names = {name for name in served.served if name.endswith(".safetensors")}
    assert names == {"model.safetensors", *(() if ignored else ["consolidated.safetensors"])}


def test_weights_that_vllm_is_told_to_ignore_are_those_of_its_flag(served: Hub, tmp_path: Path) -> None:
    code = """
from afd.topology import Role
from tests.unit.agent.plans import planned
plan = planned("org/small", Role.FFN, ("--hf-token", "secret", "--ignore-patterns", "consolidated*", "*.pth"))
print(*plan.download.ignored)
"""
    variables = {"HF_ENDPOINT": served.url, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
    path = os.pathsep.join([str(Path(__file__).parents[3]), *sys.path])
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **variables, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.stdout == "consolidated* *.pth\n", run.stderr


def test_patterns_of_weights_to_ignore_keep_no_other_file_away(served: Hub, directory: Path) -> None:
    get(served, directory, replace(MODEL, ignored=("*.json",)))
    assert inspect(directory) == inspect(served.directory)


@pytest.mark.isolated
def test_a_full_disk_is_named_as_that_with_what_to_do(served: Hub, tmp_path: Path) -> None:
    (served.directory / "model.safetensors").write_bytes(bytes(2 << 20))
    code = f"""
import asyncio, os, sys
from pathlib import Path
from afd.agent.fetch import fetch
from afd.agent.model_files import HubModel
from afd.errors import ResourceError
model = HubModel("org/small", token="secret", cache=sys.argv[1])
try:
    asyncio.run(fetch(model, Path(sys.argv[1], "{COMMIT}"), os.environ, 60))
except ResourceError as error:
    print(error.exit_code, error)
"""
    disk = tmp_path / "disk"
    disk.mkdir()
    run = on_small_disk(code, disk, {"HF_ENDPOINT": served.url, "HF_HUB_OFFLINE": "0"})
    expected = (
        f"71 model 'org/small': the download to {disk} failed (No space left on device); free space there"
    )
    assert run.stdout.startswith(expected) and run.stdout.endswith("or set HF_HOME or --download-dir\n"), run


def test_a_cache_that_may_not_be_written_is_named(served: Hub, directory: Path) -> None:
    # Nobody makes a directory there, root neither.
    with pytest.raises(ConfigError, match=r"^model 'org/small': the download to /sys/cache failed .*HF_HOME"):
        get(served, directory, replace(MODEL, cache="/sys/cache"))


@pytest.mark.parametrize("answer", [b"<html>log in</html>", b"[]"])
def test_what_a_proxy_answers_in_the_hubs_place_is_no_bug_of_ours(
    served: Hub, directory: Path, answer: bytes
) -> None:
    served.instead = answer
    with pytest.raises(ConfigError, match=r"not available from the hub \((JSONDecode|Attribute)Error: "):
        get(served, directory)


def test_weights_that_are_no_good_are_named_with_what_is_wrong(served: Hub, directory: Path) -> None:
    (served.directory / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid")
    with pytest.raises(ConfigError, match=r"model\.safetensors: a Git LFS pointer, not weights"):
        get(served, directory)


def test_a_download_that_stands_still_ends_at_the_deadline_and_leaves_no_process(
    served: Hub, directory: Path
) -> None:
    served.stalled.set()
    before, started = set(psutil.Process().children(recursive=True)), time.monotonic()
    with pytest.raises(RoleFailedError, match=r"org/small did not come within 4 s.*--afd-timeouts-load-s"):
        get(served, directory, timeout_s=4.0)
    assert time.monotonic() - started < 8
    assert "model.safetensors" in served.served
    assert set(psutil.Process().children(recursive=True)) == before
