# SPDX-License-Identifier: Apache-2.0
"""The health check: what agents say, in bounded time, and nothing heavy imported."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from afd.container import healthcheck, run_files
from afd.container.run_files import RunFiles

DEAD = 1  # nobody listens there


class Agent(BaseHTTPRequestHandler):
    """Live, and not ready."""

    def do_GET(self) -> None:
        ready = self.path == "/readyz"
        body = json.dumps({"state": "loading", **({"reason": "weights"} if ready else {})}).encode()
        self.send_response(503 if ready else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class V6(HTTPServer):
    address_family = socket.AF_INET6


@pytest.fixture(params=["127.0.0.1"])
def agent(request: pytest.FixtureRequest) -> Iterator[int]:
    """Its port; it listens on the address that is the parameter."""
    host = request.param
    server = (V6 if ":" in host else HTTPServer)((host, 0), Agent)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_address[1]
    server.shutdown(), server.server_close(), thread.join(5)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunFiles]:
    monkeypatch.setenv(run_files.VARIABLE, str(tmp_path / "run"))
    files = RunFiles(os.environ)
    yield files
    files.close()


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.strip()


def test_it_is_healthy_when_every_agent_lives(
    agent: int, files: RunFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    files.agents({"attention": ("0.0.0.0", agent), "ffn": ("0.0.0.0", agent)})
    assert healthcheck.main([]) == 0
    assert said(capsys) == "healthy: attention: loading, ffn: loading"


@pytest.mark.parametrize(
    ("agent", "told"),
    [
        ("0.0.0.0", "0.0.0.0"),
        ("127.0.0.1", ""),
        ("127.0.0.5", "127.0.0.5"),
        ("::", "::"),
        ("::1", "::1"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("127.0.0.1", "localhost"),
    ],
    indirect=["agent"],
)
def test_an_agent_is_asked_at_the_address_on_which_it_listens(agent: int, told: str, files: RunFiles) -> None:
    files.agents({"ffn": (told, agent)})
    assert healthcheck.check("/livez", 5) == (True, "ffn: loading")


def test_readiness_is_asked_for_with_a_flag(
    agent: int, files: RunFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    files.agents({"ffn": ("0.0.0.0", agent)})
    assert healthcheck.main(["--ready"]) == 1
    assert said(capsys) == "unhealthy: ffn: loading (weights)"


def test_one_agent_that_does_not_answer_makes_it_unhealthy(
    agent: int, files: RunFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    files.agents({"attention": ("127.0.0.1", agent), "ffn": ("127.0.0.1", DEAD)})
    assert healthcheck.main([]) == 1
    assert "attention: loading, ffn: no answer at 127.0.0.1:1: [Errno 111]" in said(capsys)


def test_an_agent_that_hangs_does_not_hang_the_check(files: RunFiles) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        files.agents({"ffn": deaf.getsockname(), "attention": deaf.getsockname()})
        begun = time.monotonic()
        assert healthcheck.main(["--timeout", "0.3"]) == 1
    assert time.monotonic() - begun < 1


def test_without_a_role_it_is_unhealthy_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(run_files.VARIABLE, str(tmp_path))
    assert healthcheck.main([]) == 1
    assert "no role runs in this container" in said(capsys)


def test_a_port_that_nobody_knows_is_unhealthy(files: RunFiles, capsys: pytest.CaptureFixture[str]) -> None:
    files.agents({"ffn": ("0.0.0.0", 0)})
    assert healthcheck.main([]) == 1
    assert "--agent-port 0" in said(capsys)


@pytest.mark.parametrize("arguments", [["--redy"], ["x"], ["--timeout", "0"], ["--timeout", "soon"]])
def test_wrong_arguments_are_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert healthcheck.main(arguments) == 64
    assert "afd-healthcheck: error: " in capsys.readouterr().err


def test_it_looks_where_the_entry_point_writes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert healthcheck.AGENTS == run_files.AGENTS
    monkeypatch.delenv(run_files.VARIABLE, raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for chosen in ({}, {run_files.VARIABLE: str(tmp_path / "chosen")}):
        for name, value in chosen.items():
            monkeypatch.setenv(name, value)
        files = RunFiles(os.environ)
        files.agents({"ffn": ("", DEAD)})
        assert "127.0.0.1:1" in healthcheck.check("/livez", 1)[1]
        files.close()


def test_it_imports_nothing_of_afd_but_its_package() -> None:
    probe = (
        "import sys\nfrom afd.container import healthcheck\n"
        "print([m for m in sys.modules if m.startswith(('afd.', 'aiohttp', 'torch', 'vllm', 'click', 'msgspec'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout.strip() == "['afd.container', 'afd.container.healthcheck']"
