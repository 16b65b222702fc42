# SPDX-License-Identifier: Apache-2.0
"""Command lines of ``afd`` in one process that may open nothing: ``python -m tests.unit.cli.refused < cases``.

A case is a JSON object with ``argv``, ``environment`` and ``packages`` (directories to look for distributions in
first). Prints, as one JSON line each, the exit code, what was said, and what was opened: the interpreter reports every
port, connection, process and file, and what is left is counted afterwards.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import threading
from typing import Any

import psutil

from afd.cli.main import run

_FORBIDDEN = ("socket.bind", "socket.connect", "subprocess.Popen", "os.fork", "os.posix_spawn", "os.exec")
_SHM = "/dev/shm"


class Watch:
    """What this process opens while it is on."""

    def __init__(self) -> None:
        self.on = False
        self.seen: list[str] = []
        sys.addaudithook(self._heard)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        opened = event == "open" and str(arguments[0]).startswith(_SHM)
        if opened or event.startswith(_FORBIDDEN):
            self.seen.append(f"{event} {arguments}")
            raise PermissionError(f"a command line that is refused did {event} {arguments}")


def left() -> list[str]:
    """Processes, sockets that listen, threads besides this one, and mapped shared memory."""
    me = psutil.Process()
    return [
        *(f"process {child.pid}" for child in me.children(recursive=True)),
        *(f"socket {found.laddr}" for found in me.net_connections() if found.status == psutil.CONN_LISTEN),
        *(
            f"thread {thread.name}"
            for thread in threading.enumerate()
            if thread is not threading.main_thread()
        ),
        *(found.path for found in me.memory_maps() if found.path.startswith(_SHM)),
        *(f"import {name}" for name in ("torch", "vllm") if name in sys.modules),
    ]


def main() -> None:
    watch = Watch()
    for case in json.load(sys.stdin):
        before = dict(os.environ)
        os.environ.update(case["environment"])
        sys.path[:0] = case["packages"]
        said = io.StringIO()
        watch.seen.clear()
        try:
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
                watch.on = True
                code = run(case["argv"])
                watch.on = False
        finally:
            watch.on = False
            os.environ.clear()
            os.environ.update(before)
            del sys.path[: len(case["packages"])]
        found = {"code": code, "said": said.getvalue(), "opened": list(watch.seen), "left": left()}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
