# SPDX-License-Identifier: Apache-2.0
"""Weights come from the hub while the role loads, and whatever goes wrong there is said in one line."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from afd.agent.fetch import fetch
from afd.agent.model_files import HubModel, inspect
from afd.errors import ConfigError, RoleFailedError
from tests.unit.agent.hub import COMMIT, Hub, hub
from tests.unit.agent.plans import small_model

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
