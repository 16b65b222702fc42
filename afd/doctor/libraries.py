# SPDX-License-Identifier: Apache-2.0
"""Can the dynamic linker find the libraries, and do they load."""

from __future__ import annotations

from pathlib import Path

from afd.doctor import child, elf
from afd.doctor.check import Check, Finding, Group, Need, check, fail, ok, skip, warn
from afd.doctor.image import VLLM_ASCEND, rebuild
from afd.doctor.search import find, known_elsewhere, unresolved
from afd.doctor.subject import Subject

_LOAD_S = 30.0
# The host's driver, which is mounted into a container.
DRIVER = "/usr/local/Ascend/driver"
# What a start script of a login shell may have set for one shell and for no program.
_FOR_ALL = ("LD_PRELOAD", "LD_LIBRARY_PATH", "ATB_HOME_PATH", "ASCEND_HOME_PATH", "ASCEND_CUSTOM_OPP_PATH")


def _loaded(subject: Subject, name: str, path: Path) -> str:
    """Why ``path`` does not load; "" when it does, as far as that can be seen."""
    if subject.loads:
        code = (
            "import ctypes, os, sys; from afd.doctor import child; "
            "ctypes.CDLL(sys.argv[1], os.RTLD_NOW); child.answer({})"
        )
        return child.python(["-c", code, str(path)], subject.env, _LOAD_S).problem
    try:
        absent = unresolved(subject, path)
    except elf.NotELF as error:
        return str(error)
    return f"{absent} is not on the library path, and {name} needs it" if absent else ""


def _library(subject: Subject, name: str, remedy: str) -> Finding:
    """``name`` is on the search path, and it loads."""
    path = find(subject, name)
    if path is None:
        return fail(f"{name} is not on the library path", remedy)
    if problem := _loaded(subject, name, path):
        return fail(f"{subject.inside(path)} does not load: {problem}", remedy)
    return ok(f"{subject.inside(path)}" + (" loads" if subject.loads else " is there with all it needs"))


@check(
    "AFD-LIB-001",
    "library-path",
    Group.OFFLINE,
    about="the elements of LD_LIBRARY_PATH and ASCEND_CUSTOM_OPP_PATH",
    expected="no empty one, which means the current directory",
    fix='join with ${VAR:+:$VAR}, not with ":$VAR" when the variable may be unset',
)
def library_path(subject: Subject) -> Finding:
    names = ("LD_LIBRARY_PATH", "ASCEND_CUSTOM_OPP_PATH")
    for name in names:
        value = subject.env.get(name)
        if value and "" in (parts := value.split(":")):
            right = ":".join(filter(None, parts))
            remedy = f"use: docker run --env {name}={right}" if right else f"unset it: unset {name}"
            return fail(f"{name}={value} has an empty element", remedy)
    return ok(", ".join(f"{name}: {subject.env.get(name) or 'not set'}" for name in names))


@check(
    "AFD-LIB-002",
    "preload",
    Group.OFFLINE,
    about="the files in LD_PRELOAD",
    expected="there: one that is absent is ignored, with a message from every process",
    fix="correct or unset LD_PRELOAD",
    prevents=("gpustack/gpustack#5660", f"{VLLM_ASCEND}#12059"),
)
def preload(subject: Subject) -> Finding:
    names = [name for name in subject.env.get("LD_PRELOAD", "").replace(":", " ").split() if "/" in name]
    absent = [name for name in names if not subject.path(name).exists()]
    if absent:
        elsewhere = find(subject, Path(absent[0]).name)
        remedy = "unset LD_PRELOAD"
        if elsewhere is not None:
            right = subject.env["LD_PRELOAD"].replace(absent[0], subject.inside(elsewhere))
            remedy = f"use: docker run --env LD_PRELOAD={right}; or {remedy}"
        return warn(f"LD_PRELOAD names {absent[0]}, which is absent", remedy)
    return ok(f"LD_PRELOAD: {' '.join(names) or 'none'}")


@check(
    "AFD-LIB-003",
    "driver-library",
    Group.HOST,
    about="libascend_hal.so, which comes with the driver of the host",
    expected="found, with all that it needs, and it loads",
    fix="mount the driver into the container",
    needs=(Need.NPU,),
    prevents=(f"{VLLM_ASCEND}#1440",),
)
def driver_library(subject: Subject) -> Finding:
    lib64 = f"{DRIVER}/lib64"
    mount = DRIVER if subject.soc == "a5" else lib64
    dirs = ":".join((lib64, f"{lib64}/common", f"{lib64}/driver"))
    if (
        subject.path(f"{lib64}/driver/libascend_hal.so").exists()
        and find(subject, "libascend_hal.so") is None
    ):
        path = ":".join(filter(None, (subject.env.get("LD_LIBRARY_PATH"), dirs)))
        return _library(subject, "libascend_hal.so", f"use: docker run --env LD_LIBRARY_PATH={path}")
    return _library(subject, "libascend_hal.so", f"use: docker run -v {mount}:{mount}:ro")


