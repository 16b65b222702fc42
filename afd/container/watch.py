# SPDX-License-Identifier: Apache-2.0
"""supervisord's event listener: hears of the end of each role, notes its exit code, and ends the container.

``python -m afd.container.watch DIRECTORY``. Standard output belongs to the protocol. When one role has ended the other
one has a moment to say its own end, because that may be the cause and this the consequence; not so when the
configuration is wrong. A listener that is started again begins with what has ended meanwhile.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from supervisor import childutils

from afd.agent.threads import unblock_signals
from afd.container.run_files import write
from afd.container.verdict import End
from afd.errors import ConfigError

GROUP, ROLES = "afd", ("ffn", "attention")
ENDS, STOPPING = "ends.json", "stopping"
LAST_WORDS_S = 3.0
"""How long the other role may take to end by itself. It hears of a loss at once, of a silence within 2 s."""
_ENDED = ("EXITED", "FATAL", "UNKNOWN")


def read_ends(directory: Path) -> list[End]:
    """What was noted, in order."""
    try:
        found = json.loads((directory / ENDS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    return [End(role, code) for role, code in found]


class Watch:
    """``supervisor`` is the XML-RPC interface of supervisord, which is the parent of this process."""

    def __init__(self, directory: Path, supervisor: Any) -> None:
        self._directory = directory
        self._supervisor = supervisor
        self._ends = read_ends(directory)
        self._waiting = False

    def look(self) -> None:
        """Note every end that is not noted yet, and decide."""
        known = {end.role for end in self._ends}
        for role in ROLES:
            if role in known:
                continue
            info = self._supervisor.getProcessInfo(f"{GROUP}:{role}")
            if info["statename"] in _ENDED:
                code = info["exitstatus"] if info["statename"] == "EXITED" else None
                self._ends.append(End(role, code))
                write(self._directory / ENDS, [[end.role, end.code] for end in self._ends])
        if len(self._ends) == len(ROLES) or any(end.code == ConfigError.exit_code for end in self._ends):
            self._end()
        elif self._ends and not self._waiting and not (self._directory / STOPPING).exists():
            self._waiting = True
            timer = threading.Timer(LAST_WORDS_S, self._end)
            timer.daemon = True
            timer.start()

    def _end(self) -> None:
        os.kill(os.getppid(), signal.SIGTERM)


def main(directory: str) -> None:
    """Never returns: supervisord ends it."""
    unblock_signals()
    watch = Watch(Path(directory), childutils.getRPCInterface(os.environ).supervisor)
    watch.look()
    while True:
        childutils.listener.wait(sys.stdin, sys.stdout)
        watch.look()
        childutils.listener.ok(sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
