# SPDX-License-Identifier: Apache-2.0
"""What the machine or container gives: cores, memory, shared memory, limits, a compiler."""

from __future__ import annotations

import os
import resource
import shlex
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from afd.agent import cgroup, run_directory
from afd.agent.cores import Cores, binding, plan_threads
from afd.doctor.check import GIB, MIB, Check, Finding, Group, Need, check, fail, judged, ok, warn
from afd.doctor.image import VLLM_ASCEND
from afd.doctor.subject import Subject
from afd.doctor.user import brought

# Two roles of a tiny model with vLLM's processes ran within 8 GiB; below 2 GiB vLLM alone does not start.
_MEMORY_OK, _MEMORY_MIN = 8 * GIB, 2 * GIB
# The rings take 4 x tokens of a step x hidden size x bytes: 32 MiB for DeepSeek-V2-Lite in bfloat16 with steps of 2048
# tokens, 2 MiB for the built-in models. vLLM's queues touch half a MiB. Both roles ran within 4 MiB, and a role that
# needs more than there is says how much before it takes any.
SHM_OK, SHM_MIN = 40 * MIB, 4 * MIB
# On NPUs HCCL and Mooncake take their part, too: the 64 MiB that docker gives end in core dumps.
SHM_NPU_OK, SHM_NPU_MIN = 8 * GIB, 1 * GIB
# A process of the smoke run holds up to 160 files; it ran with a limit of 256 and not with 128. Each request needs one.
_FILES_OK, _FILES_MIN = 1024, 192
_TASKS_OK, _TASKS_MIN = 1024, 256
_SHM = "/dev/shm"


@check(
    "AFD-HOST-001",
    "system",
    Group.HOST,
    about="the operating system",
    expected="Linux: shared memory, futexes, parent-death signals",
    fix="run AFD on Linux, for example in a container",
    needs=(Need.RUNNING,),
)
def system(_: Subject) -> Finding:
    if sys.platform == "linux":
        return ok(f"Linux {os.uname().release} {os.uname().machine}")
    return fail(sys.platform, "")


@check(
    "AFD-HOST-002",
    "cores",
    Group.HOST,
    about="the cores that this process may use, and how they would be dealt out",
    expected="two or more",
    fix="give this process 2 cores or more (affinity mask, container limit); on one core the roles take turns",
    needs=(Need.RUNNING,),
)
def cores(_: Subject) -> Finding:
    found = Cores.read()
    limit = "" if found.quota is None else f", quota {found.quota:g}"
    plan = plan_threads(2, found)
    bound = binding(plan)
    told = f"{found.logical} cores{limit}: {plan[0].threads} thread(s) for each of two roles, " + (
        "not bound" if bound == "nobind" else f"on {bound.replace('|', ' and ')}"
    )
    return judged(told, found.usable, 2, 1, "")


@check(
    "AFD-HOST-003",
    "memory",
    Group.HOST,
    about="memory of the machine, or what the container may use of it",
    expected=f"{_MEMORY_OK // GIB} GiB or more for two roles and the reference",
    fix=f"two roles and the reference want {_MEMORY_OK // GIB} GiB",
    needs=(Need.RUNNING,),
)
def memory(_: Subject) -> Finding:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = cgroup.memory_limit()
    usable = total if limit is None else min(total, limit)
    told = f"{usable / GIB:.1f} GiB" + (" (limit of the control group)" if usable != total else "")
    return judged(told, usable, _MEMORY_OK, _MEMORY_MIN, "")


@check(
    "AFD-HOST-004",
    "shm",
    Group.HOST,
    about="room in /dev/shm for shared-memory rings, vLLM's queues, and on NPUs HCCL",
    expected=f"{SHM_OK // MIB} MiB free on CPU; on NPUs {SHM_NPU_OK // GIB} GiB, {SHM_NPU_MIN // GIB} GiB at least",
    fix="docker run --shm-size 16g; in a pod an emptyDir with medium: Memory",
    prevents=(
        f"{VLLM_ASCEND}#3513",
        f"{VLLM_ASCEND}#3519",
        f"{VLLM_ASCEND}#3645",
        "gpustack/gpustack#5014",
    ),
)
def shared_memory(subject: Subject) -> Finding:
    path = subject.path(_SHM)
    try:
        found = subject.space(path)
    except OSError as error:
        return fail(f"{_SHM}: {error.strerror}", f"mount a tmpfs at {_SHM}: docker run --tmpfs {_SHM}")
    told = f"{_SHM}: {found.free / MIB:.0f} of {found.size / MIB:.0f} MiB free"
    if not subject.may(path, os.W_OK | os.X_OK):
        return fail(f"{_SHM}: not writable for {subject.user}", f"run: chmod 1777 {shlex.quote(str(path))}")
    npu = subject.soc != "cpu"
    good, least = (SHM_NPU_OK, SHM_NPU_MIN) if npu else (SHM_OK, SHM_MIN)
    size = "16g" if npu else "1g"
    remedy = (
        f"give the container more (docker run --shm-size {size}; in a pod an emptyDir with medium: Memory)"
    )
    if found.size > good:
        remedy = f"remove files that nobody uses from {path}"
    return judged(told, found.free, good, least, remedy)


