# SPDX-License-Identifier: Apache-2.0
"""Imports point down, without cycles, and the lower layers stay free of torch and vLLM."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rules import imports
from tests.rules.sources import ROOT, Source, checkout, clean, python

AFD = python(checkout())

# Imports the named modules one after the other and says which was the first to bring in something forbidden.
PROBE = """
import importlib, sys
forbidden, *modules = sys.argv[1:]
for module in modules:
    importlib.import_module(module)
    for name in forbidden.split(","):
        if name in sys.modules:
            sys.exit(f"importing {module} imports {name}")
print(len(modules))
"""


def test_imports_inside_afd_point_down() -> None:
    clean(imports.upward(AFD))


def test_no_modules_import_each_other_in_a_circle() -> None:
    clean(imports.cycles(AFD))


def test_each_layer_imports_only_what_it_may_from_outside() -> None:
    clean(imports.foreign(AFD))


@pytest.mark.parametrize("path", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_every_package_is_in_the_table_of_layers(path: str) -> None:
    (page,) = (source for source in checkout() if source.path == path)
    clean(imports.unlisted(AFD, page))


def test_a_package_that_no_table_has_is_found() -> None:
    page = Source("docs/page.md", "| doors | `cli` | the command `afd` |\n\n`pins` are read here.\n")
    there = tuple(Source(f"afd/{name}.py", "") for name in ("__init__", "cli/main", "pins"))
    assert imports.unlisted(there, page) == ["docs/page.md: no table has a row for pins"]


def test_importing_any_l0_module_loads_neither_torch_nor_vllm(tmp_path: Path) -> None:
    modules = [s.module for s in AFD if imports.layer(s.module) == 0]
    assert len(modules) >= 10
    assert _first_offender("torch,vllm,transformers,triton", modules, tmp_path) == ""


def test_the_command_line_starts_without_torch_and_vllm(tmp_path: Path) -> None:
    assert _first_offender("torch,vllm,transformers,triton", ["afd.cli.main", "afd.plugin"], tmp_path) == ""


def test_importing_any_l1_module_does_not_load_vllm(tmp_path: Path) -> None:
    modules = [
        s.module
        for s in AFD
        if imports.layer(s.module) == 1 and not imports.within(s.module, *imports.ASCEND_LEAVES)
    ]
    assert _first_offender("vllm,transformers", modules, tmp_path) == ""


def test_the_probe_notices_a_module_that_loads_a_forbidden_one(tmp_path: Path) -> None:
    (tmp_path / "quiet.py").write_text("")
    (tmp_path / "loud.py").write_text("import colorsys")
    assert _first_offender("colorsys", ["quiet", "loud"], tmp_path) == "importing loud imports colorsys"


def _first_offender(forbidden: str, modules: list[str], directory: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, forbidden, *modules],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{directory}"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    return "" if done.stdout.strip() == str(len(modules)) else done.stderr.strip()


def _tree(**files: str) -> tuple[Source, ...]:
    """Sources from dotted names: ``_tree(afd__control="import torch")`` is "afd/control.py"."""
    return tuple(Source(f"{name.replace('__', '/')}.py", text) for name, text in files.items())


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"afd__config": "import afd.connectors.base", "afd__connectors__base": ""}, "L0 may not import L1"),
        ({"afd__connectors__base": "from afd import models", "afd__models": ""}, "L1 may not import L2"),
        (
            {"afd__ubatch__relay": "from ..attention import mixin", "afd__attention__mixin": ""},
            "L1 may not import L2",
        ),
        (
            {"afd__agent": "def f():\n    from afd.cli import main", "afd__cli__main": ""},
            "L0 may not import L4",
        ),
        ({"afd__ffn__a": "import afd.attention.b", "afd__attention__b": ""}, "never import each other"),
        ({"afd__attention__a": "import afd.ffn.b", "afd__ffn__b": ""}, "never import each other"),
        ({"afd__cli__serve": "import afd.testing.compare", "afd__testing__compare": ""}, "use afd.testing"),
        ({"afd__models__a": "import afd.testing.tiny", "afd__testing__tiny": ""}, "use afd.testing"),
        ({"afd__testing__tiny": "import afd.models.a", "afd__models__a": ""}, "L0 may not import L2"),
        (
            {"afd__attention__a": "import afd.attention.ascend", "afd__attention__ascend": ""},
            "L2 may not import L3",
        ),
        (
            {"afd__agent__processes": "import afd.connectors.base", "afd__connectors__base": ""},
            "L0 may not import L1",
        ),
        (
            {"afd__control__hub": "import afd.connectors.shm.segment", "afd__connectors__shm__segment": ""},
            "L0 may not import L1",
        ),
        ({"afd__observe__state": "import afd.agent.plan", "afd__agent__plan": ""}, "imports the agent"),
        ({"afd__novelty": "import afd.errors", "afd__errors": ""}, "has no layer"),
    ],
)
def test_an_import_in_a_forbidden_direction_is_found(files: dict[str, str], says: str) -> None:
    (found,) = imports.upward(_tree(**files))
    assert says in found


@pytest.mark.parametrize(
    "files",
    [
        {"afd__cli__smoke": "import afd.testing.compare", "afd__testing__compare": ""},
        {
            "afd__agent__cache": "from afd.testing.tiny import build",
            "afd__testing__tiny": "import afd.errors",
        },
        {"afd__attention__ascend": "from afd.attention import mixin", "afd__attention__mixin": ""},
        {"afd__agent__processes": "import afd.connectors.shm.segment", "afd__connectors__shm__segment": ""},
        {"afd__launch__server": "import afd.agent.launch_protocol", "afd__agent__launch_protocol": ""},
    ],
)
def test_an_import_in_an_allowed_direction_is_not_reported(files: dict[str, str]) -> None:
    errors = {} if "afd__errors" in files else {"afd__errors": ""}
    assert imports.upward(_tree(**files, **errors)) == []


@pytest.mark.parametrize(
    "files",
    [
        {"afd__a": "import afd.b", "afd__b": "def later():\n    import afd.a"},
        {"afd__a": "from afd import b", "afd__b": "from afd import c", "afd__c": "from afd.a import x"},
        {"afd__a": "from afd.a import x"},
    ],
)
def test_a_circle_of_imports_is_found_even_when_lazy(files: dict[str, str]) -> None:
    (found,) = imports.cycles(_tree(**files))
    assert found == "import cycle: " + ", ".join(name.replace("__", ".") for name in sorted(files))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("afd/config.py", "import torch"),
        ("afd/agent/a.py", "def f():\n    from vllm import LLM"),
        ("afd/connectors/a.py", "import vllm.config"),
        ("afd/attention/mixin.py", "import torch_npu"),
        ("afd/cli/main.py", "import vllm_ascend"),
        ("afd/errors.py", "import yaml"),
    ],
)
def test_an_import_from_outside_that_the_layer_may_not_have_is_found(path: str, text: str) -> None:
    (found,) = imports.foreign((Source(path, text),))
    assert "not allowed in L" in found


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("afd/connectors/ascend_ops.py", "import torch_npu"),
        ("afd/attention/ascend.py", "import vllm_ascend"),
        ("afd/models/a.py", "import vllm, torch, json"),
    ],
)
def test_an_import_from_outside_that_the_layer_may_have_is_not_reported(path: str, text: str) -> None:
    assert imports.foreign((Source(path, text),)) == []