@check(
    "AFD-LIB-004",
    "atb",
    Group.OFFLINE,
    about="libatb.so of NNAL, ATB_HOME_PATH and ATB_CXX_ABI",
    expected="the variant with cxx_abi 1, which torch is built with, found and loading",
    fix="start through the image's entry point; build the image again",
    needs=(Need.NPU,),
    prevents=(
        f"{VLLM_ASCEND}#152",
        f"{VLLM_ASCEND}#10525",
        f"{VLLM_ASCEND}#750",
        "Ascend/pytorch#99",
        "Ascend/pytorch#117",
    ),
)
def atb(subject: Subject) -> Finding:
    home, abi = subject.env.get("ATB_HOME_PATH", ""), subject.env.get("ATB_CXX_ABI", "1")
    if not home:
        return fail(
            "ATB_HOME_PATH is not set, so libatb.so is not found", "start through the image's entry point"
        )
    if abi != "1" or home.rstrip("/").endswith("cxx_abi_0"):
        right = home.replace("cxx_abi_0", "cxx_abi_1")
        remedy = f"use: docker run --env ATB_CXX_ABI=1 --env ATB_HOME_PATH={right}"
        return fail(f"ATB_CXX_ABI is {abi}, ATB_HOME_PATH is {home}", remedy, "cxx_abi_1")
    return _library(subject, "libatb.so", rebuild(subject))


@check(
    "AFD-LIB-005",
    "cann-libraries",
    Group.OFFLINE,
    about="libascendcl.so, libopapi.so and libhccl.so of CANN",
    expected="on the library path",
    fix="start through the image's entry point; build the image again",
    needs=(Need.NPU,),
    prevents=(f"{VLLM_ASCEND}#12059", f"{VLLM_ASCEND}#9258"),
)
def cann_libraries(subject: Subject) -> Finding:
    names = ("libascendcl.so", "libopapi.so", "libhccl.so")
    absent = [name for name in names if find(subject, name) is None]
    if not absent:
        return ok(f"{', '.join(names)} are found")
    home = subject.env.get("ASCEND_HOME_PATH", "")
    if home and all(subject.path(f"{home}/lib64/{name}").exists() for name in absent):
        path = ":".join(filter(None, (f"{home}/lib64", subject.env.get("LD_LIBRARY_PATH"))))
        return fail(f"{', '.join(absent)} not found", f"use: docker run --env LD_LIBRARY_PATH={path}")
    return fail(f"{', '.join(absent)} not found", rebuild(subject))


@check(
    "AFD-LIB-006",
    "transfer-engine",
    Group.OFFLINE,
    about="ascend_transport.so of Mooncake, when that is installed",
    expected="on the library path",
    fix="add its directory to /etc/ld.so.conf.d and run ldconfig, or to LD_LIBRARY_PATH",
    needs=(Need.NPU,),
    prevents=(f"{VLLM_ASCEND}#6949",),
)
def transfer_engine(subject: Subject) -> Finding:
    if "mooncake-transfer-engine-npu" not in subject.installed:
        return skip("Mooncake is not installed")
    names = ("ascend_transport.so", "libascend_transport.so")
    directories = [
        str(path) for site in subject.site_packages for path in (site / "mooncake",) if path.is_dir()
    ]
    for name in names:
        if (path := find(subject, name, directories)) is not None:
            return ok(subject.inside(path))
    for name in names:
        if (path := known_elsewhere(subject, name)) is not None:
            told = f"{subject.inside(path)} is there, but not on the library path"
            directory = subject.inside(path.parent)
            new = ":".join(filter(None, (subject.env.get("LD_LIBRARY_PATH"), directory)))
            return fail(told, f"use: docker run --env LD_LIBRARY_PATH={new}")
    return fail(f"no {names[0]}", rebuild(subject))


@check(
    "AFD-LIB-007",
    "login-shell",
    Group.HOST,
    about="variables of the libraries, in this process and in the first one of the container",
    expected="the same: programs do not read what a login shell sets",
    fix="set them by docker run --env, or in the image",
    needs=(Need.IMAGE,),
    prevents=(f"{VLLM_ASCEND}#12059", f"{VLLM_ASCEND}#9141", f"{VLLM_ASCEND}#14955"),
)
def login_shell(subject: Subject) -> Finding:
    try:
        content = subject.path("/proc/1/environ").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, PermissionError) as error:
        return skip(f"/proc/1/environ cannot be read: {error.strerror}")
    first = dict(item.split("=", 1) for item in content.split("\0") if "=" in item)
    differ = [name for name in _FOR_ALL if first.get(name) != subject.env.get(name)]
    if not differ:
        return ok("as in the first process")
    told = "; ".join(
        f"{name} is {subject.env.get(name, 'not set')} here, {first.get(name, 'not set')} in the first process"
        for name in differ
    )
    options = " ".join(f"--env {name}={subject.env[name]}" for name in differ if name in subject.env)
    return warn(told, f"use: docker run {options}" if options else "start what you run from the entry point")


CHECKS: tuple[Check, ...] = (
    library_path,
    preload,
    driver_library,
    atb,
    cann_libraries,
    transfer_engine,
    login_shell,
)
