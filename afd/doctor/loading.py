# SPDX-License-Identifier: Apache-2.0
"""Do the heavy packages import, and the entry points load: each in a child that may crash or hang."""

from __future__ import annotations

from collections.abc import Sequence

from afd.doctor import child
from afd.doctor.check import Check, Finding, Group, Need, check, fail, ok, skip
from afd.doctor.image import VLLM_ASCEND, rebuild
from afd.doctor.libraries import DRIVER
from afd.doctor.operators import operators
from afd.doctor.packages import GENERAL_PLUGINS, PLATFORM_PLUGINS, SETUP
from afd.doctor.subject import Subject

IMPORT_S = 180.0
_PROGRAM = "afd.doctor.imports"


def _run(subject: Subject, words: Sequence[str]) -> child.Outcome:
    return child.python(["-m", _PROGRAM, *words], subject.env, IMPORT_S)


def _again(subject: Subject) -> str:
    return rebuild(subject) if subject.manifest else SETUP


def _no_driver(subject: Subject) -> str:
    """Without the driver of a host, the packages of an NPU image cannot be imported, which says nothing about them."""
    if subject.soc == "cpu" or subject.path(DRIVER).is_dir():
        return ""
    return f"no driver here ({DRIVER}), without which torch's NPU package does not import"


@check(
    "AFD-LIB-008",
    "import-torch",
    Group.OFFLINE,
    about="importing torch, and on NPUs its NPU package with it, in a child",
    expected="no error: an undefined symbol means that it was built for another CANN, torch or C++ ABI",
    fix="build the image again; outside an image: make setup",
    needs=(Need.CHILD,),
    prevents=("Ascend/pytorch#99", "Ascend/pytorch#117", f"{VLLM_ASCEND}#750"),
    slow=True,
)
def import_torch(subject: Subject) -> Finding:
    if why := _no_driver(subject):
        return skip(why)
    outcome = _run(subject, ["torch", subject.soc])
    if outcome.answer is None:
        return fail(f"torch does not import: {outcome.problem}", _again(subject))
    return ok(f"torch {outcome.answer['torch']}")


@check(
    "AFD-LIB-009",
    "extensions",
    Group.OFFLINE,
    about="loading the compiled extensions of vLLM-Ascend and of the plugin's operators, in a child that has torch",
    expected="no undefined symbols: they are compiled for one torch",
    fix="build the image again: an extension fits the torch that it was compiled with",
    needs=(Need.NPU, Need.CHILD),
    prevents=(f"{VLLM_ASCEND}#1249",),
    slow=True,
)
def extensions(subject: Subject) -> Finding:
    if why := _no_driver(subject):
        return skip(why)
    package = subject.package("vllm_ascend")
    found = list(package.glob("*_C*.so")) if package is not None else []
    for site in subject.site_packages:
        found += (operators(site) / "lib").glob("_C_ascend*.so")
    files = sorted({str(path) for path in found})
    if not files:
        return fail("no compiled extension of vllm_ascend", rebuild(subject))
    outcome = _run(subject, ["extensions", subject.soc, *files])
    if outcome.answer is None:
        return fail(f"an extension does not load: {outcome.problem}", rebuild(subject))
    return ok(f"{len(files)} extension(s) load")


@check(
    "AFD-LIB-010",
    "entry-points",
    Group.OFFLINE,
    about="loading every plugin of vLLM that is installed, in a child",
    expected="all of them load: vLLM passes over one that does not",
    fix="install what the error names; build the image again",
    needs=(Need.CHILD,),
    prevents=(f"{VLLM_ASCEND}#10525",),
    slow=True,
)
def entry_points(subject: Subject) -> Finding:
    if why := _no_driver(subject):
        return skip(why)
    groups = (PLATFORM_PLUGINS, GENERAL_PLUGINS)
    wanted = [f"{entry.name}={entry.value}" for group in groups for entry in subject.entry_points(group)]
    if not wanted:
        return fail("vLLM has no plugins here", _again(subject))
    outcome = _run(subject, ["entry-points", subject.soc, *wanted])
    if outcome.answer is None:
        return fail(f"plugins do not load: {outcome.problem}", _again(subject))
    broken = outcome.answer["broken"]
    if broken:
        told = "; ".join(f"{name}: {error}" for name, error in broken.items())
        return fail(f"{len(broken)} of {len(wanted)} plugins do not load: {told}", _again(subject))
    return ok(f"{len(wanted)} plugins load")


CHECKS: tuple[Check, ...] = (import_torch, extensions, entry_points)
