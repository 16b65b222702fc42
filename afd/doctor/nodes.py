# SPDX-License-Identifier: Apache-2.0
"""What a container must get from the host of its NPUs: device nodes, the driver, its configuration."""

from __future__ import annotations

import json
import os
import re
import stat

from afd.doctor import socs
from afd.doctor.check import Check, Finding, Group, Need, check, fail, ok, skip, warn
from afd.doctor.image import VLLM_ASCEND, of
from afd.doctor.libraries import DRIVER
from afd.doctor.subject import Subject
from afd.images.rows import UNVERIFIED

_VERSION_INFO = f"{DRIVER}/version.info"
_HCCN = "/etc/hccn.conf"
_RANKTABLE = "/etc/hccl_rootinfo.json"
_TOPOLOGY = f"{DRIVER}/topo"
_CAP_SYS_ADMIN = 21


@check(
    "AFD-HOST-014",
    "device-nodes",
    Group.HOST,
    about="/dev/davinciN and the nodes of the driver",
    expected="device nodes that this user may read and write, one card at least",
    fix="docker run --device for each of them, and --group-add with the group that owns them",
    needs=(Need.NPU,),
    prevents=(f"{VLLM_ASCEND}#9490", "ai-dynamo/dynamo#12457"),
)
def device_nodes(subject: Subject) -> Finding:
    common = (subject.manifest or socs.row(subject.soc)).device_nodes
    cards = [f"/dev/davinci{number}" for number in subject.cards()]
    absent = [name for name in common if not subject.path(name).exists()]
    if not cards:
        absent.append("/dev/davinci0")
    if absent:
        remedy = f"use: docker run {' '.join(f'--device {name}' for name in absent)}"
        return fail(f"{', '.join(absent)}: not there", remedy)
    nodes = [*cards, *common]
    for name in nodes:
        # docker -v makes a directory of a path that the host does not have.
        mode = subject.path(name).stat().st_mode
        if stat.S_ISDIR(mode) or stat.S_ISREG(mode):
            what = "a directory" if stat.S_ISDIR(mode) else "a regular file"
            return fail(f"{name} is {what}", f"not -v, but use: docker run --device {name}")
    closed = [name for name in nodes if not subject.may(subject.path(name), os.R_OK | os.W_OK)]
    if closed:
        found = subject.path(closed[0]).stat()
        told = (
            f"{subject.user} may not open {', '.join(closed)} "
            f"(mode {found.st_mode & 0o777:04o}, uid {found.st_uid}, gid {found.st_gid})"
        )
        if found.st_mode & 0o060 == 0o060:
            return fail(told, f"use: docker run --group-add {found.st_gid}")
        return fail(told, f"use: docker run --user {found.st_uid}:{found.st_gid}")
    return ok(f"{len(cards)} card(s): {', '.join(nodes)}")


@check(
    "AFD-HOST-015",
    "mounts",
    Group.HOST,
    about="the files of the host that the image says it needs",
    expected="mounted at the same paths, and not empty",
    fix="docker run -v PATH:PATH:ro for each of them",
    needs=(Need.IMAGE, Need.NPU),
    prevents=(f"{VLLM_ASCEND}#1440",),
)
def mounts(subject: Subject) -> Finding:
    wanted = of(subject).mounts
    absent = [name for name in wanted if not subject.path(name).exists()]
    if absent:
        options = " ".join(f"-v {name}:{name}:ro" for name in absent)
        return fail(f"{', '.join(absent)}: not there", f"use: docker run {options}")
    # docker -v makes an empty directory of a path that the host does not have, also where a file is meant.
    empty = [name for name in wanted if (path := subject.path(name)).is_dir() and not any(path.iterdir())]
    if empty:
        told = f"{', '.join(empty)}: empty directories, so the host does not have them"
        options = " ".join(f"-v {name}:{name}:ro" for name in empty)
        return fail(told, f"install the driver and its tools on the host, then use: docker run {options}")
    return ok(f"{len(wanted)} are there")


@check(
    "AFD-HOST-016",
    "driver",
    Group.HOST,
    about=f"the version in {_VERSION_INFO}",
    expected="the oldest version that the image records, or newer",
    fix="upgrade the driver of the host",
    needs=(Need.NPU,),
    prevents=(f"{VLLM_ASCEND}#5468", f"{VLLM_ASCEND}#3190", f"{VLLM_ASCEND}#1440"),
)
def driver(subject: Subject) -> Finding:
    text = subject.text(_VERSION_INFO)
    if text is None:
        path = DRIVER if subject.soc == "a5" else _VERSION_INFO
        return fail(f"{_VERSION_INFO} is not there", f"use: docker run -v {path}:{path}:ro")
    version = re.search(r"^version\s*=\s*(\S+)", text, re.M | re.I)
    if version is None:
        return fail(f"{_VERSION_INFO} names no version", "install the driver of the host again")
    floor = (subject.manifest or socs.row(subject.soc)).driver_min
    if floor is None or floor == UNVERIFIED:
        return skip(f"driver {version[1]}; nobody has verified which is the oldest that works")
    if version_key(version[1]) < version_key(floor):
        return fail(
            f"driver {version[1]}", f"upgrade the driver of the host to {floor} or newer", f"{floor} or newer"
        )
    return ok(f"driver {version[1]}", f"{floor} or newer")


