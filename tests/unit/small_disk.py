# SPDX-License-Identifier: Apache-2.0
"""A Python program beside a file system of 1 MiB, as /dev/shm is in some containers.

It is mounted in a namespace of the program, which needs root or user namespaces. Where both are forbidden, tests with
the mark ``isolated`` fail, and ``-m "not isolated"`` leaves them out.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def on_small_disk(
    code: str, directory: Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``code``, for which ``directory`` is on a file system of 1 MiB; it is also its first argument."""
    script = 'mount -t tmpfs -o size=1m tmpfs "$1" || exit 99; exec "$2" -c "$3" "$1"'
    found = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh", directory, sys.executable, code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), *sys.path]), **(environment or {})},
        capture_output=True,
        text=True,
        timeout=60,
    )
    why = 'this machine does not let this user mount; -m "not isolated" leaves these tests out'
    assert found.returncode != 99 and not found.stderr.startswith("unshare:"), f"{found.stderr}{why}"
    return found
