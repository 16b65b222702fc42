# SPDX-License-Identifier: Apache-2.0
"""Every process of a group is killed once while requests are in flight: who says what, how fast, and what is left.

One experiment per victim: start (or go on with what the last experiment started again), ask, kill, look, start again
on the same ports. The tests look at what it found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from afd.testing.completions import Answer, Question
from afd.testing.stack import Group
from afd.topology import Role
from tests.system.conftest import layout
from tests.system.rig import Client, Ends, Traces, decoding, deed, differences, ends, start

LIMIT_S = 2.0
"""From the kill to the exit of the other role."""

Proofs = Callable[[str], tuple[list[Question], list[Answer]]]


@dataclass(frozen=True)
class Victim:
    """A process to kill, the role it belongs to, and what the root cause must say of it ("{pid}": its id)."""

    name: str
    role: Role
    words: str
    runner: str = "v2"
    transport: str = "auto"

    @property
    def is_agent(self) -> bool:
        return self.name.endswith("agent")

    @property
    def other(self) -> Role:
        return Role.FFN if self.role is Role.ATTENTION else Role.ATTENTION

    def __str__(self) -> str:
        over = "" if self.transport == "auto" else f"-{self.transport}"
        return f"{self.name.replace(' ', '-')}-{self.runner}{over}"

    @property
    def group(self) -> tuple[str, str]:
        """What the group is like that it is killed in."""
        return self.runner, self.transport


VICTIMS = (
    Victim("rank F0", Role.FFN, "F0: the rank F0 (process {pid}) was killed"),
    Victim("API server", Role.ATTENTION, "A0: the API server (process {pid}) was killed"),
    Victim("ffn agent", Role.FFN, "F0: its agent (pid {pid} on "),
    Victim("attention agent", Role.ATTENTION, "A0: its agent (pid {pid} on "),
    Victim("EngineCore", Role.ATTENTION, "A0: VLLM::EngineCore (process {pid}) was killed"),
    Victim("Worker", Role.ATTENTION, "A0: VLLM::Worker (process {pid}) was killed"),
    Victim("rank F0", Role.FFN, "F0: the rank F0 (process {pid}) was killed", "v1"),
    Victim("Worker", Role.ATTENTION, "A0: VLLM::Worker (process {pid}) was killed", "v1"),
    Victim("rank F0", Role.FFN, "F0: the rank F0 (process {pid}) was killed", "v2", "collective"),
    Victim("Worker", Role.ATTENTION, "A0: VLLM::Worker (process {pid}) was killed", "v2", "collective"),
)
PAIRWISE = ("rank-F0-v2", "API-server-v2", "rank-F0-v2-collective")


@dataclass
class Found:
    """What one experiment found. ``wrong`` is what differs from native vLLM after starting again."""

    victim: Victim
    pid: int
    ends: Ends
    errors: dict[Role, str]
    clients: dict[str, Answer | Exception]
    client_seconds: dict[str, float]
    left: list[str]
    restart_s: float
    wrong: list[str]


class Stand:
    """The group that is up, handed from one experiment to the next."""

    def __init__(self, make: Callable[[Victim, Group | None], Group], proofs: Proofs) -> None:
        self._make = make
        self._proofs = proofs
        self._up: dict[tuple[str, str], Group] = {}

    def experiment(self, victim: Victim) -> Found:
        for other in [other for other in self._up if other != victim.group]:
            self._up.pop(other).stop()
        if victim.group not in self._up:
            self._up[victim.group] = self._make(victim, None)
            start(self._up[victim.group])
        group = self._up.pop(victim.group)
        questions, native = self._proofs(victim.runner)
        client = Client(group.attention.api_url).start()
        decoding(group.attention)
        traces = Traces.of(group)
        killed = deed(traces.pids[victim.name])
        ended = ends(group, killed)
        # Without its agent a tree has nobody who waits for its end; the kernel and vLLM's helper take a moment.
        left = traces.left_after(1.0 if victim.is_agent else 0.0)
        client.join(5)
        again = self._make(victim, group)
        restart_s = start(again)
        self._up[victim.group] = again
        print(f"{victim}: {ended}; ready again after {restart_s:.1f} s")
        return Found(
            victim=victim,
            pid=traces.pids[victim.name],
            ends=ended,
            errors={role: process.error() for role, process in group.roles.items()},
            clients=client.ends,
            client_seconds={name: at - killed for name, at in client.times.items()},
            left=left,
            restart_s=restart_s,
            wrong=differences(again.attention.api_url, questions, native),
        )


@pytest.fixture(scope="module")
def stand(
    tmp_path_factory: pytest.TempPathFactory, launchers: Callable[[str], str], proofs: Proofs
) -> Iterator[Stand]:
    with ExitStack() as scope:

        def make(victim: Victim, before: Group | None) -> Group:
            directory = tmp_path_factory.mktemp("kills")
            ports = {} if before is None else before.ports
            chosen = layout(victim.runner, afd_args=("--afd-transport", victim.transport))
            return scope.enter_context(Group(chosen, directory, launchers(victim.runner), ports=ports))

        yield Stand(make, proofs)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(victim, id=str(victim), marks=[pytest.mark.pairwise] if str(victim) in PAIRWISE else [])
        for victim in VICTIMS
    ],
)
def found(request: pytest.FixtureRequest, stand: Stand) -> Found:
    return stand.experiment(request.param)


def test_the_other_role_exits_with_70_within_two_seconds(found: Found) -> None:
    other = found.victim.other
    assert found.ends.codes[other] == 70
    assert found.ends.seconds[other] < LIMIT_S


def test_the_role_that_lost_a_process_exits_with_71_soon(found: Found) -> None:
    own = found.victim.role
    assert found.ends.codes[own] == (-9 if found.victim.is_agent else 71)
    assert found.ends.seconds[own] < LIMIT_S + 1


def test_both_roles_name_the_process_that_was_killed(found: Found) -> None:
    words = found.victim.words.format(pid=found.pid)
    assert words in found.errors[found.victim.other]
    assert found.errors[found.victim.role] == (
        "" if found.victim.is_agent else found.errors[found.victim.other]
    )


def test_every_client_gets_an_error_and_none_hangs(found: Found) -> None:
    assert set(found.clients) == {"streamed", "plain"}
    assert all(isinstance(end, Exception) for end in found.clients.values()), found.clients
    assert max(found.client_seconds.values()) < LIMIT_S


def test_no_process_and_no_shared_memory_is_left(found: Found) -> None:
    assert found.left == []


def test_starting_again_on_the_same_ports_works_at_once_with_native_tokens(found: Found) -> None:
    assert found.restart_s < 60
    assert found.wrong == []
