# SPDX-License-Identifier: Apache-2.0
"""Who runs the roles, and what this user may write and read."""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import tempfile
from pathlib import Path

from afd.agent import run_directory
from afd.cache import cache_dir
from afd.doctor.check import GIB, MIB, Check, Finding, Group, check, fail, judged, ok, skip, warn
from afd.doctor.image import VLLM_ASCEND
from afd.doctor.subject import Subject
from afd.errors import ConfigError

_MODEL_FILES = (".safetensors", ".json", ".model", ".jinja", ".txt", ".tiktoken", ".py")
_SHOWN = 3
MADE_MODEL, MADE_RING = "models/*/afd_model.json", "afd-ring-*.so"
"""What there is in a cache that was made, below it."""


def _writable(subject: Subject, inside: str, remedy: str) -> Finding:
    """``inside``, or the nearest directory above it that exists, must be writable and have a little space."""
    path = there = subject.path(inside)
    while not _is_there(there) and there not in (there.parent, subject.root):
        there = there.parent
    if not there.is_dir() or not subject.may(there, os.W_OK | os.X_OK):
        return fail(f"{inside}: {subject.user} cannot write {subject.inside(there)}", remedy)
    free = shutil.disk_usage(there).free
    told = f"{subject.inside(path)} is writable, {free / GIB:.1f} GiB free"
    return judged(told, free, GIB, 64 * MIB, f"free some space below {there}")


def _is_there(path: Path) -> bool:
    """Not below a directory that is closed to us: then that directory is what to look at."""
    try:
        return path.exists()
    except PermissionError:
        return False


def brought(subject: Subject, inside: str) -> bool:
    """Whether the image of ``subject`` has this cache in it, filled: the built-in models and the transport's ring."""
    where = subject.path(inside)
    try:
        full = all(any(where.glob(kind)) for kind in (MADE_MODEL, MADE_RING))
    except PermissionError:
        return False
    return subject.manifest is not None and full


@check(
    "AFD-HOST-009",
    "cache",
    Group.HOST,
    about="AFD's directory for what it can make again",
    expected="writable, with 1 GiB free, or brought by the image",
    fix="set AFD_CACHE_DIR to a writable directory",
)
def cache(subject: Subject) -> Finding:
    remedy = (
        "set AFD_CACHE_DIR to a writable directory, such as: docker run --env AFD_CACHE_DIR=/tmp/afd-cache"
    )
    chosen, home = subject.env.get("AFD_CACHE_DIR", ""), subject.env.get("HOME", "")
    if subject.running and not chosen and not home:
        try:
            return _writable(subject, str(cache_dir()), remedy)
        except ConfigError as error:
            return fail(str(error), remedy)
    if not chosen and not home:
        return fail("neither AFD_CACHE_DIR nor HOME is set", remedy)
    inside = os.path.abspath(chosen) if chosen else f"{home}/.cache/afd"
    if brought(subject, inside):
        return ok(f"{inside} is part of the image, with everything that would be made there")
    return _writable(subject, inside, remedy)


@check(
    "AFD-HOST-010",
    "home",
    Group.HOST,
    about="HOME",
    expected="a writable directory: vLLM and its libraries keep caches there",
    fix="set HOME to a writable directory",
    prevents=(f"{VLLM_ASCEND}#9490", "kserve/kserve#5666"),
)
def home(subject: Subject) -> Finding:
    found = subject.env.get("HOME", "")
    remedy = "set HOME to a writable directory, such as: docker run --env HOME=/tmp"
    if not found:
        return warn("HOME is not set", remedy)
    return _writable(subject, found, remedy)


@check(
    "AFD-HOST-011",
    "tmp",
    Group.HOST,
    about="the directory for temporary files",
    expected="writable",
    fix="set TMPDIR to a directory that exists, is writable and has room, or mount a tmpfs at /tmp",
)
def temporary(subject: Subject) -> Finding:
    if not subject.running:
        path = subject.env.get("TMPDIR") or "/tmp"
        remedy = f"mount a tmpfs there: docker run --tmpfs {path}"
        return _writable(subject, path, remedy) if subject.path(path).is_dir() else fail(f"no {path}", remedy)
    try:
        found = tempfile.gettempdir()
    except FileNotFoundError:
        return fail("no writable directory for temporary files", "set TMPDIR, or mount a tmpfs at /tmp")
    if asked := run_directory.ignored_tmpdir():
        return warn(f"TMPDIR is {asked}, where nothing can be written: {found} is used", "")
    return ok(f"{found} is writable")


