# SPDX-License-Identifier: Apache-2.0
"""What the launcher forks in these tests."""

from __future__ import annotations

import json
import mmap
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence

import torch

from afd.errors import ConfigError, MismatchError
from afd.launch.streams import name_rank


def succeed(argv: Sequence[str]) -> None:
    print("done", *argv)


def leave(argv: Sequence[str]) -> None:
    sys.exit(int(argv[0]) if argv[0].isdigit() else argv[0])


def leave_quietly(argv: Sequence[str]) -> None:
    sys.exit()


def interrupted(argv: Sequence[str]) -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(30)


def kill_itself(argv: Sequence[str]) -> None:
    os.kill(os.getpid(), int(argv[0]))
    time.sleep(30)


def raise_error(argv: Sequence[str]) -> None:
    raise ValueError("as the test asked")


def raise_mismatch(argv: Sequence[str]) -> None:
    raise MismatchError("two ranks differ")


def _open_files() -> dict[str, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # the listing's own
    return found


def describe(argv: Sequence[str]) -> None:
    """Everything about this process that its caller decides."""
    print(
        json.dumps(
            {
                "argv": sys.argv,
                "env": dict(os.environ),
                "cwd": os.getcwd(),
                "files": _open_files(),
                "session": os.getsid(0) == os.getpid(),
                "threads": threading.active_count(),
                "omp": torch.get_num_threads(),
                "cores": sorted(os.sched_getaffinity(0)),
                "title": open("/proc/self/cmdline").read().strip("\0"),  # noqa: SIM115
                "ignored": [
                    n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_DFL
                ],
            }
        )
    )


def speak(argv: Sequence[str]) -> None:
    """Lines on both streams, a line without an end, bytes that are no text, and a very long line."""
    sys.stdout.write("out\n")
    sys.stdout.flush()
    sys.stderr.write("err\n")
    sys.stderr.flush()
    os.write(1, b"\xff broken\n")
    os.write(1, b"x" * (3 << 20) + b"\n")
    os.write(1, b"last, without an end")


def family(argv: Sequence[str]) -> None:
    """Fork a child with multiprocessing, which forks one itself; say all three numbers, then wait."""
    context = multiprocessing.get_context("fork")
    child = context.Process(target=_child, args=(argv,))
    child.start()
    os.write(1, b"root %d\n" % os.getpid())
    time.sleep(600)


def _child(argv: Sequence[str]) -> None:
    grandchild = multiprocessing.get_context("fork").Process(target=_grandchild, args=(argv,))
    grandchild.start()
    os.write(1, b"child %d\n" % os.getpid())
    time.sleep(600)


def _grandchild(argv: Sequence[str]) -> None:
    os.write(1, b"grandchild %d\n" % os.getpid())
    time.sleep(600)


def listen_and_fork(argv: Sequence[str]) -> None:
    """Listen, fork, serve one connection, close the port and wait."""
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(f"\0targets-{os.getpid()}")
    unix.listen()
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        # As vLLM does: the port is taken first, the engine is forked, and only then it listens.
        multiprocessing.get_context("fork").Process(target=_heir, args=(server.fileno(), unix)).start()
        server.listen()
        print("listening on", server.getsockname()[1], flush=True)
        server.accept()[0].close()
    print("closed", flush=True)
    time.sleep(600)


def _heir(descriptor: int, unix: socket.socket) -> None:
    name = os.readlink(f"/proc/self/fd/{descriptor}").rpartition("/")[2]
    listens = unix.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    print(f"the child has {name} in its place, and a unix socket{' that listens' * listens}", flush=True)
    time.sleep(600)


def speak_all_at_once(argv: Sequence[str]) -> None:
    """This process and three that it forks write to both of their streams, in pieces, at the same time."""
    context = multiprocessing.get_context("fork")
    others = [context.Process(target=_speak, args=(rank,)) for rank in (1, 2, 3)]
    for other in others:
        other.start()
    _speak(0)
    for other in others:
        other.join()


def _speak(rank: int) -> None:
    if rank:
        name_rank(f"A{rank}")
    for number in range(200):
        for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr)):
            stream.write(f"{name} of {rank} tick {number} ")
            stream.flush()
            stream.write("x" * 3000)
            stream.write("\n")
    sys.stdout.flush()


def wait(argv: Sequence[str]) -> None:
    print("waiting", flush=True)
    time.sleep(600)


def wait_for_term(argv: Sequence[str]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
    print("waiting", flush=True)
    time.sleep(600)


def ignore_term(argv: Sequence[str]) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("waiting", flush=True)
    time.sleep(600)


def kill_itself_hard(argv: Sequence[str]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def raise_config(argv: Sequence[str]) -> None:
    raise ConfigError("vLLM does not know --no-such-flag")


def map_shared(argv: Sequence[str]) -> None:
    """Map the file of /dev/shm that ``--chat-template`` names."""
    name = argv[argv.index("--chat-template") + 1]
    with open(f"/dev/shm/{name}", "w+b") as file:
        file.truncate(4096)
        kept = mmap.mmap(file.fileno(), 4096)
    time.sleep(600)
    kept.close()
