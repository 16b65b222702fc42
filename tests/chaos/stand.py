# SPDX-License-Identifier: Apache-2.0
"""What experiments share: launchers that have imported vLLM, native answers, and a group that is up already."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import msgspec

from afd import pins
from afd.agent.launch_protocol import LAUNCHER_VARIABLE
from afd.agent.model_files import resolve
from afd.support.records import Stack
from afd.testing.completions import Answer, Question, ask_all
from afd.testing.golden import digest_of_weights
from afd.testing.questions import MAX_MODEL_LEN, STEP_TOKENS
from afd.testing.records import stack
from afd.testing.reference import Reference, native_arguments
from afd.testing.stack import Group, Layout, SharedLauncher
from afd.topology import Role, Topology
from tests.chaos.cells import Cell, Fault, Phase
from tests.chaos.expected import DRAIN_S, LOAD_S, RENDEZVOUS_S, STEP_S
from tests.chaos.network import ADDRESSES, MachineRoom
from tests.chaos.traffic import EVERY, SERVED

ROOT = Path(__file__).parents[2]
MODEL, RUNNER = "builtin:tiny-deepseek-v2", "v2"
READY_S = 120.0
"""How long a group may take to be ready. Alone on the machine it takes two to five seconds."""
VLLM_ARGS = (
    *("--dtype", "float32", "--max-model-len", str(MAX_MODEL_LEN)),
    *("--max-num-batched-tokens", str(STEP_TOKENS), "--max-num-seqs", "32"),
    *("--shutdown-timeout", f"{DRAIN_S:.0f}"),
)
AFD_ARGS = (*("--afd-timeouts-step-s", str(STEP_S), "--afd-timeouts-rendezvous-s", str(RENDEZVOUS_S)),)

REJOIN_ARGS: tuple[str, ...] = (
    *("--afd-rejoin-backoff-s", "0.2"),
    # A group that is handed on loses an epoch in each experiment.
    *("--afd-rejoin-attempts", "20", "--afd-rejoin-reset-s", "1"),
)


def layout(topology: Topology, on_loss: str = "exit", more: tuple[str, ...] = ()) -> Layout:
    """What every group here is started with."""
    afd_args = (*AFD_ARGS, "--afd-on-loss", on_loss, *more)
    return Layout(MODEL, RUNNER, topology, vllm_args=VLLM_ARGS, afd_args=afd_args)


class Stand:
    """Makes groups, and hands one that is up from an experiment to the next. With ``room`` the roles are on hosts of
    their own; ``native`` are the answers of native vLLM by the name of the question. ``launcher`` is used instead of
    one of its own."""

    def __init__(
        self,
        directory: Path,
        native: Mapping[str, Answer],
        room: MachineRoom | None = None,
        launcher: str | None = None,
    ) -> None:
        self._shared = launcher
        self.directory, self.native, self.room = directory, native, room
        self.temporary = Path(tempfile.mkdtemp(prefix="afd-chaos-"))
        """TMPDIR of the groups: what they leave there is theirs."""
        self._launchers: dict[Role | None, SharedLauncher] = {}
        self._up: tuple[tuple[str, str], Group] | None = None
        self._made = 0

    def launcher(self, role: Role) -> str:
        """The socket of a launcher on the role's host."""
        if self._shared is not None:
            return self._shared
        if not self._launchers:
            for key in tuple(Role) if self.room else (None,):
                place = self.directory / f"launcher-{key or 'both'}"
                place.mkdir(parents=True, exist_ok=True)
                with self._on(key):
                    self._launchers[key] = SharedLauncher(place, RUNNER)
        found = self._launchers[role if self.room else None]
        found.wait()
        return found.path

    def _on(self, role: Role | None) -> AbstractContextManager[None]:
        return self.room.inside(role) if self.room and role else nullcontext()

    # ---- groups -------------------------------------------------------------------------------------------

    def make(self, cell: Cell, before: Group | None = None) -> Group:
        """A group that is not started, on the ports of one before it when that is given. What stops while it loads is
        missed after load_s, so that is short then."""
        self._made += 1
        more = REJOIN_ARGS if cell.on_loss == "rejoin" else ()
        if before is None and cell.fault is Fault.STOP and cell.phase in (Phase.LOAD, Phase.WARMUP):
            more += ("--afd-timeouts-load-s", str(LOAD_S))
        more += ("--afd-host", ADDRESSES[Role.FFN]) if self.room else ()
        group = Group(
            layout(cell.topology, cell.on_loss, more),
            self.directory / f"{cell}" / f"group{self._made}",
            environment={"TMPDIR": str(self.temporary)},
            environments={role: {LAUNCHER_VARIABLE: self.launcher(role)} for role in Role},
            ports={} if before is None else before.ports,
            hosts=ADDRESSES if self.room else {},
        )
        return group.__enter__()

    def start(self, group: Group, *roles: Role) -> None:
        """Start these roles, or FFN and Attention, each on its host."""
        for role in roles or (Role.FFN, Role.ATTENTION):
            with self._on(role):
                group.start(role)

    def ready(self, group: Group) -> float:
        """Wait until the group is ready, and return how many seconds that took. Raises AFDError."""
        began = time.monotonic()
        asyncio.run(group.ready(READY_S))
        return time.monotonic() - began

    def take(self, cell: Cell) -> Group:
        """A group that is ready: the one that is up, when it is of the same kind."""
        if self._up is not None and self._up[0] == (cell.layout, cell.on_loss):
            group = self._up[1]
            self._up = None
            return group
        self.rest()
        group = self.make(cell)
        try:
            self.start(group)
            self.ready(group)
        except BaseException:
            group.__exit__()
            raise
        return group

    def give(self, cell: Cell, group: Group) -> None:
        """Keep a group that is ready."""
        self._up = ((cell.layout, cell.on_loss), group)

    def rest(self) -> dict[Role, int]:
        """Stop the group that is up, if one is, and return its exit codes."""
        if self._up is None:
            return {}
        group, self._up = self._up[1], None
        try:
            return group.stop(DRAIN_S + 10)
        finally:
            group.__exit__()

    def left_in_temporary(self) -> set[str]:
        """Names in the temporary directory of the groups."""
        return set(os.listdir(self.temporary))

    def close(self) -> None:
        if self._up is not None:
            self._up[1].__exit__()
        for launcher in self._launchers.values():
            launcher.close()
        shutil.rmtree(self.temporary, ignore_errors=True)


