# SPDX-License-Identifier: Apache-2.0
"""What holds for every test: a clean environment, a cache of its own, and nothing left running."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import hypothesis
import psutil
import pytest

from tests.lasting import LASTING

# A busy machine makes single examples slow, which is no failure; CI runs the same examples every time.
hypothesis.settings.register_profile("afd", deadline=None, derandomize="CI" in os.environ)
hypothesis.settings.load_profile("afd")

# multiprocessing's own helpers live as long as the interpreter.
_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--records", metavar="DIR", help="write the records of system tests here, e.g. tests/records"
    )
    soak = "tests/system/test_soak.py: "
    parser.addoption("--soak-layout", default="2A1F", metavar="xAyF", help=soak + "layout (2A1F)")
    parser.addoption("--soak-requests", default="300", metavar="N", help=soak + "number of requests (300)")
    parser.addoption("--soak-idle", default="20", metavar="S", help=soak + "seconds without a request (20)")
    parser.addoption("--soak-figures", metavar="FILE", help=soak + "write the figures here, as JSON")


@pytest.fixture(scope="session", autouse=True)
def _clean_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Settings of the person who runs the tests must not reach them, nor the tests' files that person's cache."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AFD_")]:
            patch.delenv(name)
        patch.setenv("AFD_CACHE_DIR", str(tmp_path_factory.mktemp("afd-cache")))
        yield


@pytest.fixture(autouse=True)
def _nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that leaves a process or a thread that would keep the interpreter alive fails, and says which.

    What fixtures of a wider scope started before it does not count.
    """
    processes, threads = _processes(), _threads()
    yield
    deadline = time.monotonic() + 2
    while (left := (_processes() - processes, _threads() - threads)) != (set(), set()):
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    for process in left[0]:
        process.kill()
    psutil.wait_procs(left[0], timeout=2)
    names = [*(_describe(process) for process in left[0]), *(f"thread {thread.name}" for thread in left[1])]
    assert not names, f"{request.node.name} left behind: {', '.join(names)}"


def _processes() -> set[psutil.Process]:
    found = set()
    for process in psutil.Process().children(recursive=True):
        try:
            if process.pid in LASTING or process.status() == psutil.STATUS_ZOMBIE:
                continue
            if not any(helper in " ".join(process.cmdline()) for helper in _HELPERS):
                found.add(process)
        except psutil.NoSuchProcess:
            continue
    return found


def _threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if not thread.daemon}


def _describe(process: psutil.Process) -> str:
    try:
        return f"process {process.pid} ({' '.join(process.cmdline())[:80]})"
    except psutil.NoSuchProcess:
        return f"process {process.pid}"
