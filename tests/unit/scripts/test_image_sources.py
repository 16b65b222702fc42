# SPDX-License-Identifier: Apache-2.0
"""scripts/image_sources.py: real repositories, a real submodule, archives; only what is the pinned commit is taken."""

from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from afd.errors import ConfigError
from scripts import image_sources
from scripts.image_sources import Wanted


def git(repository: Path, *words: str) -> str:
    """git with a name, and with submodules at local paths allowed."""
    settings = (
        "user.name=a",
        "user.email=a@example",
        "protocol.file.allow=always",
        "uploadpack.allowAnySHA1InWant=true",
    )
    options = [part for setting in settings for part in ("-c", setting)]
    done = subprocess.run(
        ["git", "-C", str(repository), *options, *words], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def repository(path: Path, files: dict[str, str]) -> str:
    """A repository with one commit of ``files``; its commit."""
    path.mkdir(parents=True)
    git(path, "init", "-q")
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(content)
    git(path, "add", ".")
    git(path, "commit", "-qm", "first")
    git(path, "config", "uploadpack.allowAnySHA1InWant", "true")
    return git(path, "rev-parse", "HEAD")


def wanted(commit: str, url: str = "https://127.0.0.1:1/none.git", archive: str = "") -> Wanted:
    return Wanted("thing", commit, url, archive, "THING_SOURCE")


def contents(directory: Path) -> dict[str, str]:
    return {p.relative_to(directory).as_posix(): p.read_text() for p in directory.rglob("*") if p.is_file()}


FILES = {"a.txt": "one\n", "b/c.txt": "two\n"}


def test_a_commit_of_a_local_repository_is_taken_whatever_its_working_tree_looks_like(tmp_path: Path) -> None:
    commit = repository(tmp_path / "r", FILES)
    (tmp_path / "r/a.txt").write_text("changed")
    (tmp_path / "r/extra").write_text("not committed")
    made = image_sources.prepare(wanted(commit), str(tmp_path / "r"), tmp_path / "out")
    assert made.name == f"thing-{commit}"
    assert contents(made) == FILES
    assert [p.name for p in (tmp_path / "out").iterdir()] == [made.name]


def test_a_commit_is_fetched_by_its_full_hash_from_a_repository_that_went_on(tmp_path: Path) -> None:
    commit = repository(tmp_path / "r", FILES)
    (tmp_path / "r/a.txt").write_text("newer")
    git(tmp_path / "r", "commit", "-qam", "second")
    made = image_sources.prepare(wanted(commit), f"file://{tmp_path}/r", tmp_path / "out")
    assert contents(made) == FILES


def test_a_submodule_comes_along_at_the_commit_that_the_tree_names(tmp_path: Path) -> None:
    repository(tmp_path / "inner", {"kernel.h": "k\n"})
    repository(tmp_path / "r", FILES)
    git(tmp_path / "r", "submodule", "add", "-q", f"file://{tmp_path}/inner", "lib/inner")
    git(tmp_path / "r", "commit", "-qm", "with a module")
    commit = git(tmp_path / "r", "rev-parse", "HEAD")
    (tmp_path / "inner/kernel.h").write_text("newer")
    git(tmp_path / "inner", "commit", "-qam", "newer")
    for given, out in ((str(tmp_path / "r"), "a"), (f"file://{tmp_path}/r", "b")):
        made = image_sources.prepare(wanted(commit), given, tmp_path / out)
        assert contents(made)["lib/inner/kernel.h"] == "k\n"
        assert not list(made.rglob(".git"))


def test_a_submodule_that_is_not_there_is_refused_with_the_command_that_brings_it(tmp_path: Path) -> None:
    repository(tmp_path / "inner", {"kernel.h": "k\n"})
    repository(tmp_path / "r", FILES)
    git(tmp_path / "r", "submodule", "add", "-q", f"file://{tmp_path}/inner", "lib/inner")
    git(tmp_path / "r", "commit", "-qm", "with a module")
    git(tmp_path, "clone", "-q", str(tmp_path / "r"), "clone")
    commit = git(tmp_path / "r", "rev-parse", "HEAD")
    with pytest.raises(ConfigError, match="git submodule update --init --recursive"):
        image_sources.prepare(wanted(commit), str(tmp_path / "clone"), tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_repository_without_the_commit_is_refused_with_the_command_that_brings_it(tmp_path: Path) -> None:
    repository(tmp_path / "r", FILES)
    with pytest.raises(
        ConfigError, match=f"is no git repository that has thing {'0' * 40}; run there: git fetch"
    ):
        image_sources.prepare(wanted("0" * 40), str(tmp_path / "r"), tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="is no git repository"):
        image_sources.prepare(wanted("0" * 40), str(tmp_path / "empty"), tmp_path / "out")


def test_an_address_that_does_not_answer_names_the_variable_for_a_local_source(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        image_sources.prepare(wanted("0" * 40), "", tmp_path / "out")
    assert "cannot fetch thing 000000000 from https://127.0.0.1:1/none.git" in str(caught.value)
    assert "THING_SOURCE=DIRECTORY" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_path_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="THING_SOURCE=/no/where: there is no such file or directory"):
        image_sources.prepare(wanted("0" * 40), "/no/where", tmp_path / "out")


def archive(path: Path, files: dict[str, str]) -> str:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content.encode()))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_an_archive_with_the_pinned_hash_is_unpacked_without_its_top_folder(tmp_path: Path) -> None:
    sha256 = archive(tmp_path / "a.tar.gz", {f"top-1/{name}": content for name, content in FILES.items()})
    made = image_sources.prepare(
        wanted("0" * 40, archive=sha256), str(tmp_path / "a.tar.gz"), tmp_path / "out"
    )
    assert contents(made) == FILES