# ---- what is right --------------------------------------------------------------------------------------------


class Native(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Native vLLM's answers by the name of the question, and what they depend on: see :func:`native_key`."""

    key: Mapping[str, str]
    answers: dict[str, Answer]


def native_key(
    model: str = MODEL, questions: Sequence[Question] = EVERY, installed: Stack | None = None
) -> dict[str, str]:
    """What native vLLM's answers depend on. Any change of it makes them another vLLM's, or to something else."""
    chosen = replace(layout(Topology(1, 1)), model=model)
    pinned = pins.load()
    return {
        "stack": (installed or stack()).digest,
        "vllm": pinned.vllm_commit,
        "model": f"{resolve(model).name} {digest_of_weights(model)}",
        "arguments": " ".join((*native_arguments(chosen), "runner", chosen.runner)),
        "questions": hashlib.sha256(repr(tuple(questions)).encode()).hexdigest(),
    }


def native_answers(directory: Path, launcher: str | None = None) -> dict[str, Answer]:
    """Native vLLM's answers to all questions, from ``directory`` when they are there: they are asked once, and again
    when something they depend on is not what it was."""
    kept, key = native_file(directory), native_key()
    if (before := kept_answers(kept, key)) is not None:
        return before
    if launcher is None:
        own = SharedLauncher(directory, RUNNER)
        try:
            own.wait()
            answers = asyncio.run(_ask_native(directory, own.path))
        finally:
            own.close()
    else:
        answers = asyncio.run(_ask_native(directory, launcher))
    found = {answer.name: answer for answer in answers}
    keep_answers(kept, key, found)
    return found


def native_file(directory: Path) -> Path:
    """Where the answers are kept."""
    return directory / "native.json"


def kept_answers(path: Path, key: Mapping[str, str]) -> dict[str, Answer] | None:
    """The answers that were kept, when they were found with just this key."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Native)
    except (FileNotFoundError, msgspec.DecodeError):
        return None  # nothing yet, or something from before there was a key
    return found.answers if found.key == key else None


def keep_answers(path: Path, key: Mapping[str, str], answers: dict[str, Answer]) -> None:
    """Keep them in one step."""
    path.with_suffix(".new").write_bytes(msgspec.json.encode(Native(key=key, answers=answers)))
    path.with_suffix(".new").rename(path)


async def _ask_native(directory: Path, launcher: str) -> list[Answer]:
    reference = await Reference.start(layout(Topology(1, 1)), directory, launcher)
    try:
        await reference.ready(READY_S)
        return await ask_all(reference.url, SERVED, EVERY, concurrency=4, timeout_s=120)
    finally:
        await reference.close()
