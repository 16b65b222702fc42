# SPDX-License-Identifier: Apache-2.0
"""Becomes one role: ``python -m afd.container.role FILE``, as supervisord runs it.

FILE holds the command line, the cores and the extra variables of the role, so that supervisord's configuration holds
nothing that a user has written. The role ends with supervisord, and gets no signal before it listens: those of a stop
are blocked when it starts (:mod:`afd.container.supervisord`).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from afd.agent.launch_protocol import die_with_parent


def main(path: str) -> None:
    """Never returns."""
    die_with_parent(os.getppid())
    role = json.loads(Path(path).read_text(encoding="utf-8"))
    if role["affinity"]:
        os.sched_setaffinity(0, role["affinity"])
    os.execve(role["command"][0], role["command"], {**os.environ, **role["variables"]})


if __name__ == "__main__":
    main(sys.argv[1])
