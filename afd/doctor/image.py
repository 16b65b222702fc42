# SPDX-License-Identifier: Apache-2.0
"""Is the image what it says that it is: ``/etc/afd/image.json`` against the files beside it."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

from afd import pins
from afd.doctor import elf, socs
from afd.doctor.check import Check, Finding, Group, Need, check, fail, ok, skip, warn
from afd.doctor.subject import Subject
from afd.images.manifest import PATH, Manifest

VLLM_ASCEND = "vllm-project/vllm-ascend"
_INSTALL_INFO = "ascend_toolkit_install.info"
_TOOLKITS = ("/usr/local/Ascend/ascend-toolkit/latest", "/usr/local/Ascend/cann")
_PROGRAMS = ("/usr/bin/env", "/bin/sh", "/bin/bash", "/usr/bin/python3")


def rebuild(subject: Subject) -> str:
    """The remedy for an image that is not what it says."""
    return f"build the image again: make image SOC={subject.soc}"


def of(subject: Subject) -> Manifest:
    """The manifest, for checks that need an image."""
    found = subject.manifest
    if found is None:
        raise LookupError(subject.no_manifest)
    return found


@check(
    "AFD-IMG-001",
    "manifest",
    Group.OFFLINE,
    about=f"{PATH}, which the build of an image writes",
    expected="a file of the schema that this AFD knows",
    fix="build the image again: make image SOC=…",
)
def manifest(subject: Subject) -> Finding:
    found = subject.manifest
    if found is not None:
        return ok(f"{found.soc} on {found.os} {found.arch}, made {found.created}")
    if subject.manifest_error:
        return fail(subject.manifest_error, "")
    return skip(f"{subject.no_manifest}, so this is no image of AFD")


@check(
    "AFD-IMG-002",
    "revision",
    Group.OFFLINE,
    about="the version of AFD that the image records, and the installed one",
    expected="the same version, built from a commit without changes",
    fix="build the image again from a clean checkout: make image SOC=…",
    needs=(Need.IMAGE,),
)
def revision(subject: Subject) -> Finding:
    recorded = of(subject).afd
    installed = subject.installed.get("vllm-afd", "not installed")
    told = f"AFD {recorded.version}, commit {recorded.revision[:12]}"
    if installed != recorded.version:
        return fail(f"{told}, but vllm-afd is {installed}", rebuild(subject), f"vllm-afd {recorded.version}")
    if recorded.dirty:
        return warn(f"{told} with changes that are in no commit", "commit them, and " + rebuild(subject))
    return ok(told)


@check(
    "AFD-IMG-003",
    "base-digest",
    Group.OFFLINE,
    about="the digest of the base image",
    expected="a digest: a tag may be another image tomorrow",
    fix="run: make digests, and build the image again",
    needs=(Need.IMAGE,),
    prevents=(f"{VLLM_ASCEND}#9856", f"{VLLM_ASCEND}#2244"),
)
def base_digest(subject: Subject) -> Finding:
    base = of(subject).base
    if base.digest is None:
        return warn(f"{base.tag} without a digest", f"run: make digests; then {rebuild(subject)}")
    return ok(f"{base.tag} {base.digest[:19]}")


@check(
    "AFD-IMG-004",
    "architecture",
    Group.OFFLINE,
    about="the architecture of the image, and of the programs in it or the machine it runs on",
    expected="the same",
    fix="take the image for this architecture",
    needs=(Need.IMAGE,),
    prevents=(f"{VLLM_ASCEND}#1411",),
)
def architecture(subject: Subject) -> Finding:
    wanted = socs.MACHINES[of(subject).arch]
    if subject.running:
        found, what = os.uname().machine, "this machine"
    else:
        program = next((p for p in map(subject.path, _PROGRAMS) if p.is_file()), None)
        if program is None:
            return fail(f"none of {', '.join(_PROGRAMS)} is there", rebuild(subject))
        found, what = elf.machine(program), subject.inside(program)
    if found != wanted:
        remedy = f"take the image for the other architecture, or {rebuild(subject)}"
        return fail(f"the image is for {wanted}, {what} is {found}", remedy, wanted)
    return ok(f"{wanted}, as {what}")


@check(
    "AFD-IMG-005",
    "upstream-pair",
    Group.OFFLINE,
    about="the commits of vLLM and vLLM-Ascend in the image, and those that this AFD is made for",
    expected="the pinned commits",
    fix="build the image again with this AFD",
    needs=(Need.IMAGE,),
    prevents=(f"{VLLM_ASCEND}#13086",),
)
def upstream_pair(subject: Subject) -> Finding:
    image, pinned = of(subject), pins.load()
    ascend = pinned.ascend_commit if image.soc != "cpu" else None
    wanted = {"vLLM": pinned.vllm_commit, "vLLM-Ascend": ascend}
    found = {"vLLM": image.vllm.commit, "vLLM-Ascend": image.vllm_ascend}
    wrong = [name for name in wanted if found[name] != wanted[name]]
    if wrong:
        told = ", ".join(f"{name} {found[name] or 'none'}" for name in wrong)
        expected = ", ".join(f"{name} {wanted[name] or 'none'}" for name in wrong)
        return fail(told, rebuild(subject), expected)
    return ok(", ".join(f"{name} {commit[:12]}" for name, commit in found.items() if commit))


@check(
    "AFD-IMG-006",
    "soc-version",
    Group.OFFLINE,
    about="SOC_VERSION in the environment",
    expected="spelled exactly as the image was built for: upstream's builds take other spellings and leave out kernels",
    fix="do not set SOC_VERSION in docker run, or set it to what the image records",
    needs=(Need.IMAGE, Need.NPU),
    prevents=(f"{VLLM_ASCEND}#6264",),
)
def soc_version(subject: Subject) -> Finding:
    wanted, found = of(subject).soc_version or "", subject.env.get("SOC_VERSION")
    if found == wanted and socs.of_version(wanted) == subject.soc:
        return ok(f"SOC_VERSION is {found}")
    if socs.of_version(wanted) != subject.soc:
        return fail(f"{PATH} says {wanted!r}, which is no spelling for {subject.soc}", rebuild(subject))
    told = "is not set" if found is None else f"is {found!r}"
    return fail(f"SOC_VERSION {told}", f"use: docker run --env SOC_VERSION={wanted}", wanted)


@check(
    "AFD-IMG-007",
    "build-record",
    Group.OFFLINE,
    about="the device type in vLLM-Ascend's build record",
    expected="that of the SOC of this image: a wheel for another one stops at the start with an assertion",
    fix="build the image again; do not install vllm-ascend from an index",
    needs=(Need.NPU,),
    prevents=(f"{VLLM_ASCEND}#11160", f"{VLLM_ASCEND}#9799", f"{VLLM_ASCEND}#6206"),
)
def build_record(subject: Subject) -> Finding:
    wanted = socs.row(subject.soc).device_type
    directory = subject.package("vllm_ascend")
    if directory is None:
        return fail("vllm-ascend is not installed", rebuild(subject))
    try:
        found = _device_type(directory / "_build_info.py")
    except (OSError, SyntaxError, ValueError) as error:
        return fail(f"vllm-ascend has no readable build record: {error}", rebuild(subject), wanted)
    if found != wanted:
        return fail(f"vllm-ascend was built for {found}", rebuild(subject), wanted)
    return ok(f"vllm-ascend was built for {found}")


def _device_type(path: Path) -> str:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "__device_type__" for target in node.targets
        ):
            return str(ast.literal_eval(node.value)).rpartition(".")[2].upper()
    raise ValueError(f"{path.name} does not name a device type")


@check(
    "AFD-IMG-008",
    "cann",
    Group.OFFLINE,
    about=f"the version in CANN's {_INSTALL_INFO}",
    expected="the version that the image records",
    fix="build the image again on the base that the pins name",
    needs=(Need.IMAGE, Need.NPU),
    prevents=(f"{VLLM_ASCEND}#2244", f"{VLLM_ASCEND}#9856"),
)
def cann(subject: Subject) -> Finding:
    wanted = of(subject).cann
    homes = [
        subject.env[name] for name in ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH") if subject.env.get(name)
    ]
    files = [file for home in (*homes, *_TOOLKITS) for file in subject.path(home).glob(f"*/{_INSTALL_INFO}")]
    if not files:
        return fail(
            f"no {_INSTALL_INFO} below {', '.join(homes) or _TOOLKITS[0]}", rebuild(subject), f"CANN {wanted}"
        )
    text = files[0].read_text(encoding="utf-8", errors="replace")
    version = re.search(r"^version=(\S+)", text, re.M | re.I)
    found = version[1] if version else "without a version"
    if found != wanted:
        return fail(f"{subject.inside(files[0])} says {found}", rebuild(subject), f"CANN {wanted}")
    return ok(f"CANN {found}")


@check(
    "AFD-IMG-009",
    "transports",
    Group.OFFLINE,
    about="the transports that the image offers, and the operators that it records",
    expected="no transport whose operators are not in the image",
    fix="build the image again; until then --afd-transport collective works",
    needs=(Need.IMAGE,),
    prevents=("vllm-project/afd-plugin#303", "vllm-project/afd-plugin#324"),
)
def transports(subject: Subject) -> Finding:
    image = of(subject)
    told = ", ".join(image.transports)
    if "cam" in image.transports and image.operators.a2e == image.operators.cam == "none":
        return fail(f"{told}, but neither a2e and e2a nor CAM are in this image", rebuild(subject))
    if image.operators.cam != "none" and image.soc != pins.load().images.cam.soc:
        return fail(f"{told}, and CAM on {image.soc}, for which there are no binaries", rebuild(subject))
    return ok(f"{told}; a2e {image.operators.a2e}, CAM {image.operators.cam}")


@check(
    "AFD-IMG-010",
    "cann-environment",
    Group.OFFLINE,
    about="the variables by which CANN and NNAL are found",
    expected="set in the environment of the image, to directories that exist",
    fix="start through the image's entry point; a script of a login shell is not read by programs",
    needs=(Need.NPU,),
    prevents=(f"{VLLM_ASCEND}#152", f"{VLLM_ASCEND}#10525", f"{VLLM_ASCEND}#12059"),
)
def cann_environment(subject: Subject) -> Finding:
    names = ("ASCEND_HOME_PATH", "ASCEND_OPP_PATH", "ATB_HOME_PATH")
    absent = [name for name in names if not subject.env.get(name)]
    if absent:
        told = ", ".join(f"{name} is not set" for name in absent)
        return fail(
            told, "start through the image's entry point: docker run IMAGE COMMAND, without --entrypoint"
        )
    wrong = [f"{name}={subject.env[name]}" for name in names if not subject.path(subject.env[name]).is_dir()]
    if wrong:
        return fail(
            f"{', '.join(wrong)}: no such directory", f"do not set it in docker run, or {rebuild(subject)}"
        )
    return ok(", ".join(f"{name}={subject.env[name]}" for name in names))


CHECKS: tuple[Check, ...] = (
    manifest,
    revision,
    base_digest,
    architecture,
    upstream_pair,
    soc_version,
    build_record,
    cann,
    transports,
    cann_environment,
)
