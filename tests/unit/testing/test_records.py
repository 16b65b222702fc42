# SPDX-License-Identifier: Apache-2.0
"""What a record says about the machine: traceable sources, and nothing private."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec
import pytest

from afd.images import manifest
from afd.support.records import write
from afd.testing import records
from tests.unit.manifest_examples import EXAMPLE as IMAGE
from tests.unit.record_examples import record


def git(tree: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(
        ["git", "-C", str(tree), *identity, *arguments], check=True, capture_output=True, timeout=30
    )


def test_a_tree_is_dirty_by_any_change_but_those_of_records_and_their_page(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "code").write_text("1")
    git(tmp_path, "add", "code")
    git(tmp_path, "commit", "-qm", "c")
    assert not records.commits(tmp_path).dirty
    (tmp_path / "tests/records").mkdir(parents=True)
    (tmp_path / "tests/records/x.json").write_text("{}")
    assert not records.commits(tmp_path).dirty
    (tmp_path / "code").write_text("2")
    assert records.commits(tmp_path).dirty


def test_a_tree_without_history_has_no_commit_and_counts_as_dirty(tmp_path: Path) -> None:
    found = records.commits(tmp_path)
    assert (found.afd, found.dirty) == ("unknown", True)


def test_text_of_a_run_loses_what_is_private_to_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert records.scrub(f"\x1b[31mfailed\x1b[0m in {tmp_path}/x") == "failed in ./x"
    assert records.scrub(f"{Path.home()}/y") == "~/y"


def test_a_record_of_this_machine_can_be_written(tmp_path: Path) -> None:
    made = record(stack=records.stack(), devices=records.cpu_devices(), date=records.now())
    write(made, tmp_path)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """The root of an image that says what it was built from."""
    (tmp_path / "etc/afd").mkdir(parents=True)
    (tmp_path / "etc/afd/image.json").write_bytes(manifest.encode(IMAGE))
    (tmp_path / "opt/afd/lib/site-packages").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize("dirty", [False, True])
def test_inside_an_image_the_commit_is_the_one_that_it_was_built_from(dirty: bool, image: Path) -> None:
    source = msgspec.structs.replace(IMAGE.afd, dirty=dirty)
    (image / "etc/afd/image.json").write_bytes(manifest.encode(msgspec.structs.replace(IMAGE, afd=source)))
    found = records.commits(image / "opt/afd/lib/site-packages", image)
    assert (found.afd, found.dirty, found.vllm) == (IMAGE.afd.revision, dirty, IMAGE.vllm.commit)


def test_an_image_of_unknown_source_is_no_evidence() -> None:
    source = msgspec.structs.replace(IMAGE.afd, revision="unknown")
    assert records.commits_of(msgspec.structs.replace(IMAGE, afd=source)).dirty


def test_a_checkout_in_a_container_is_not_taken_for_the_image(image: Path) -> None:
    (image / "checkout").mkdir()
    assert records.commits(image / "checkout", image).afd == "unknown"


def test_from_outside_a_container_the_stack_is_the_images() -> None:
    found = records.stack_of(IMAGE)
    assert found.versions["torch"] == IMAGE.packages["torch"]
    assert found.versions["python"] == IMAGE.python
    more = msgspec.structs.replace(IMAGE, packages={**IMAGE.packages, "other": "1.0"})
    assert records.stack_of(more).digest != found.digest
