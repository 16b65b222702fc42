# SPDX-License-Identifier: Apache-2.0
"""Are the right packages installed. Nothing is imported; only metadata and files are read."""

from __future__ import annotations

import sys

from packaging.utils import canonicalize_name

from afd import pins
from afd.cli.version import DISTRIBUTION
from afd.doctor.check import Check, Finding, Group, Need, check, fail, ok, skip, warn
from afd.doctor.image import VLLM_ASCEND, of, rebuild
from afd.doctor.subject import Subject
from afd.images import conflicts
from afd.images.bytecode import look

SETUP = "run: make setup"
PLATFORM_PLUGINS, GENERAL_PLUGINS = "vllm.platform_plugins", "vllm.general_plugins"
_PLUGIN = "afd"
_ASCEND_DISTRIBUTION = "vllm-ascend"
# Importing these takes most of a start; how many of their files to look at.
_LARGE = ("vllm", "torch", "transformers")
_SAMPLE = 300
_SHOWN = 5


def _again(subject: Subject) -> str:
    return rebuild(subject) if subject.manifest else SETUP


@check(
    "AFD-PKG-001",
    "python",
    Group.OFFLINE,
    about="the version of Python",
    expected="one that AFD supports, and the one of the image",
    fix="make the environment with another Python: make setup PYTHON=…",
)
def python(subject: Subject) -> Finding:
    if not subject.running:
        return skip(f"{subject.root} is not running; the packages are those of its own Python")
    allowed = pins.load().python
    version = ".".join(map(str, sys.version_info[:3]))
    if not allowed.allows(sys.version_info[:2]):
        return fail(version, "", allowed.specifier)
    if subject.manifest is not None and subject.manifest.python.split(".")[:2] != version.split(".")[:2]:
        wanted = subject.manifest.python
        return fail(f"{version}, the image is made for {wanted}", "use the Python of the image: PATH", wanted)
    return ok(version, allowed.specifier)


@check(
    "AFD-PKG-002",
    "afd",
    Group.OFFLINE,
    about="AFD's own distribution",
    expected="installed, so that vLLM finds its plugin",
    fix=SETUP,
)
def afd(subject: Subject) -> Finding:
    installed = subject.installed.get(DISTRIBUTION)
    if installed is None:
        return fail("not installed as a distribution, so vLLM does not find its plugin", _again(subject))
    return ok(installed)


@check(
    "AFD-PKG-003",
    "vllm",
    Group.OFFLINE,
    about="the version of vLLM",
    expected="the pinned one",
    fix=SETUP,
    prevents=(f"{VLLM_ASCEND}#5710", f"{VLLM_ASCEND}#7587"),
)
def vllm(subject: Subject) -> Finding:
    if subject.manifest is not None:
        return _exact(subject, subject.manifest.vllm.distribution, subject.manifest.vllm.version)
    row = pins.load().platforms.get(subject.soc)
    return _exact(subject, row.distribution if row else "vllm", pins.load().vllm_version)


@check(
    "AFD-PKG-004",
    "torch",
    Group.OFFLINE,
    about="the version of torch",
    expected="the pinned one",
    fix=SETUP,
    prevents=(f"{VLLM_ASCEND}#4917", f"{VLLM_ASCEND}#5710"),
)
def torch(subject: Subject) -> Finding:
    if subject.manifest is not None:
        return _exact(subject, "torch", subject.manifest.torch)
    images = pins.load().images.socs
    wanted = images[subject.soc].cann.torch if subject.soc in images else pins.load().platforms["cpu"].torch
    return _exact(subject, "torch", wanted)


def _exact(subject: Subject, distribution: str, wanted: str) -> Finding:
    found = subject.installed.get(canonicalize_name(distribution))
    if found is None:
        return fail(f"{distribution} is not installed, {wanted} is needed", _again(subject), wanted)
    # A local label such as "+cpu" says how it was built, not what it is.
    if found.partition("+")[0] != wanted.partition("+")[0]:
        return fail(f"{distribution} {found}, {wanted} is needed", _again(subject), wanted)
    return ok(f"{distribution} {found}", wanted)


