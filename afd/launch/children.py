# SPDX-License-Identifier: Apache-2.0
"""What every process of a role does right after it was forked.

A forked process differs from a freshly started one in ways that matter here: libgomp has read its environment
already, so thread count and cores must be set by call; its parent's death must be told to it; the ports on which its
parent listens are open in it, too, and it writes into the same pipe; and vLLM asks for ``spawn`` by itself on CPU,
which would pay ten seconds of imports per process again.
"""

from __future__ import annotations

import importlib
import multiprocessing
import multiprocessing.context
import os
import re
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from afd.agent.launch_protocol import die_with_parent
from afd.launch.streams import take_own_streams
from afd.rebind import rebind

_NATIVE_SET_NUM_THREADS = torch.set_num_threads

IMPORTERS_OF_GET_MP_CONTEXT = (
    "vllm.utils.system_utils",
    "vllm.v1.engine.utils",
    "vllm.v1.engine.coordinator",
    "vllm.v1.executor.multiproc_executor",
)


def core_list(text: str) -> set[int]:
    """The cores of a list such as "0,2-4", "0 2" or "{0,2}"; empty for every other way to name them."""
    found: set[int] = set()
    for part in re.split(r"[ ,]+", text.strip(" {}")):
        ends = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if ends is None:
            return set()
        found.update(range(int(ends[1]), int(ends[2] or ends[1]) + 1))
    return found


def keep_to(cores: set[int]) -> None:
    """Run on those of ``cores`` that this process may use; anywhere when there are none."""
    allowed = os.sched_getaffinity(0) & cores
    if allowed:
        os.sched_setaffinity(0, allowed)


def apply_thread_environment() -> None:
    """Do by call what OpenMP would have read from the environment at start-up.

    vLLM's CPU executor sets OMP_NUM_THREADS and a core list (OMP_PLACES or GOMP_CPU_AFFINITY) around the start
    of each worker; a forked worker's OpenMP runtime never sees them.
    """
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and int(threads) > 0:
        _NATIVE_SET_NUM_THREADS(int(threads))
    keep_to(core_list(os.environ.get("GOMP_CPU_AFFINITY") or os.environ.get("OMP_PLACES", "")))


_forking = 0
"""The process that forked this one, set just before it does."""


def register() -> None:
    """From now on every process forked from this one, and from those, dies with its parent and has its own threads."""
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)


def _before_fork() -> None:
    global _forking
    _forking = os.getpid()


def _after_fork() -> None:
    die_with_parent(_forking)
    leave_ports()
    take_own_streams()
    apply_thread_environment()


def leave_ports() -> None:
    """Let go of the TCP ports of the parent, those that it will listen on included.

    Else a client of an API server that has closed its port would still be connected, by the kernel, to a port that is
    open in the engine, and wait for an answer until that one ends.
    """
    nowhere = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        if _is_port(descriptor):
            # Not closed: the parent's objects are here, too, and close this number when they are collected.
            os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _is_port(descriptor: int) -> bool:
    """Whether it is a TCP socket that is bound, and no connection."""
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return False
    except OSError:  # the listing's own, closed by now
        return False
    ours = socket.socket(fileno=descriptor)
    try:
        if ours.family not in (socket.AF_INET, socket.AF_INET6) or ours.type != socket.SOCK_STREAM:
            return False
        if not ours.getsockname()[1]:
            return False
        ours.getpeername()
    except OSError:  # connected to nobody
        return True
    finally:
        ours.detach()
    return False


@contextmanager
def forked_children() -> Iterator[None]:
    """Inside the block vLLM forks its engine and worker processes instead of spawning them."""

    def fork_context() -> multiprocessing.context.ForkContext:
        return multiprocessing.get_context("fork")

    with ExitStack() as scope:
        for name in IMPORTERS_OF_GET_MP_CONTEXT:
            scope.enter_context(rebind(importlib.import_module(name), get_mp_context=fork_context))
        yield