def test_an_archive_with_another_hash_or_with_none_pinned_is_refused(tmp_path: Path) -> None:
    sha256 = archive(tmp_path / "a.tar.gz", {"top/a": "x"})
    given = str(tmp_path / "a.tar.gz")
    with pytest.raises(ConfigError, match=f"its SHA-256 is {sha256}, pinned is {'0' * 64}"):
        image_sources.prepare(wanted("0" * 40, archive="0" * 64), given, tmp_path / "out")
    with pytest.raises(ConfigError, match="no archive of thing is pinned"):
        image_sources.prepare(wanted("0" * 40), given, tmp_path / "out")


@pytest.mark.parametrize("files", [{"../escape": "x"}, {"/absolute": "x"}])
def test_an_archive_that_reaches_outside_is_refused(tmp_path: Path, files: dict[str, str]) -> None:
    sha256 = archive(tmp_path / "a.tar.gz", {**files, "top/a": "x"})
    with pytest.raises(ConfigError):
        image_sources.prepare(wanted("0" * 40, archive=sha256), str(tmp_path / "a.tar.gz"), tmp_path / "out")
    assert not (tmp_path / "escape").exists()


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_text("no archive")
    sha256 = hashlib.sha256(b"no archive").hexdigest()
    with pytest.raises(ConfigError, match="is no tar archive"):
        image_sources.prepare(wanted("0" * 40, archive=sha256), str(tmp_path / "a.tar.gz"), tmp_path / "out")


def test_a_source_that_was_prepared_is_not_fetched_again(tmp_path: Path) -> None:
    commit = repository(tmp_path / "r", FILES)
    made = image_sources.prepare(wanted(commit), str(tmp_path / "r"), tmp_path / "out")
    assert image_sources.prepare(wanted(commit), "", tmp_path / "out") == made


def test_the_cam_files_are_taken_only_when_they_are_the_pinned_ones(tmp_path: Path) -> None:
    commit = repository(tmp_path / "r", {"cam.run": "installer\n", "cam.whl": "wheel\n"})
    blob = git(tmp_path / "r", "rev-parse", f"{commit}:cam.run")
    sha256 = hashlib.sha256(b"wheel\n").hexdigest()
    names = (tmp_path / "r", "cam.run", blob, "cam.whl", sha256, tmp_path / "cam")
    made = image_sources.check_cam(*names)
    done = subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=made, capture_output=True, text=True)
    assert done.stdout.split() == ["cam.run:", "OK", "cam.whl:", "OK"]
    (tmp_path / "r/cam.run").write_text("another\n")
    with pytest.raises(ConfigError, match=r"cam\.run has sha1 .* pinned is .*it is another file"):
        image_sources.check_cam(*names)
    (tmp_path / "r/cam.run").write_text("installer\n")
    (tmp_path / "r/cam.whl").unlink()
    with pytest.raises(ConfigError, match=r"there is no cam\.whl"):
        image_sources.check_cam(*names)
