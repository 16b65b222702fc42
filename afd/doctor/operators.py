# SPDX-License-Identifier: Apache-2.0
"""Are the custom operators there: their symbols, and kernels for this SOC.

A build for a SOC that has no kernels ends with success, and the package registers its names in torch all the same: only
the files tell.
"""

from __future__ import annotations

import re
from pathlib import Path

from afd import pins
from afd.doctor import elf, socs
from afd.doctor.check import Check, Finding, Group, Need, check, fail, ok, skip
from afd.doctor.image import VLLM_ASCEND, of, rebuild
from afd.doctor.subject import Subject

_PLUGIN_REPOSITORY = "vllm-project/afd-plugin"
_LIBRARY = "op_api/lib/libcust_opapi.so"
_WORKSPACE = re.compile(r"aclnn\w+GetWorkspaceSize")
CAM_DISTRIBUTION = "umdk-cam-op-lib"


def vllm_ascend_vendors(subject: Subject) -> list[Path]:
    """The directories of vLLM-Ascend's custom operators, which are in its package."""
    directory = subject.package("vllm_ascend")
    found = sorted(directory.glob("_cann_ops_custom/vendors/*")) if directory is not None else []
    return [path for path in found if path.is_dir()]


def a2e_vendors(subject: Subject) -> list[Path]:
    """That of a2e and e2a, which an image has beside its packages."""
    vendor = pins.load().images.operators.vendor
    found = [operators(site) / "vendors" / vendor for site in subject.site_packages]
    return [path for path in dict.fromkeys(found) if path.is_dir()]


def operators(site_packages: Path) -> Path:
    """Where an image has its own operators: beside ``lib`` of the environment with these packages."""
    return site_packages.parents[2] / "operators"


def _kernels(vendor: Path, soc: str) -> int:
    """How many kernels there are for ``soc``."""
    name = socs.kernels(soc)
    return sum(name in path.relative_to(vendor).as_posix() for path in vendor.rglob("*.o"))


@check(
    "AFD-OPS-001",
    "operators-vllm-ascend",
    Group.OFFLINE,
    about="vLLM-Ascend's custom operators: the library with their functions, and kernel files for this SOC",
    expected="a library that offers operators, and kernels for the SOC of this image",
    fix="build the image again",
    needs=(Need.NPU,),
    prevents=(
        f"{VLLM_ASCEND}#9258",
        f"{VLLM_ASCEND}#7095",
        f"{VLLM_ASCEND}#5158",
        f"{VLLM_ASCEND}#5056",
    ),
)
def vllm_ascend(subject: Subject) -> Finding:
    found = [path for path in vllm_ascend_vendors(subject) if (path / _LIBRARY).is_file()]
    if not found:
        return fail(f"no {_LIBRARY} in vllm_ascend/_cann_ops_custom", rebuild(subject))
    offered = [name for name in elf.offered(found[0] / _LIBRARY) if _WORKSPACE.fullmatch(name)]
    if not offered:
        return fail(f"{subject.inside(found[0] / _LIBRARY)} offers no operators", rebuild(subject))
    kernels = _kernels(found[0], subject.soc)
    if not kernels:
        told = f"{len(offered)} operators, but no kernels for {socs.kernels(subject.soc)}"
        return fail(told, rebuild(subject))
    return ok(f"{len(offered)} operators, {kernels} kernels for {socs.kernels(subject.soc)}")


@check(
    "AFD-OPS-002",
    "operators-a2e",
    Group.OFFLINE,
    about="the functions of a2e and e2a in the library of the plugin's operators",
    expected="all of them when the image records that they were built; no such library otherwise",
    fix="build the image again",
    needs=(Need.IMAGE, Need.NPU),
    prevents=(f"{_PLUGIN_REPOSITORY}#53", f"{_PLUGIN_REPOSITORY}#303", f"{_PLUGIN_REPOSITORY}#324"),
)
def a2e(subject: Subject) -> Finding:
    recorded, symbols = of(subject).operators.a2e, pins.load().images.operators.symbols
    libraries = [path / _LIBRARY for path in a2e_vendors(subject) if (path / _LIBRARY).is_file()]
    if recorded == "none":
        if libraries:
            told = f"{subject.inside(libraries[0])} is there, and the image records none"
            return fail(told, rebuild(subject))
        return skip("this image has no a2e and e2a")
    if not libraries:
        return fail(f"no {_LIBRARY} of a2e and e2a, and the image records them", rebuild(subject))
    if absent := elf.undefined(libraries[0], symbols):
        return fail(f"{subject.inside(libraries[0])} does not offer {', '.join(absent)}", rebuild(subject))
    return ok(f"{len(symbols)} functions in {subject.inside(libraries[0])}")


