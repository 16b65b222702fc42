# SPDX-License-Identifier: Apache-2.0
"""Who runs the roles, and what this user may do; judged by the modes of files, whoever runs the tests."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from afd.doctor import user
from afd.doctor.check import FAIL, OK, SKIP, WARN, Finding
from afd.doctor.subject import Subject
from tests.unit.doctor.roots import MODEL, UID, Root


def test_a_tmpdir_that_cannot_be_used_is_a_warning_that_names_what_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "absent"))
    found = user.temporary.run(Subject())
    assert found.status == WARN and found.remedy
    assert f"{tmp_path / 'absent'}" in found.found and f"{tempfile.gettempdir()} is used" in found.found


def test_a_tree_without_a_writable_tmp_fails(tmp_path: Path) -> None:
    root = Root(tmp_path, "cpu")
    assert user.temporary.run(root.subject()).status == OK
    root.path("/tmp").chmod(0o755)
    assert user.temporary.run(root.subject()).status == FAIL
    root.remove("/tmp")
    found = user.temporary.run(root.subject())
    assert found.status == FAIL and "--tmpfs /tmp" in found.remedy


def test_a_cache_that_cannot_be_written_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = user.cache.run(Subject(env={"AFD_CACHE_DIR": str(tmp_path / "file" / "below")}))
    assert found.status == FAIL and "AFD_CACHE_DIR" in found.remedy


def test_the_cache_may_be_in_a_directory_that_does_not_exist_yet(tmp_path: Path) -> None:
    assert user.cache.run(Subject(env={"AFD_CACHE_DIR": str(tmp_path / "a/b/c")})).status == OK


def test_a_cache_that_comes_full_with_the_image_need_not_be_writable(tmp_path: Path) -> None:
    root = Root(tmp_path, "cpu")
    cache = root.path("/var/cache/afd")
    (cache / "models/tiny").mkdir(parents=True)
    (cache / "models/tiny/afd_model.json").touch()

    def found() -> Finding:
        return user.cache.run(root.subject(uid=54321, env={"AFD_CACHE_DIR": "/var/cache/afd"}))

    assert found().status == FAIL  # what is missing would have to be made
    (cache / "afd-ring-x86_64-0.so").touch()
    assert (found().status, "part of the image" in found().found) == (OK, True)
    root.remove("/etc/afd/image.json")
    assert found().status == FAIL


def test_without_home_there_is_a_warning() -> None:
    assert user.home.run(Subject(env={})).status == WARN


def test_this_user_is_looked_up_in_the_database_of_this_machine() -> None:
    assert user.user.run(Subject()).status in (OK, WARN)
    assert user.user.run(Subject(uid=0)).found == "uid 0 is root"
    assert user.user.run(Subject(uid=54321, env={})).status == WARN
    assert user.user.run(Subject(uid=54321, env={"USER": "x"})).status == OK


def test_on_an_npu_a_variable_is_no_entry(tmp_path: Path) -> None:
    root = Root(tmp_path, "a2")
    root.uid, root.env["USER"] = 54321, "x"
    found = user.user.run(root.subject())
    assert found.status == FAIL and f">> {root.path('/etc/passwd')}" in found.remedy


@pytest.mark.parametrize(
    ("uid", "groups", "mode", "readable"),
    [
        (UID, {UID}, 0o644, True),
        (UID, {UID}, 0o640, False),
        (UID, {os.getegid()}, 0o640, True),
        (UID, {os.getegid()}, 0o604, False),
        (os.geteuid(), {UID}, 0o400, True),
        (0, {0}, 0o000, True),
    ],
)
def test_access_is_judged_for_the_user_that_runs_the_roles(
    tmp_path: Path, uid: int, groups: set[int], mode: int, readable: bool
) -> None:
    root = Root(tmp_path, "cpu")
    path = root.write("/file", "x", mode)
    assert root.subject(uid=uid, groups=frozenset(groups)).may(path, os.R_OK) is readable


def test_a_model_whose_directory_above_is_closed_cannot_be_read(tmp_path: Path) -> None:
    root = Root(tmp_path, "cpu")
    root.path("/models").chmod(0o700)
    assert user.model_files.run(root.subject()).status == FAIL


def test_a_model_of_links_is_judged_by_what_they_point_at(tmp_path: Path) -> None:
    root = Root(tmp_path, "cpu")
    weights = root.write("/blobs/abc", "x", 0o600)
    root.remove(f"{MODEL}/model.safetensors")
    root.path(f"{MODEL}/model.safetensors").symlink_to("/blobs/abc")
    found = user.model_files.run(root.subject())
    assert found.status == FAIL and "may not read model.safetensors (0600)" in found.found
    weights.chmod(0o644)
    assert user.model_files.run(root.subject()).status == OK
    weights.unlink()
    found = user.model_files.run(root.subject())
    assert found.status == FAIL and "1 link(s) to nothing" in found.found


@pytest.mark.parametrize(
    ("model", "status"), [("", SKIP), ("builtin:tiny", SKIP), ("org/name", SKIP), ("/no", FAIL)]
)
def test_only_a_directory_can_be_looked_into(tmp_path: Path, model: str, status: str) -> None:
    root = Root(tmp_path, "cpu")
    assert user.model_files.run(root.subject(model=model)).status == status


def test_a_model_without_weights_fails(tmp_path: Path) -> None:
    root = Root(tmp_path, "cpu")
    root.remove(f"{MODEL}/model.safetensors")
    assert user.model_files.run(root.subject()).status == FAIL


def as_another_user(action: Callable[[], str]) -> str:
    """What ``action`` says in a child that is not root, whose files are closed to it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setegid(54321)
                os.seteuid(54321)
            os.write(writing, action().encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as said:
        return said.read()


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory that every user may look into, which those of pytest are not."""
    with tempfile.TemporaryDirectory() as found:
        os.chmod(found, 0o755)
        yield Path(found)


def test_a_directory_that_is_closed_to_this_user_is_named_and_nothing_breaks(open_path: Path) -> None:
    closed = open_path / "closed"
    (closed / "model").mkdir(parents=True)
    closed.chmod(0o600)
    model = str(closed / "model")
    found = as_another_user(lambda: repr(user.model_files.run(Subject(model=model))))
    assert "status='fail'" in found and f"may not look into {closed}" in found and "chmod a+x" in found
    found = as_another_user(lambda: repr(user.home.run(Subject(env={"HOME": model}))))
    assert "status='fail'" in found and f"cannot write {closed}" in found
    closed.chmod(0o755)
    found = as_another_user(lambda: repr(user.model_files.run(Subject(model=model))))
    assert "no *.safetensors" in found
