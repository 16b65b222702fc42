# SPDX-License-Identifier: Apache-2.0
"""What a check of ``afd doctor`` is, and the checks of the host: cores, memory, limits, ports, directories."""

from __future__ import annotations

import errno
import os
import pwd
import resource
import shlex
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from afd.agent import cgroup, run_directory
from afd.agent.cores import Cores, binding, plan_threads
from afd.cache import cache_dir
from afd.control.ports import owner, privileged
from afd.errors import ConfigError

GIB, MIB = 1 << 30, 1 << 20
OK, WARN, FAIL, SKIP = "ok", "warn", "fail", "skip"

# Two roles of a tiny model with vLLM's processes ran within 8 GiB; below 2 GiB vLLM alone does not start.
_MEMORY_OK, _MEMORY_MIN = 8 * GIB, 2 * GIB
# The rings take 4 x tokens of a step x hidden size x bytes: 32 MiB for DeepSeek-V2-Lite in bfloat16 with steps of 2048
# tokens, 2 MiB for the built-in models. vLLM's queues touch half a MiB. Both roles ran within 4 MiB, and a role that
# needs more than there is says how much before it takes any.
_SHM_OK, _SHM_MIN = 40 * MIB, 4 * MIB
# A process of the smoke run holds up to 160 files; it ran with a limit of 256 and not with 128. Each request needs one.
_FILES_OK, _FILES_MIN = 1024, 192
_TASKS_OK, _TASKS_MIN = 1024, 256


@dataclass(frozen=True)
class Finding:
    """The outcome of one check: ``found`` is what was read, ``remedy`` what to do unless the status is ok."""

    id: str
    status: str
    found: str
    remedy: str = ""


def judged(identity: str, found: str, value: float, good: float, least: float, remedy: str) -> Finding:
    """ok from ``good`` on, fail below ``least``, warn in between."""
    status = OK if value >= good else FAIL if value < least else WARN
    return Finding(identity, status, found, "" if status == OK else remedy)


def system() -> Finding:
    """AFD needs Linux: shared memory, futexes, parent-death signals."""
    if sys.platform == "linux":
        return Finding("system", OK, f"Linux {os.uname().release} {os.uname().machine}")
    return Finding("system", FAIL, sys.platform, "run AFD on Linux, for example in a container")


def cores() -> Finding:
    """Enough cores for two roles, and how they would be dealt out."""
    found = Cores.read()
    limit = "" if found.quota is None else f", quota {found.quota:g}"
    plan = plan_threads(2, found)
    bound = binding(plan)
    told = f"{found.logical} cores{limit}: {plan[0].threads} thread(s) for each of two roles, " + (
        "not bound" if bound == "nobind" else f"on {bound.replace('|', ' and ')}"
    )
    remedy = (
        "give this process 2 cores or more (affinity mask, container limit); on one core the roles take turns"
    )
    return judged("cores", told, found.usable, 2, 1, remedy)


def memory() -> Finding:
    """Memory of the machine, or what the container may use of it."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = cgroup.memory_limit()
    usable = total if limit is None else min(total, limit)
    told = f"{usable / GIB:.1f} GiB" + (" (limit of the control group)" if usable != total else "")
    return judged(
        "memory",
        told,
        usable,
        _MEMORY_OK,
        _MEMORY_MIN,
        f"two roles and the reference want {_MEMORY_OK // GIB} GiB",
    )


def shared_memory(path: str = "/dev/shm") -> Finding:
    """Room for shared-memory rings and vLLM's queues."""
    try:
        found = os.statvfs(path)
    except OSError as error:
        return Finding("shm", FAIL, f"{path}: {error.strerror}", f"mount a tmpfs at {path}")
    size, free = found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail
    told = f"{path}: {free / MIB:.0f} of {size / MIB:.0f} MiB free"
    if not os.access(path, os.W_OK | os.X_OK):
        return Finding("shm", FAIL, f"{path}: not writable for uid {os.geteuid()}", f"run: chmod 1777 {path}")
    remedy = "give the container more (docker run --shm-size 1g; in a pod an emptyDir with medium: Memory)"
    if size > _SHM_OK:
        remedy = f"remove files that nobody uses from {path}"
    return judged("shm", told, free, _SHM_OK, _SHM_MIN, remedy)


def leftovers(path: str = "/dev/shm", bases: Iterable[Path] | None = None) -> Finding:
    """AFD unlinks its segments once both ends have them open, so one with a name was left by a start that
    broke off. Directories of a run go with it, unless it was killed.
    """
    try:
        names = sorted(entry.name for entry in os.scandir(path) if entry.name.startswith("afd-"))
    except OSError:
        names = []
    directories = run_directory.stale(bases)
    if not names and not directories:
        return Finding(
            "leftovers", OK, f"no segments of AFD in {path}, no directories of runs that were killed"
        )
    told, remedies = [], []
    if directories:
        told.append(f"{len(directories)} director(ies) of runs that were killed, such as {directories[0]}")
        remedies.append(f"rm -r {shlex.join(map(str, directories))}")
    if names:
        told.append(f"{len(names)} segment(s) of AFD in {path}, such as {names[0]}")
        remedies.append(f"if no role is starting right now: rm {path}/afd-*")
    return Finding("leftovers", WARN, "; ".join(told), "; ".join(remedies))


