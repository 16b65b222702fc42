# SPDX-License-Identifier: Apache-2.0
"""Upstream sources for image builds, as plain directories below ``build/sources`` (named build contexts).

A source is asked for by its full commit and comes from one of

    nothing given          fetched from the pinned repository, only this commit
    https://… or ssh…      fetched from there: a mirror
    a directory            a local git repository that has the commit; its working tree is not looked at
    a file                 a source archive whose SHA-256 is the pinned one

What lies in the directory is what the commit's tree says: the tree is read into an index of its own, written out, and
its hash compared. Submodules the same way, by the commits that the tree names. There is no ``.git`` in the result.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from afd.errors import ConfigError


@dataclass(frozen=True)
class Wanted:
    """A source: ``variable`` is how a person says where it is."""

    name: str
    commit: str
    repository: str
    archive_sha256: str
    variable: str


def prepare(wanted: Wanted, given: str, directory: Path) -> Path:
    """The directory with the files of ``wanted``; made when missing. Raises ConfigError that says what to do."""
    target = directory / f"{wanted.name}-{wanted.commit}"
    if target.exists():
        return target
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory, prefix=".making-") as made:
        files = Path(made, "files")
        files.mkdir()
        if given and Path(given).is_file():
            _unpack(wanted, Path(given), files)
        elif given and "://" not in given and "@" not in given:
            if not Path(given).is_dir():
                raise ConfigError(f"{wanted.variable}={given}: there is no such file or directory")
            _export(wanted, Path(given).resolve(), wanted.commit, files, nested=True)
        else:
            repository = Path(made, "repository")
            _fetch(wanted, given or wanted.repository, wanted.commit, repository)
            _export(wanted, repository, wanted.commit, files, nested=False)
        files.rename(target)
    return target


def _unpack(wanted: Wanted, archive: Path, files: Path) -> None:
    if not wanted.archive_sha256:
        raise ConfigError(
            f"{wanted.variable}={archive}: no archive of {wanted.name} is pinned; "
            f"give a git repository that has {wanted.commit}"
        )
    found = _sha256(archive)
    if found != wanted.archive_sha256:
        raise ConfigError(
            f"{wanted.variable}={archive}: its SHA-256 is {found}, pinned is {wanted.archive_sha256}; "
            "fetch the archive again, or see docs/images.md about moving a pin"
        )
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(files, filter="data")
    except (tarfile.TarError, OSError) as error:
        raise ConfigError(f"{wanted.variable}={archive} is no tar archive: {error}") from error
    # Archives have one folder at the top; the files of the source are what is in it.
    tops = list(files.iterdir())
    if len(tops) != 1 or not tops[0].is_dir():
        raise ConfigError(
            f"{wanted.variable}={archive}: a source archive has one folder at its top, not {len(tops)}"
        )
    inner = tops[0].rename(files.with_name("unpacked"))
    files.rmdir()
    inner.rename(files)


def _fetch(wanted: Wanted, url: str, commit: str, repository: Path) -> None:
    """A repository that holds ``commit`` and nothing else."""
    repository.mkdir()
    _git(repository, "init", "--quiet", "--bare")
    done = _run(repository, "fetch", "--quiet", "--depth=1", "--no-tags", url, commit)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["git fetch failed"])[-1]
        raise ConfigError(
            f"cannot fetch {wanted.name} {commit[:9]} from {url} ({reason}); without a network, say "
            f"{wanted.variable}=DIRECTORY, a git repository that has the commit (docs/images.md, air gap)"
        )


def _export(wanted: Wanted, repository: Path, commit: str, files: Path, *, nested: bool) -> None:
    """The tree of ``commit`` written to ``files``. ``nested``: submodules are repositories in their places."""
    if _run(repository, "rev-parse", "--quiet", "--verify", f"{commit}^{{commit}}").stdout.strip() != commit:
        raise ConfigError(
            f"{repository} is no git repository that has {wanted.name} {commit}; "
            f"run there: git fetch {wanted.repository} {commit}"
        )
    with tempfile.TemporaryDirectory() as scratch:
        # A bare repository has no working tree; one that has keeps it as it is.
        index = {"GIT_INDEX_FILE": str(Path(scratch, "index")), "GIT_WORK_TREE": str(files)}
        _git(repository, "read-tree", commit, environment=index)
        written = _git(repository, "write-tree", environment=index)
        if written != _git(repository, "rev-parse", f"{commit}^{{tree}}"):
            raise ConfigError(
                f"{repository}: the tree of {commit} came out as {written}; the repository is damaged"
            )
        _git(repository, "checkout-index", "--all", "--force", f"--prefix={files}/", environment=index)
        entries = _git(repository, "ls-files", "--stage", "-z", environment=index).split("\0")
    for entry in filter(None, entries):
        about, _, path = entry.partition("\t")
        mode, module, _ = about.split(" ")
        if mode == "160000":
            (files / path).mkdir(parents=True, exist_ok=True)
            _submodule(wanted, repository, commit, path, module, files / path, nested=nested)


def _submodule(
    wanted: Wanted, repository: Path, commit: str, path: str, module: str, files: Path, *, nested: bool
) -> None:
    if nested:
        inner = repository / path
        # An empty folder belongs to the repository around it, which does not have the module's commit.
        if not (inner / ".git").exists():
            raise ConfigError(
                f"{inner} is empty; run in {repository}: git submodule update --init --recursive"
            )
        _export(wanted, inner, module, files, nested=True)
        return
    settings = _git(repository, "config", "--blob", f"{commit}:.gitmodules", "--list").splitlines()
    values = dict(line.split("=", 1) for line in settings)
    names = [key[: -len(".path")] for key, value in values.items() if key.endswith(".path") and value == path]
    if not names:
        raise ConfigError(f"{wanted.name} {commit[:9]}: .gitmodules says nothing about {path}")
    with tempfile.TemporaryDirectory(dir=repository.parent) as made:
        inner = Path(made, "repository")
        _fetch(wanted, values[f"{names[0]}.url"], module, inner)
        _export(wanted, inner, module, files, nested=False)


def check_cam(
    directory: Path, installer: str, git_blob: str, wheel: str, wheel_sha256: str, target: Path
) -> Path:
    """The two CAM files of a person, compared with what is pinned, in a context of their own."""
    for name, algorithm, expected in ((installer, "sha1", git_blob), (wheel, "sha256", wheel_sha256)):
        path = directory / name
        if not path.is_file():
            raise ConfigError(f"CAM={directory}: there is no {name}")
        content = path.read_bytes()
        # git knows a file by the SHA-1 of a header and its content.
        head = b"blob %d\0" % len(content) if algorithm == "sha1" else b""
        found = hashlib.new(algorithm, head + content).hexdigest()
        if found != expected:
            raise ConfigError(
                f"CAM: {path} has {algorithm} {found}, pinned is {expected}; it is another file"
            )
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    sums = []
    for name in (installer, wheel):
        shutil.copyfile(directory / name, target / name)
        sums.append(f"{_sha256(target / name)}  {name}\n")
    (target / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")
    return target


def _sha256(path: Path) -> str:
    state = hashlib.sha256()
    with path.open("rb") as content:
        while block := content.read(1 << 20):
            state.update(block)
    return state.hexdigest()


def _git(repository: Path, *arguments: str, environment: dict[str, str] | None = None) -> str:
    done = _run(repository, *arguments, environment=environment)
    if done.returncode:
        raise ConfigError(f"git {arguments[0]} in {repository}: {done.stderr.strip() or done.returncode}")
    return done.stdout.strip()


def _run(
    repository: Path, *arguments: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """git without the settings of the repository's hooks and without questions on the terminal."""
    settings = {"GIT_TERMINAL_PROMPT": "0", "GIT_LFS_SKIP_SMUDGE": "1", **(environment or {})}
    kept = {name: value for name, value in os.environ.items() if name not in ("GIT_DIR", "GIT_INDEX_FILE")}
    try:
        return subprocess.run(
            ["git", "-c", "safe.directory=*", "-C", str(repository), *arguments],
            env={**kept, **settings},
            capture_output=True,
            text=True,
        )
    except FileNotFoundError as error:
        raise ConfigError("there is no git on this machine; install it") from error
