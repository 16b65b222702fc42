# SPDX-License-Identifier: Apache-2.0
"""What the launcher lets vLLM find out about model classes before it forks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from afd.families import FAMILIES
from tests.unit.vllm.conftest import Module

ARCHITECTURES = [name for family in FAMILIES for name in family.architectures]


@pytest.mark.parametrize("writable", [True, False])
def test_vllm_inspects_the_classes_of_all_families_here_once_and_asks_no_other_process(
    module: Module, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, writable: bool
) -> None:
    registry = module("vllm.model_executor.models.registry")
    # A fresh home. A cache that cannot be written, as in a read-only container, is one that never has the answer.
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path if writable else Path("/proc/nowhere")))
    monkeypatch.setattr(registry, "_SUBPROCESS_COMMAND", [sys.executable, "-c", "raise SystemExit('asked')"])
    registry._try_inspect_model_cls.cache_clear()
    before = registry._run_in_subprocess
    for family in FAMILIES:
        module(family.module)
    try:
        module("afd.launch.inspection").inspect_families()
        assert registry._run_in_subprocess is before
        inspected = {name: registry.ModelRegistry._try_inspect_model_cls(name) for name in ARCHITECTURES}
    finally:
        registry._try_inspect_model_cls.cache_clear()
    classes = {name: registry.ModelRegistry.models[name].class_name for name in ARCHITECTURES}
    for name, info in inspected.items():
        assert info is not None and info.architecture == classes[name]
        assert info.is_text_generation_model
    assert len(list(tmp_path.glob("modelinfos/*.json"))) == (len(set(classes.values())) if writable else 0)