@check(
    "AFD-OPS-003",
    "kernels-a2e",
    Group.OFFLINE,
    about="kernel files of a2e and e2a for this SOC",
    expected="there when the image records that they were built: the library alone says nothing about kernels",
    fix="build the image again",
    needs=(Need.IMAGE, Need.NPU),
    prevents=(f"{_PLUGIN_REPOSITORY}#303", f"{_PLUGIN_REPOSITORY}#324"),
)
def kernels_a2e(subject: Subject) -> Finding:
    if of(subject).operators.a2e == "none":
        return skip("this image has no a2e and e2a")
    wanted = socs.kernels(subject.soc)
    count = sum(_kernels(path, subject.soc) for path in a2e_vendors(subject))
    if not count:
        return fail(f"no kernels for {wanted}", rebuild(subject), wanted)
    return ok(f"{count} kernels for {wanted}")


@check(
    "AFD-OPS-004",
    "operator-path",
    Group.OFFLINE,
    about="ASCEND_CUSTOM_OPP_PATH and LD_LIBRARY_PATH",
    expected="both name every directory of custom operators: what a package adds later is too late for the linker",
    fix="set both in the image, or by docker run --env",
    needs=(Need.NPU,),
    prevents=(f"{VLLM_ASCEND}#9258", f"{VLLM_ASCEND}#7095"),
)
def operator_path(subject: Subject) -> Finding:
    found = [*vllm_ascend_vendors(subject), *a2e_vendors(subject)]
    if not found:
        return fail("no custom operators are installed", rebuild(subject))
    wanted = {
        "ASCEND_CUSTOM_OPP_PATH": [subject.inside(path) for path in found],
        "LD_LIBRARY_PATH": [subject.inside(path / "op_api/lib") for path in found],
    }
    told, options = [], []
    for name, directories in wanted.items():
        present = [item.rstrip("/") for item in subject.env.get(name, "").split(":") if item]
        absent = [item for item in directories if item not in present]
        if absent:
            told.append(f"{name} does not name {', '.join(absent)}")
            options.append(f"--env {name}={':'.join([*absent, *present])}")
    if told:
        return fail("; ".join(told), f"use: docker run {' '.join(options)}")
    return ok(f"{len(found)} directories are named")


@check(
    "AFD-OPS-005",
    "cam",
    Group.OFFLINE,
    about="the CAM operators, binaries that a person adds to an image",
    expected="the package that the image records, in the one kind of image that it fits",
    fix="build the image again with the CAM files, or without",
    needs=(Need.IMAGE, Need.NPU),
)
def cam(subject: Subject) -> Finding:
    image = of(subject)
    installed = subject.installed.get(CAM_DISTRIBUTION)
    if image.operators.cam == "none":
        if installed:
            return fail(
                f"{CAM_DISTRIBUTION} {installed} is installed, and the image records no CAM", rebuild(subject)
            )
        return skip("CAM async is not available in this image")
    fits = pins.load().images.cam
    if (image.soc, image.os, image.arch) != (fits.soc, fits.os, fits.arch):
        told = f"CAM in an image for {image.soc}, {image.os}, {image.arch}"
        return fail(told, rebuild(subject), f"{fits.soc}, {fits.os}, {fits.arch}")
    if not installed:
        return fail(f"the image records CAM, but {CAM_DISTRIBUTION} is not installed", rebuild(subject))
    home = subject.env.get("ASCEND_HOME_PATH", "")
    directory = f"{home}/opp/vendors/CAM"
    if not subject.path(directory).is_dir():
        return fail(f"no {directory}", rebuild(subject))
    if directory not in subject.env.get("ASCEND_CUSTOM_OPP_PATH", "").split(":"):
        path = ":".join(filter(None, (directory, subject.env.get("ASCEND_CUSTOM_OPP_PATH"))))
        told = f"ASCEND_CUSTOM_OPP_PATH does not name {directory}"
        return fail(told, f"use: docker run --env ASCEND_CUSTOM_OPP_PATH={path}")
    return ok(f"{CAM_DISTRIBUTION} {installed}, operators in {directory}")


CHECKS: tuple[Check, ...] = (vllm_ascend, a2e, kernels_a2e, operator_path, cam)
