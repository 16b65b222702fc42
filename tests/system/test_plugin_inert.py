# SPDX-License-Identifier: Apache-2.0
"""With AFD installed and not asked for, vLLM is vLLM."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from afd.agent.model_files import resolve
from afd.testing.reference import native_arguments, native_environment
from tests.system.conftest import ROOT, layout


def probe(runner: str, log: Path, plugins: str | None) -> subprocess.Popen[bytes]:
    """Start a native worker; ``plugins`` is VLLM_PLUGINS, None for what vLLM does when it is not set."""
    chosen = layout(runner)
    environment = {**native_environment(chosen), "VLLM_LOGGING_STREAM": "ext://sys.stderr"}
    del environment["VLLM_PLUGINS"]
    if plugins is not None:
        environment["VLLM_PLUGINS"] = plugins
    argv = [sys.executable, "-m", "tests.system.variants.inert"]
    with open(log, "wb") as out, open(log.with_suffix(".err"), "wb") as err:
        return subprocess.Popen(
            [*argv, str(resolve(chosen.model)), *native_arguments(chosen)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        )


def result(process: subprocess.Popen[bytes], log: Path) -> dict[str, Any]:
    try:
        code = process.wait(150)
    finally:
        process.kill()
        process.wait()
    assert code == 0, log.with_suffix(".err").read_text()[-3000:]
    found: dict[str, Any] = json.loads(log.read_text().splitlines()[-1])
    return found


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("runner", "runner_class"),
    [
        pytest.param("v2", "vllm.v1.worker.cpu.model_runner.CPUModelRunner", marks=pytest.mark.pairwise),
        ("v1", "vllm.v1.worker.cpu_model_runner.CPUModelRunner"),
    ],
)
def test_without_an_afd_key_every_class_is_vllms_own_and_no_name_is_rebound(
    runner: str, runner_class: str, tmp_path: Path
) -> None:
    logs = tmp_path / "with.json", tmp_path / "without.json"
    processes = probe(runner, logs[0], None), probe(runner, logs[1], "")
    with_plugin, without = (result(process, log) for process, log in zip(processes, logs, strict=True))

    assert with_plugin["AFD modules"] == ["afd", "afd.plugin"], (
        "the plugin is installed, and loads nothing else"
    )
    assert with_plugin["AFD modules later"] == ["afd", "afd.plugin"]
    assert without["AFD modules later"] == []
    assert with_plugin["changed by plugins"] == [["vllm.plugins", "plugins_loaded"]]
    assert len(with_plugin["replaced"]) >= 10
    assert not any(with_plugin["replaced"].values()), with_plugin["replaced"]

    assert with_plugin["classes"] == without["classes"]
    assert with_plugin["classes"]["worker"] == "vllm.v1.worker.cpu_worker.CPUWorker"
    assert with_plugin["classes"]["runner"] == runner_class
    assert with_plugin["classes"]["config"] == "vllm.config.vllm.VllmConfig"
    assert with_plugin["bases of the runner"] == without["bases of the runner"]
    assert not any("afd" in name for name in with_plugin["bases of the runner"])
    assert with_plugin["additional"] == {}