@check(
    "AFD-PKG-005",
    "excluded",
    Group.OFFLINE,
    about="packages that upstream asks for and that break imports of model classes",
    expected="none of them",
    fix="uninstall them",
    needs=(Need.CPU,),
)
def excluded(subject: Subject) -> Finding:
    names = pins.load().platforms["cpu"].excluded
    present = [name for name in names if canonicalize_name(name) in subject.installed]
    if present:
        remedy = f"they break imports of model classes; run: pip uninstall {' '.join(present)}"
        return fail(f"{', '.join(present)} installed", remedy)
    return ok(f"no {', '.join(names)}")


@check(
    "AFD-PKG-006",
    "v2-runner",
    Group.OFFLINE,
    about='the distribution named "vllm" and the Triton backend that let vLLM\'s V2 runner start on CPU',
    expected="both on CPU, and the backend nowhere else: it breaks Triton Ascend",
    fix=f"{SETUP}; without it only the V1 runner starts (VLLM_USE_V2_MODEL_RUNNER=0)",
)
def v2_runner(subject: Subject) -> Finding:
    backends = [entry.value for entry in subject.entry_points("triton.backends") if entry.name == "cpu"]
    if subject.soc != "cpu":
        if backends:
            return fail(
                f"the Triton backend {backends[0]} is in an image for {subject.soc}", rebuild(subject)
            )
        return ok("no Triton backend for CPU")
    version, found = pins.load().vllm_version, subject.installed.get("vllm")
    if found is None:
        return fail("the alias distribution 'vllm' is not installed", "")
    if "cpu" not in found or found.partition("+")[0] != version:
        return fail(f"the distribution 'vllm' is {found}, not {version}+cpu", "")
    if not backends:
        return fail(f"vllm {found}, but no Triton backend named cpu", "")
    return ok(f"vllm {found}, Triton backend {backends[0]}")


@check(
    "AFD-PKG-007",
    "plugin",
    Group.OFFLINE,
    about="vLLM's plugins, and the filter VLLM_PLUGINS, which counts for every kind of plugin",
    expected="afd is there; VLLM_PLUGINS is not set, or names every plugin of AFD and vLLM-Ascend",
    fix="unset VLLM_PLUGINS",
)
def plugin(subject: Subject) -> Finding:
    general = subject.entry_points(GENERAL_PLUGINS)
    if _PLUGIN not in {entry.name for entry in general}:
        return fail("vLLM's general plugins do not include afd", _again(subject))
    ours = {_PLUGIN}
    for entry in (*general, *subject.entry_points(PLATFORM_PLUGINS)):
        if entry.value.partition(":")[0].partition(".")[0] == "vllm_ascend":
            ours.add(entry.name)
    if subject.soc != "cpu" and ours == {_PLUGIN}:
        return fail(f"{_ASCEND_DISTRIBUTION} has no plugins here, so vLLM finds no platform", _again(subject))
    filtered = subject.env.get("VLLM_PLUGINS")
    if filtered is not None:
        absent = sorted(ours - {name.strip() for name in filtered.split(",")})
        if absent:
            return fail(
                f"VLLM_PLUGINS is {filtered!r}, so vLLM does not load {', '.join(absent)}",
                f"add {','.join(absent)}, or unset it: unset VLLM_PLUGINS",
            )
    return ok(f"vLLM's general plugins: {', '.join(sorted({entry.name for entry in general}))}")


@check(
    "AFD-PKG-008",
    "bytecode",
    Group.OFFLINE,
    about="compiled bytecode of the largest packages",
    expected="there: without it every process compiles thousands of modules at every start",
    fix="run: make setup, or python -m compileall on the environment; every process starts about 15 s sooner",
    needs=(Need.RUNNING,),
)
def bytecode(subject: Subject) -> Finding:
    missing = []
    for package in _LARGE:
        directory = subject.package(package)
        if directory is None:
            continue
        found = look(directory, most=_SAMPLE)
        if not found.enough:
            missing.append(f"{package} {found.sources - len(found.missing)}/{found.sources}")
    if missing:
        return warn(f"not compiled: {', '.join(missing)}", "")
    return ok(f"compiled: {', '.join(_LARGE)}")


