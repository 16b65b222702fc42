# SPDX-License-Identifier: Apache-2.0
"""A group in a machine of its own, as far as Linux can make one: ``python -m tests.system.isolated DEED DIRECTORY``.

Run by test_isolated.py inside of new mount and network namespaces. Does the deed while requests are in flight and
prints what became of it as JSON, on the last line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from afd.testing.completions import Answer, Question
from afd.testing.stack import Group, SharedLauncher
from tests.system.conftest import layout
from tests.system.rig import Client, Traces, decoding, ends, start

SHM = Path("/dev/shm")


def fill_shared_memory() -> None:
    """Write until nothing more fits."""
    with open(SHM / "fill", "wb", buffering=0) as file:
        try:
            while file.write(bytes(1 << 16)):
                pass
        except OSError:
            return


def cut_the_network() -> None:
    """No packet arrives any more, and no connection is closed."""
    subprocess.run(["ip", "link", "set", "lo", "down"], check=True)


DEEDS: dict[str, Callable[[], None]] = {"fill": fill_shared_memory, "cut": cut_the_network}


def main(deed: str, directory: Path) -> None:
    """One group, one deed."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(SHM)], check=True)
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
    launcher = SharedLauncher(directory, "v2")
    try:
        launcher.wait()
        with Group(layout(), directory, launcher.path) as group:
            start(group)
            client = Client(group.attention.api_url).start()
            decoding(group.attention)
            traces = Traces.of(group)
            at = time.monotonic()
            DEEDS[deed]()
            # What arrives while shared memory is full is what needs more of it.
            long = [Question(f"long {i}", tuple(range(5, 405)), max_tokens=4) for i in range(16)]
            more = Client(group.attention.api_url, long if deed == "fill" else ()).start()
            found = ends(group, at, 20)
            answered = sum(isinstance(end, Answer) for end in client.ends.values())
            if deed == "fill":
                client.join(5)
                more.join(5)
            print(
                json.dumps(
                    {
                        "codes": {str(role): code for role, code in found.codes.items()},
                        "seconds": max(found.seconds.values()),
                        "errors": {str(role): process.error() for role, process in group.roles.items()},
                        "answered": answered,
                        "left": traces.left_after(1.0),
                    }
                ),
                flush=True,
            )
    finally:
        launcher.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
