# SPDX-License-Identifier: Apache-2.0
"""Runs a command and notes how long it took: ``python3 scripts/timed.py NAME COMMAND...``.

With ``TIMINGS`` set to a file, one line (name, seconds, exit code) is added to it. ``python3 scripts/timed.py --table``
prints that file as a table. Any Python 3 will do.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time


def main() -> int:
    path = os.environ.get("TIMINGS", "")
    if sys.argv[1:] == ["--table"]:
        with open(path, encoding="utf-8") as timings:
            print(table(timings.read()))
        return 0
    name, *command = sys.argv[1:]
    started = time.monotonic()
    try:
        code = subprocess.call(command)
    except KeyboardInterrupt:
        code = 130
    if path:
        with open(path, "a", encoding="utf-8") as timings:
            timings.write(f"{name}\t{time.monotonic() - started:.1f}\t{code}\n")
    return code


def table(text: str) -> str:
    """The lines of a timings file as an aligned table with a total."""
    rows = [line.split("\t") for line in text.splitlines()]
    total = sum(float(seconds) for _, seconds, _ in rows)
    lines = [f"{'where the time went':<24}{'seconds':>9}  result"]
    for name, seconds, code in rows:
        lines.append(f"{name:<24}{float(seconds):>9.1f}  {'ok' if code == '0' else 'exit ' + code}")
    return "\n".join([*lines, f"{'total':<24}{total:>9.1f}"])


if __name__ == "__main__":
    sys.exit(main())