def open_files() -> Finding:
    """The limit on open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    value = hard if soft == resource.RLIM_INFINITY else soft
    return judged(
        "open-files",
        "unlimited" if value == resource.RLIM_INFINITY else f"ulimit -n {value}",
        float("inf") if value == resource.RLIM_INFINITY else value,
        _FILES_OK,
        _FILES_MIN,
        f"run: ulimit -n {_FILES_OK} (in a container: --ulimit nofile={_FILES_OK})",
    )


def tasks() -> Finding:
    """The limit on processes and threads: per user, and of the control group."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    limits = {"ulimit -u": None if soft == resource.RLIM_INFINITY else soft, "pids.max": cgroup.task_limit()}
    name, value = min(
        ((n, v) for n, v in limits.items() if v is not None), key=lambda item: item[1], default=("", None)
    )
    if value is None:
        return Finding("tasks", OK, "unlimited")
    remedy = f"allow {_TASKS_OK} processes and threads (container: --ulimit nproc, --pids-limit)"
    return judged("tasks", f"{name} {value}", value, _TASKS_OK, _TASKS_MIN, remedy)


def compiler() -> Finding:
    """A C compiler makes the fast path of the shared-memory ring; without one Python does the same work."""
    asked = os.environ.get("CC", "").split()
    names = asked[:1] or ["cc", "gcc", "clang"]
    for name in names:
        path = shutil.which(name)
        if path is not None:
            return Finding("compiler", OK, path)
    return Finding(
        "compiler",
        WARN,
        f"none of {', '.join(names)}",
        "install a C compiler, or accept a slower hop between the roles (pure Python)",
    )


def ports(wanted: Iterable[tuple[str, str, int]]) -> Iterator[Finding]:
    """Whether each (id, host, port) can be listened on now."""
    for identity, host, port in wanted:
        yield _port(identity, host, port)


def _port(identity: str, host: str, port: int) -> Finding:
    where = f"{host}:{port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        return Finding(identity, WARN, f"{host} does not resolve here: {error}", "check the name")
    with socket.socket(family, kind, protocol) as probe:
        # As the listeners of AFD and vLLM do, so that connections that are about to end do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return Finding(
                    identity, FAIL, f"{where} is in use by {owner(port)}", "end it, or choose another port"
                )
            if error.errno == errno.EADDRNOTAVAIL:
                return Finding(
                    identity, SKIP, f"{host} is an address of another host; the rendezvous is there"
                )
            if error.errno == errno.EACCES:
                return Finding(identity, FAIL, f"{where}: {error.strerror}", privileged(port))
            return Finding(identity, FAIL, f"{where}: {error.strerror}", "choose another port")
    return Finding(identity, OK, f"{where} is free")


def directories() -> Iterator[Finding]:
    """Directories that must be writable: AFD's cache, home, and the one for temporary files."""
    try:
        yield _writable("cache", cache_dir(), "set AFD_CACHE_DIR to a writable directory")
    except ConfigError as error:
        yield Finding("cache", FAIL, str(error), "set AFD_CACHE_DIR to a writable directory")
    home = os.environ.get("HOME", "")
    remedy = "set HOME to a writable directory: vLLM and its libraries keep caches there"
    yield _writable("home", Path(home), remedy) if home else Finding("home", WARN, "HOME is not set", remedy)
    try:
        found = tempfile.gettempdir()
        if asked := run_directory.ignored_tmpdir():
            remedy = "set TMPDIR to a directory that exists, is writable and has room"
            yield Finding(
                "tmp", WARN, f"TMPDIR is {asked}, where nothing can be written: {found} is used", remedy
            )
        else:
            yield Finding("tmp", OK, f"{found} is writable")
    except FileNotFoundError:
        yield Finding(
            "tmp", FAIL, "no writable directory for temporary files", "set TMPDIR, or mount a tmpfs at /tmp"
        )


def _writable(identity: str, path: Path, remedy: str) -> Finding:
    """``path``, or the nearest directory above it that exists, must be writable; a little free space is
    needed, too.
    """
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return Finding(identity, FAIL, f"{path}: uid {os.geteuid()} cannot write {there}", remedy)
    free = shutil.disk_usage(there).free
    return judged(
        identity, f"{path} is writable, {free / GIB:.1f} GiB free", free, GIB, 64 * MIB, "free some space"
    )


def user() -> Finding:
    """Libraries look the user up by number and stop when there is no entry, unless a variable names it."""
    uid = os.getuid()
    try:
        return Finding("user", OK, f"uid {uid} is {pwd.getpwuid(uid).pw_name}")
    except KeyError:
        pass
    if os.environ.get("USER") or os.environ.get("LOGNAME"):
        return Finding("user", OK, f"uid {uid} has no entry in the password database, but USER names it")
    return Finding(
        "user", WARN, f"uid {uid} has no entry in the password database", "set USER, or add an entry"
    )


def preloads() -> Finding:
    """A library in LD_PRELOAD that is absent is ignored with a message in every process."""
    names = [name for name in os.environ.get("LD_PRELOAD", "").replace(":", " ").split() if "/" in name]
    absent = [name for name in names if not os.path.exists(name)]
    if absent:
        return Finding(
            "preload", WARN, f"LD_PRELOAD names {absent[0]}, which is absent", "correct or unset LD_PRELOAD"
        )
    return Finding("preload", OK, f"LD_PRELOAD: {' '.join(names) or 'none'}")
