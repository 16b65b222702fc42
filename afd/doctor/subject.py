# SPDX-License-Identifier: Apache-2.0
"""What is examined: a tree of files, an environment and a user. Every check reads through this, so the same check can
look at this container, at an image that is unpacked in a directory, and at a tree that a test has made.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import invalidate_caches, metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NamedTuple

from packaging.utils import canonicalize_name

from afd.config import AFDConfig
from afd.doctor import socs
from afd.errors import ConfigError
from afd.images import manifest
from afd.images.manifest import Manifest

_LINKS = 40
_SITE_PACKAGES = (
    "usr/local/python3*/lib/python3*/site-packages",
    "usr/local/lib/python3*/site-packages",
    "usr/local/lib/python3*/dist-packages",
    "opt/*/lib/python3*/site-packages",
    "usr/lib/python3/dist-packages",
)
_CARD = re.compile(r"davinci(\d+)")


class Space(NamedTuple):
    """Bytes of a file system."""

    size: int
    free: int


def space(path: Path) -> Space:
    found = os.statvfs(path)
    return Space(found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail)


@dataclass(frozen=True)
class Subject:
    """``root`` is where "/" is; ``uid`` and ``groups`` are of the user that runs the roles.

    ``loads`` says that libraries found below ``root`` may be loaded (in a child). ``config`` is AFD's configuration, or
    the error of reading it.
    """

    root: Path = Path("/")
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    uid: int = field(default_factory=os.geteuid)
    groups: frozenset[int] = field(default_factory=lambda: frozenset((os.getegid(), *os.getgroups())))
    loads: bool = True
    config: AFDConfig | ConfigError = field(default_factory=AFDConfig)
    agent_host: str = "0.0.0.0"
    agent_port: int = 9300
    api_port: int = 8000
    model: str = ""
    space: Callable[[Path], Space] = space

    @property
    def running(self) -> bool:
        """Whether this is the machine or container that we run in."""
        return self.root == Path("/")

    # ------------------------------------------------------------------------------------------------------- files

    def path(self, name: str) -> Path:
        """The absolute path ``name`` below the root, with links followed as if the root were "/"."""
        if self.running:
            return Path(name)
        done: list[str] = []
        todo = name.split("/")[::-1]
        links = 0
        while todo:
            part = todo.pop()
            if part in ("", "."):
                continue
            if part == "..":
                done = done[:-1]
                continue
            here = self.root.joinpath(*done, part)
            if not here.is_symlink():
                done.append(part)
                continue
            links += 1
            if links > _LINKS:
                raise OSError(f"{name}: too many links")
            target = os.readlink(here)
            if target.startswith("/"):
                done = []
            todo += target.split("/")[::-1]
        return self.root.joinpath(*done)

    def inside(self, path: Path) -> str:
        """How ``path`` is called below the root."""
        return str(path) if self.running else f"/{path.relative_to(self.root)}"

    def text(self, name: str) -> str | None:
        """The text of a file; None when it is absent or a directory."""
        try:
            return self.path(name).read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None

    def may(self, path: Path, mode: int) -> bool:
        """Whether the user may access ``path`` by ``mode`` (as :func:`os.access`), all directories above included."""
        if self.running and self.uid == os.geteuid():
            return os.access(path, mode, effective_ids=True)
        try:
            above = [p for p in path.parents if p == self.root or self.root in p.parents]
            return all(self._allowed(p, os.X_OK) for p in above) and self._allowed(path, mode)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return False

    def _allowed(self, path: Path, mode: int) -> bool:
        found = path.stat()
        if self.uid == 0:
            return mode & os.X_OK == 0 or stat.S_ISDIR(found.st_mode) or found.st_mode & 0o111 != 0
        shift = 6 if found.st_uid == self.uid else 3 if found.st_gid in self.groups else 0
        return found.st_mode >> shift & 7 & mode == mode

    def as_user(self, uid: int) -> Subject:
        """The same, seen by another user: with the group of its entry in /etc/passwd, or group 0 without one, as
        containers are started.
        """
        groups = {0}
        for line in (self.text("/etc/passwd") or "").splitlines():
            fields = line.split(":")
            if len(fields) > 3 and fields[2] == str(uid) and fields[3].isdigit():
                groups = {int(fields[3])}
        return replace(self, uid=uid, groups=frozenset(groups))

    @property
    def user(self) -> str:
        return f"uid {self.uid}"

    def cards(self) -> list[int]:
        """The numbers of the NPUs that have a device node."""
        try:
            names = os.listdir(self.path("/dev"))
        except OSError:
            return []
        return sorted(int(found[1]) for name in names if (found := _CARD.fullmatch(name)))

    # ----------------------------------------------------------------------------------------------------- the image

    @cached_property
    def _manifest(self) -> Manifest | ConfigError | None:
        try:
            content = self.path(manifest.PATH).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            return manifest.decode(content)
        except ConfigError as error:
            return error

    @property
    def manifest(self) -> Manifest | None:
        """What the image says about itself; None when there is no image, or when that cannot be read."""
        return self._manifest if isinstance(self._manifest, Manifest) else None

    @property
    def no_manifest(self) -> str:
        """Why :attr:`manifest` is None; "" when it is not."""
        if self._manifest is None:
            return f"there is no {manifest.PATH}"
        return f"what {manifest.PATH} says is not valid" if isinstance(self._manifest, ConfigError) else ""

    @property
    def manifest_error(self) -> str:
        """What is wrong with the file, when there is one."""
        return str(self._manifest) if isinstance(self._manifest, ConfigError) else ""

    @property
    def soc(self) -> str:
        """ "cpu", or the SOC that the image is for; outside an image the one that SOC_VERSION names."""
        if self.manifest is not None:
            return self.manifest.soc
        return socs.of_version(self.env.get("SOC_VERSION", "")) or "cpu"

    # ------------------------------------------------------------------------------------------------------- packages

    @cached_property
    def site_packages(self) -> tuple[Path, ...]:
        """Where Python packages are."""
        if self.running:
            return tuple(Path(entry) for entry in sys.path if entry and Path(entry).is_dir())
        found: list[Path] = []
        for directory in self.env.get("PATH", "").split(":"):
            if directory.startswith("/") and self.path(f"{directory}/python3").exists():
                found += sorted(self.path(directory).parent.glob("lib/python3*/site-packages"))
        for pattern in _SITE_PACKAGES:
            found += sorted(self.root.glob(pattern))
        wanted = f"/python{'.'.join(self.manifest.python.split('.')[:2])}/" if self.manifest else "/python3"
        return tuple(dict.fromkeys(sorted(found, key=lambda path: wanted not in f"{path}/")))

    @cached_property
    def distributions(self) -> Mapping[str, metadata.Distribution]:
        """Every installed distribution by its canonical name, the first of a name only, as imports find it."""
        found: dict[str, metadata.Distribution] = {}
        for one in metadata.distributions(path=[str(path) for path in self.site_packages]):
            if name := one.metadata["Name"]:
                found.setdefault(canonicalize_name(name), one)
        return found

    @cached_property
    def installed(self) -> Mapping[str, str]:
        """Canonical name of a distribution to its version."""
        return {name: one.version for name, one in self.distributions.items()}

    def entry_points(self, group: str) -> list[metadata.EntryPoint]:
        return [
            entry for one in self.distributions.values() for entry in one.entry_points if entry.group == group
        ]

    def package(self, name: str) -> Path | None:
        """The directory of an importable package, found without importing it."""
        invalidate_caches()
        where = None if self.running else [str(path) for path in self.site_packages]
        spec = PathFinder.find_spec(name, where)
        if spec is None or not spec.submodule_search_locations:
            return None
        return Path(next(iter(spec.submodule_search_locations)))
