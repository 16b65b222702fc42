# SPDX-License-Identifier: Apache-2.0
"""The reference that AFD is compared with is honest: it answers as a vLLM does that never heard of AFD."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp
import psutil
import pytest

from afd.agent.model_files import resolve
from afd.launch.free_ports import free_port
from afd.testing.completions import Question, ask_all
from afd.testing.reference import Reference, native_arguments, native_environment
from afd.testing.stack import Layout
from tests.system.conftest import Natives, layout
from tests.system.interview import Interview, Script, hold, reasons, report, short_script
from tests.system.variants import MODULES_DIRECTORY

START = {
    "afd",
    "afd.agent",
    "afd.agent.last_words",
    "afd.agent.launch_protocol",
    "afd.errors",
    "afd.families",
    "afd.launch",
    "afd.launch.api_server",
    "afd.launch.arguments",
    "afd.launch.children",
    "afd.launch.inspection",
    "afd.launch.server",
    "afd.rebind",
    "afd.topology",
}
"""All of AFD that the reference has in memory: what forked it, let vLLM look at its model classes before, parsed its
arguments and lets it fork its children."""

_IMPORTED = re.compile(r"import '(afd(?:\.[\w.]+)?)' #")


def test_the_processes_of_the_reference_hold_no_afd_code_but_that_of_their_start(
    tmp_path: Path, launchers: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MODULES_DIRECTORY, str(tmp_path))
    chosen = layout()

    async def processes() -> dict[str, list[str]]:
        target = "tests.system.variants.modules:native"
        reference = await Reference.start(chosen, tmp_path, launchers(chosen.runner), target=target)
        try:
            await reference.ready(90)
            question = Question("any", "Attention keeps", max_tokens=2)
            await ask_all(reference.url, chosen.served, [question], concurrency=1, timeout_s=30)
            root = psutil.Process(reference.pid)
            titles = {p.pid: " ".join(p.cmdline()) for p in [root, *root.children(recursive=True)]}
            # Python's own resource tracker is another program.
            names = {pid: title for pid, title in titles.items() if "resource_tracker" not in title}
            said: dict[str, list[str]] = {}
            deadline = time.monotonic() + 20
            for pid, name in names.items():
                os.kill(pid, signal.SIGUSR1)
                path = tmp_path / f"{pid}.json"
                while not path.exists():
                    assert time.monotonic() < deadline, f"{name} did not say what it has loaded"
                    await asyncio.sleep(0.05)
                said[name] = json.loads(path.read_text())
            return said
        finally:
            await reference.close()

    said = asyncio.run(processes())
    print(f"\n{said}")
    assert len(said) == 3, f"an API server, an engine and a worker are expected: {list(said)}"
    for name, modules in said.items():
        assert set(modules) <= START, f"{name} has loaded {sorted(set(modules) - START)}"


@pytest.mark.timeout(420)
@pytest.mark.parametrize("runner", ["v2", "v1"])
def test_a_vllm_that_was_never_forked_from_a_launcher_gives_the_same_tokens(
    runner: str, tmp_path: Path, natives: Natives
) -> None:
    chosen = layout(runner)
    script = short_script()
    forked = natives(chosen, script)
    log = tmp_path / "plain.log"
    port = free_port()
    # -v prints every module that is imported, in this process and in those that it spawns.
    argv = [sys.executable, "-v", "-m", "vllm.entrypoints.cli.main", "serve"]
    argv += [str(resolve(chosen.model)), *native_arguments(chosen)]
    argv += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", chosen.served]
    with open(log, "wb") as output:
        process = subprocess.Popen(
            argv,
            cwd=tmp_path,
            env=native_environment(chosen),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            plain = asyncio.run(_hold(process, f"http://127.0.0.1:{port}", chosen, script, log))
        finally:
            _end(process)
    said = log.read_text(errors="replace")
    assert "import 'vllm.v1.worker.cpu_worker'" in said, "the imports of the worker were not printed"
    assert sorted(set(_IMPORTED.findall(said))) == [], "a plain vLLM has loaded AFD"

    comparison = forked.against(plain)
    same = all(a.logprobs == b.logprobs for a, b in zip(forked.answers, plain.answers, strict=True))
    report(
        f"forked against spawned vLLM, runner {runner}",
        comparison,
        f"log-probabilities equal to the bit: {same}",
    )
    assert comparison.agrees, reasons(comparison)
    assert comparison.ties == 0
    single = len(script.single)
    for ours, theirs in zip(forked.answers[:single], plain.answers[:single], strict=True):
        assert (ours.tokens, ours.logprobs) == (theirs.tokens, theirs.logprobs), "alone, nothing differs"


async def _hold(
    process: subprocess.Popen[bytes], url: str, chosen: Layout, script: Script, log: Path
) -> Interview:
    """Wait until the server answers, then ask."""
    deadline = time.monotonic() + 300
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session:
        while True:
            try:
                async with session.get(f"{url}/health") as response:
                    if response.status == 200:
                        break
            except (aiohttp.ClientError, asyncio.TimeoutError):
                pass  # not listening yet
            assert process.poll() is None, log.read_text(errors="replace")[-3000:]
            assert time.monotonic() < deadline, "a plain vLLM was not ready within 300 s"
            await asyncio.sleep(0.2)
    return await hold(url, chosen.served, script)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a plain vLLM with its engine and workers."""
    root = psutil.Process(process.pid)
    tree = [root, *root.children(recursive=True)]
    process.terminate()
    psutil.wait_procs(tree, timeout=10)
    for left in tree:
        if left.is_running():
            left.kill()
    process.wait(10)