def stale_segments(directory: Path) -> list[Path]:
    """AFD unlinks its segments once both ends have them open, so one with a name was left by a start that broke off."""
    try:
        return sorted(Path(entry.path) for entry in os.scandir(directory) if entry.name.startswith("afd-"))
    except OSError:
        return []


@check(
    "AFD-HOST-005",
    "leftovers",
    Group.HOST,
    about="segments of AFD in /dev/shm, and directories of runs that were killed",
    expected="none",
    fix="remove them",
)
def leftovers(subject: Subject) -> Finding:
    return left(subject.path(_SHM), None if subject.running else [subject.path("/tmp")])


def left(segments: Path, bases: Iterable[Path] | None) -> Finding:
    """What is left in a directory of segments, and in those for temporary files (None: where this user's runs go)."""
    names = stale_segments(segments)
    directories = run_directory.stale(bases)
    if not names and not directories:
        return ok(f"no segments of AFD in {segments}, no directories of runs that were killed")
    told, remedies = [], []
    if directories:
        told.append(f"{len(directories)} director(ies) of runs that were killed, such as {directories[0]}")
        remedies.append(f"run: rm -r {shlex.join(map(str, directories))}")
    if names:
        told.append(f"{len(names)} segment(s) of AFD in {segments}, such as {names[0].name}")
        remedies.append(f"if no role is starting right now, run: rm {shlex.quote(str(segments))}/afd-*")
    return warn("; ".join(told), "; ".join(remedies))


@check(
    "AFD-HOST-006",
    "open-files",
    Group.HOST,
    about="the limit on open files",
    expected=f"{_FILES_OK} or more, {_FILES_MIN} at least",
    fix=f"run: ulimit -n {_FILES_OK} (in a container: --ulimit nofile={_FILES_OK})",
    needs=(Need.RUNNING,),
)
def open_files(_: Subject) -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    value = hard if soft == resource.RLIM_INFINITY else soft
    if value == resource.RLIM_INFINITY:
        return ok("unlimited")
    return judged(f"ulimit -n {value}", value, _FILES_OK, _FILES_MIN, "")


@check(
    "AFD-HOST-007",
    "tasks",
    Group.HOST,
    about="the limit on processes and threads: per user, and of the control group",
    expected=f"{_TASKS_OK} or more, {_TASKS_MIN} at least",
    fix=f"allow {_TASKS_OK} processes and threads (container: --ulimit nproc, --pids-limit)",
    needs=(Need.RUNNING,),
)
def tasks(_: Subject) -> Finding:
    soft, _hard = resource.getrlimit(resource.RLIMIT_NPROC)
    limits = {"ulimit -u": None if soft == resource.RLIM_INFINITY else soft, "pids.max": cgroup.task_limit()}
    name, value = min(
        ((n, v) for n, v in limits.items() if v is not None), key=lambda item: item[1], default=("", None)
    )
    if value is None:
        return ok("unlimited")
    return judged(f"{name} {value}", value, _TASKS_OK, _TASKS_MIN, "")


@check(
    "AFD-HOST-008",
    "compiler",
    Group.HOST,
    about="a C compiler, which makes the fast path of the shared-memory ring",
    expected="one; without it Python does the same work",
    fix="install a C compiler, or accept a slower hop between the roles (pure Python)",
    needs=(Need.RUNNING,),
)
def compiler(subject: Subject) -> Finding:
    names = subject.env.get("CC", "").split()[:1] or ["cc", "gcc", "clang"]
    for name in names:
        path = shutil.which(name, path=subject.env.get("PATH", os.defpath))
        if path is not None:
            return ok(path)
    cache = subject.env.get("AFD_CACHE_DIR", "")
    if cache and brought(subject, cache):
        return ok(f"none, and none is needed: {cache} has the ring, compiled with the image")
    return warn(f"none of {', '.join(names)}", "")


CHECKS: tuple[Check, ...] = (
    system,
    cores,
    memory,
    shared_memory,
    leftovers,
    open_files,
    tasks,
    compiler,
)