@check(
    "AFD-PKG-009",
    "locked",
    Group.OFFLINE,
    about="every package that the image records, and its version",
    expected="installed in the recorded version",
    fix="build the image again; install nothing into a running container",
    needs=(Need.IMAGE,),
    prevents=(f"{VLLM_ASCEND}#3219", f"{VLLM_ASCEND}#5750", f"{VLLM_ASCEND}#7421"),
)
def locked(subject: Subject) -> Finding:
    recorded = of(subject).packages
    wrong = []
    for name, wanted in sorted(recorded.items()):
        found = subject.installed.get(canonicalize_name(name))
        if found != wanted:
            wrong.append(f"{name} {found or 'absent'} ({wanted})")
    if wrong:
        more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        told = f"{len(wrong)} of {len(recorded)} packages differ: {', '.join(wrong[:_SHOWN])}{more}"
        return fail(told, rebuild(subject))
    return ok(f"{len(recorded)} packages as recorded")


@check(
    "AFD-PKG-010",
    "conflicts",
    Group.OFFLINE,
    about="requirements of installed packages that other installed packages do not meet (as `pip check`)",
    expected="none but the reviewed ones in afd/images/conflicts.toml",
    fix="install what is asked for, or review the conflict and add it to the list",
    prevents=(
        f"{VLLM_ASCEND}#5710",
        f"{VLLM_ASCEND}#7587",
        f"{VLLM_ASCEND}#4917",
        f"{VLLM_ASCEND}#5047",
        f"{VLLM_ASCEND}#1411",
    ),
)
def requirements(subject: Subject) -> Finding:
    found = conflicts.found(subject.distributions, subject.installed)
    known = conflicts.reviewed(subject.soc)
    new = [conflict for conflict in found if conflict.key not in known]
    if new:
        more = f" and {len(new) - _SHOWN} more" if len(new) > _SHOWN else ""
        told = f"{len(new)} that nobody has reviewed: {'; '.join(map(str, new[:_SHOWN]))}{more}"
        remedies = sorted({conflict.remedy for conflict in new})
        return fail(told, f"{'; '.join(remedies[:_SHOWN])}; or {_again(subject)}")
    named = ", ".join(sorted({f"{conflict.package} wants {conflict.name}" for conflict in found}))
    return ok(f"{len(found)} conflict(s), reviewed: {named}" if found else "no conflicts")


@check(
    "AFD-PKG-011",
    "triton-ascend",
    Group.OFFLINE,
    about="the distributions of Triton, which share one directory of files",
    expected="the recorded triton-ascend, and no other one over or under it",
    fix="build the image again: Triton Ascend is installed last, after the others were removed",
    needs=(Need.IMAGE, Need.NPU),
    prevents=(f"{VLLM_ASCEND}#3219", f"{VLLM_ASCEND}#5750", f"{VLLM_ASCEND}#7421"),
)
def triton_ascend(subject: Subject) -> Finding:
    wanted, found = of(subject).triton_ascend, subject.installed.get("triton-ascend")
    if found != wanted:
        return fail(f"triton-ascend {found or 'absent'}", rebuild(subject), f"triton-ascend {wanted}")
    if "triton" in subject.installed:
        told = f"triton {subject.installed['triton']} is installed beside triton-ascend {found}"
        return fail(told, rebuild(subject), "no distribution triton")
    return ok(f"triton-ascend {found}")


CHECKS: tuple[Check, ...] = (
    python,
    afd,
    vllm,
    torch,
    excluded,
    v2_runner,
    plugin,
    bytecode,
    locked,
    requirements,
    triton_ascend,
)
