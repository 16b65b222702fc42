# SPDX-License-Identifier: Apache-2.0
"""A rank process for tests: ``rank_process.py RANK DEED``, attached to the agent of ``AFD_AGENT_SOCKET``.

Prints "attached", does its deed, then waits for the abort and prints the time of it (CLOCK_MONOTONIC) and the cause.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

from afd.control.session import RankSession
from afd.topology import Rank


def main() -> None:
    rank, deed = Rank.parse(sys.argv[1]), sys.argv[2]
    session = RankSession.attach(rank=rank)
    print("attached", flush=True)
    if deed == "exchange":
        print(sorted(session.exchange("k", str(rank), 10.0).items()), flush=True)
    elif deed == "hold":  # PyDLL keeps the interpreter lock during the call
        ctypes.PyDLL(None).usleep(1_300_000)
        print("held", flush=True)
        session.close("done")
        return
    elif deed == "raise":
        print(session.fail(RuntimeError("weights are corrupt")), flush=True)
    elif deed == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    elif deed == "leave":
        session.close("done")
        return
    seen = threading.Event()
    session.abort.subscribe(seen.set)
    seen.wait(30)
    sys.stdout.write(f"{time.monotonic()} {session.abort.cause}\n")  # one write: the agent prints there too
    sys.stdout.flush()
    session.close("aborted")


main()