def version_key(version: str) -> tuple[tuple[int, int], ...]:
    """Orders versions of drivers such as "24.1.rc3", "24.1.0" and "25.0.rc1.1": a candidate is before its release."""
    key = []
    for part in version.lower().split("."):
        match = re.match(r"(rc)?(\d+)", part)
        if match is not None:
            key.append((-1 if match[1] else 0, int(match[2])))
    return (*key, (0, 0))


@check(
    "AFD-HOST-017",
    "hccn",
    Group.HOST,
    about=f"{_HCCN}, the addresses of the cards on their own network",
    expected="an address for each card when there are several: without it answers have been wrong, not absent",
    fix=f"docker run -v {_HCCN}:{_HCCN}:ro",
    needs=(Need.NPU,),
    prevents=(f"{VLLM_ASCEND}#7711",),
)
def hccn(subject: Subject) -> Finding:
    cards = subject.cards()
    if len(cards) < 2:
        return skip(f"{len(cards)} card(s), which need no network")
    text = subject.text(_HCCN)
    remedy = f"use: docker run -v {_HCCN}:{_HCCN}:ro"
    if text is None:
        return fail(f"{_HCCN} is not there", remedy)
    addresses = re.findall(r"^address_(\d+)=(\S+)", text, re.M)
    if not addresses:
        return fail(f"{_HCCN} has no address", f"set the addresses on the host by hccn_tool, then {remedy}")
    return ok(f"{len(addresses)} address(es) in {_HCCN}")


@check(
    "AFD-HOST-018",
    "ranktable",
    Group.HOST,
    about=f"the rank table in {_RANKTABLE}, or the one that RANK_TABLE_FILE names",
    expected="none, or one of the version for this SOC: 1.0 for A2, 1.2 for A3, 2.0 for A5",
    fix="remove it, or write it anew for this hardware",
    needs=(Need.NPU,),
    prevents=("vllm-project/recipes#907", "gpustack/runtime#25", "gpustack/runtime#27"),
)
def ranktable(subject: Subject) -> Finding:
    wanted = socs.RANKTABLES[subject.soc]
    asked = subject.env.get("RANK_TABLE_FILE")
    for name in filter(None, (asked, _RANKTABLE)):
        text = subject.text(name)
        if text is None:
            if name == asked:
                return fail(
                    f"RANK_TABLE_FILE names {name}, which is absent", "unset RANK_TABLE_FILE, or mount it"
                )
            continue
        remedy = f"write it anew for {subject.soc}, or run: rm {subject.path(name)}"
        try:
            found = json.loads(text)
        except ValueError as error:
            return fail(f"{name} is not JSON: {error}", remedy, f"version {wanted}")
        version = found.get("version") if isinstance(found, dict) else None
        if version != wanted:
            return fail(f"{name} has version {version}", remedy, f"version {wanted}")
        return ok(f"{name} has version {version}", f"version {wanted}")
    return ok("no rank table", f"none, or version {wanted}")


@check(
    "AFD-HOST-019",
    "topology",
    Group.HOST,
    about=f"{_TOPOLOGY}, which HCCL reads on A5",
    expected="files in it",
    fix=f"mount the whole driver: docker run -v {DRIVER}:{DRIVER}:ro",
    needs=(Need.NPU,),
    prevents=("vllm-project/recipes#907",),
)
def topology(subject: Subject) -> Finding:
    if subject.soc != "a5":
        return skip(f"not on {subject.soc}")
    directory = subject.path(_TOPOLOGY)
    count = len(list(directory.iterdir())) if directory.is_dir() else 0
    if not count:
        told = f"{_TOPOLOGY} is {'empty' if directory.is_dir() else 'not there'}"
        return fail(told, f"mount the whole driver, use: docker run -v {DRIVER}:{DRIVER}:ro")
    return ok(f"{count} file(s) in {_TOPOLOGY}")


@check(
    "AFD-HOST-020",
    "privileged",
    Group.HOST,
    about="the capability CAP_SYS_ADMIN, which `docker run --privileged` gives",
    expected="not there: a privileged container sees every card, also those that another one uses",
    fix="give devices by --device, and remove --privileged",
    needs=(Need.IMAGE,),
    prevents=(f"{VLLM_ASCEND}#2698", f"{VLLM_ASCEND}#632"),
)
def privileged(subject: Subject) -> Finding:
    text = subject.text("/proc/self/status")
    found = re.search(r"^CapEff:\s*([0-9a-f]+)", text or "", re.M)
    if found is None:
        return skip("/proc/self/status says no capabilities")
    if int(found[1], 16) >> _CAP_SYS_ADMIN & 1:
        return warn(
            "CAP_SYS_ADMIN: the container is privileged", "give devices by --device, and remove --privileged"
        )
    return ok("no CAP_SYS_ADMIN")


CHECKS: tuple[Check, ...] = (
    device_nodes,
    mounts,
    driver,
    hccn,
    ranktable,
    topology,
    privileged,
)
