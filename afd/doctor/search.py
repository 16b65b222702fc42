# SPDX-License-Identifier: Apache-2.0
"""Where the dynamic linker looks for a library, read from files: LD_LIBRARY_PATH, /etc/ld.so.conf, its own defaults."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from afd.doctor import elf
from afd.doctor.subject import Subject

_DEFAULTS = ("/lib64", "/usr/lib64", "/lib", "/usr/lib")
_MULTIARCH = ("x86_64-linux-gnu", "aarch64-linux-gnu")
# Where installers put libraries without telling the linker.
_ELSEWHERE = ("/usr/local/lib", "/usr/local/lib64", "/opt/lib")
_DEPTH = 40


def search_path(subject: Subject) -> list[str]:
    """Directories as they are called inside, in the order in which they are looked at."""
    found = [item for item in subject.env.get("LD_LIBRARY_PATH", "").split(":") if item]
    found += _configured(subject, "/etc/ld.so.conf", _DEPTH)
    found += [f"{base}/{triplet}" for triplet in _MULTIARCH for base in ("/lib", "/usr/lib")]
    return list(dict.fromkeys([*found, *_DEFAULTS]))


def _configured(subject: Subject, name: str, depth: int) -> Iterator[str]:
    for line in (subject.text(name) or "").splitlines() if depth else ():
        words = line.partition("#")[0].split()
        if not words:
            continue
        if words[0] != "include":
            yield words[0]
            continue
        for pattern in words[1:]:
            absolute = pattern if pattern.startswith("/") else f"/etc/{pattern}"
            directory, _, last = absolute.rpartition("/")
            for path in sorted(subject.path(directory).glob(last)):
                yield from _configured(subject, f"{directory}/{path.name}", depth - 1)


def find(subject: Subject, name: str, before: Iterable[str] = ()) -> Path | None:
    """The file that the linker takes for ``name``; ``before`` are real directories that it looks at first."""
    for directory in before:
        if (path := Path(directory, name)).is_file():
            return path
    for inside in search_path(subject):
        path = subject.path(f"{inside}/{name}")
        if path.is_file():
            return path
    return None


def known_elsewhere(subject: Subject, name: str) -> Path | None:
    """A file of that name where the linker does not look."""
    found = (subject.path(f"{directory}/{name}") for directory in _ELSEWHERE)
    return next((path for path in found if path.is_file()), None)


def unresolved(subject: Subject, path: Path) -> str:
    """The first library, of those that ``path`` needs and those that they need, that is not found; "" when all are.

    Raises NotELF for a file that is no library.
    """
    todo, seen = [path], {path}
    while todo:
        library = todo.pop()
        before = [_real(subject, item) for item in elf.run_paths(library)]
        for name in elf.needed(library):
            found = find(subject, name, before)
            if found is None:
                return name
            if found not in seen:
                seen.add(found)
                todo.append(found)
    return ""


def _real(subject: Subject, directory: str) -> str:
    """A directory that a library names: by $ORIGIN as it is really called, else as it is called inside."""
    if subject.running or directory.startswith(str(subject.root)):
        return directory
    return str(subject.path(directory))