@check(
    "AFD-HOST-012",
    "user",
    Group.HOST,
    about="the entry of this user in the password database",
    expected="there is one, or on CPU USER is set: libraries look users up by number, and HCCL stops without an entry",
    fix="run as the user of the image, or add an entry to /etc/passwd",
    prevents=(f"{VLLM_ASCEND}#9490", "ai-dynamo/dynamo#12457", "kserve/kserve#5666"),
)
def user(subject: Subject) -> Finding:
    name = _entry(subject)
    if name is not None:
        return ok(f"{subject.user} is {name}")
    told = f"{subject.user} has no entry in the password database"
    named = subject.env.get("USER") or subject.env.get("LOGNAME")
    if subject.soc == "cpu":
        if named:
            return ok(f"{told}, but USER names it")
        return warn(told, "set USER, or add an entry: docker run --env USER=afd")
    gid = min(subject.groups, default=subject.uid)
    line = f"afd:x:{subject.uid}:{gid}::/tmp:/bin/sh"
    target = shlex.quote(str(subject.path("/etc/passwd")))
    return fail(
        told, f"run as the user of the image (docker run --user), or as root run: echo {line} >> {target}"
    )


def _entry(subject: Subject) -> str | None:
    if subject.running:
        try:
            return pwd.getpwuid(subject.uid).pw_name
        except KeyError:
            return None
    for line in (subject.text("/etc/passwd") or "").splitlines():
        fields = line.split(":")
        if len(fields) >= 3 and fields[2] == str(subject.uid):
            return fields[0]
    return None


@check(
    "AFD-HOST-013",
    "model-files",
    Group.HOST,
    about="the files of the model that --model names, when it is a directory",
    expected="all readable: libraries say of a file of mode 0600 that it does not exist",
    fix="run: chmod -R a+rX DIRECTORY",
)
def model_files(subject: Subject) -> Finding:
    name = subject.model
    if not name:
        return skip("no model is named; see --model")
    if not name.startswith("/"):
        return skip(f"{name} is no absolute path, so it is a name of a built-in model or one of a hub")
    directory = subject.path(name)
    change = f"run: chmod -R a+rX {shlex.quote(str(directory))}"
    if not subject.may(directory, os.R_OK | os.X_OK):
        try:
            directory.stat()
        except (FileNotFoundError, NotADirectoryError):
            return fail(f"{name} does not exist", f"mount it: docker run -v {name}:{name}:ro")
        except PermissionError:
            above = next(
                path for path in directory.parents if not subject.may(path, os.X_OK) and _is_there(path)
            )
            change = f"run: chmod a+x {shlex.quote(str(above))}"
            return fail(f"{subject.user} may not look into {subject.inside(above)}, where {name} is", change)
        return fail(f"{subject.user} may not read the directory {name}", change)
    files = [path for path in sorted(directory.iterdir()) if path.suffix in _MODEL_FILES]
    # A model in the cache of a hub is a directory of links, and what they point at is what must be readable.
    resolved = {path.name: subject.path(subject.inside(path)) for path in files}
    absent = [
        name for name, path in resolved.items() if not path.exists() and subject.may(path.parent, os.X_OK)
    ]
    if absent:
        return fail(
            f"{len(absent)} link(s) to nothing, such as {absent[0]}", "mount the directory they point to, too"
        )
    closed = [name for name, path in resolved.items() if not subject.may(path, os.R_OK)]
    if closed:
        modes = ", ".join(f"{one} ({resolved[one].stat().st_mode & 0o777:04o})" for one in closed[:_SHOWN])
        more = f" and {len(closed) - _SHOWN} more" if len(closed) > _SHOWN else ""
        return fail(f"{subject.user} may not read {modes}{more} in {name}", change)
    if not any(path.suffix == ".safetensors" for path in files):
        return fail(f"no *.safetensors file in {name}", "download the model again, or name another directory")
    return ok(f"{len(files)} files in {name} are readable")


CHECKS: tuple[Check, ...] = (cache, home, temporary, user, model_files)
