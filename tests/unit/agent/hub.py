# SPDX-License-Identifier: Apache-2.0
"""A model hub on loopback, as far as downloading a model needs it."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """Serves ``directory`` as the model ``name``. While ``stalled`` is set, weights stop after their first bytes.

    With ``token`` only requests that carry it are answered. ``served`` are the names of the files that were sent,
    ``revisions`` those that they were asked for in.
    """

    name: str
    directory: Path
    token: str = ""
    url: str = ""
    served: list[str] = field(default_factory=list)
    revisions: set[str] = field(default_factory=set)
    stalled: threading.Event = field(default_factory=threading.Event)
    instead: bytes = b""
    """What every question is answered with, when it is set."""
    released: threading.Event = field(default_factory=threading.Event)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@contextmanager
def hub(name: str, directory: Path, token: str = "") -> Iterator[Hub]:
    """A hub that runs inside the block."""
    served = Hub(name, directory, token)

    def names() -> list[str]:
        return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def _answer(self) -> None:
            if served.instead:
                self._send(200, served.instead)
            elif token and self.headers.get("Authorization") != f"Bearer {token}":
                self._send(401, b"{}")
            elif self.path.startswith(f"/api/models/{name}/revision/"):
                files = [{"rfilename": file} for file in names()]
                self._send(200, json.dumps({"id": name, "sha": COMMIT, "siblings": files}).encode())
            elif self.path.startswith(f"/api/models/{name}/tree/"):
                tree = [
                    {
                        "type": "file",
                        "path": file,
                        "size": (directory / file).stat().st_size,
                        "oid": _digest(directory / file)[:40],
                    }
                    for file in names()
                ]
                self._send(200, json.dumps(tree).encode())
            elif self.path.startswith(f"/{name}/resolve/"):
                revision, _, file = self.path.removeprefix(f"/{name}/resolve/").partition("/")
                served.revisions.add(revision)
                if (directory / file).exists():
                    self._send(200, (directory / file).read_bytes(), file)
                else:
                    self._send(404, b"")
            else:
                self._send(404, b"{}")

        def _send(self, code: int, body: bytes, file: str = "") -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            if file:
                self.send_header("ETag", f'"{_digest(directory / file)[:40]}"')
                self.send_header("X-Repo-Commit", COMMIT)
            self.end_headers()
            if self.command == "HEAD":
                return
            if file:
                served.served.append(file)
            if file.endswith(".safetensors") and served.stalled.is_set():
                self.wfile.write(body[:64])
                self.wfile.flush()
                served.released.wait(60)
            else:
                self.wfile.write(body)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        served.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield served
        finally:
            served.released.set()
            server.shutdown()
            thread.join()
