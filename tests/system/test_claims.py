# SPDX-License-Identifier: Apache-2.0
"""Roles that may not join, or take a place that somebody has: refused or restarted, with the cause on both sides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from afd.launch.free_ports import free_port
from afd.testing.completions import Answer, Question
from afd.testing.stack import Group, RoleProcess
from afd.topology import Role
from tests.system.conftest import Groups
from tests.system.rig import READY_S, differences, ends, start, until

LIMIT_S = 5.0
"""From the later hello to what it brings about."""
TOKEN, WRONG = "correct horse battery staple", "an entirely different secret"

Proofs = Callable[[str], tuple[list[Question], list[Answer]]]
More = Callable[..., RoleProcess]


@pytest.fixture
def more(tmp_path: Path, launchers: Callable[[str], str]) -> Iterator[More]:
    """Starts one more role for the rendezvous of a group, with an agent port and an API port of its own."""
    with ExitStack() as scope:
        number = 0

        def role(group: Group, kind: Role, *arguments: str) -> RoleProcess:
            nonlocal number
            number += 1
            directory = tmp_path / f"more{number}"
            directory.mkdir()
            ports = {**group.ports, str(kind): free_port(), "api": free_port()}
            launcher = launchers(group.layout.runner)
            made = RoleProcess(kind, group.layout, directory, ports, launcher=launcher, arguments=arguments)
            scope.callback(made.close)
            return made

        yield role


@pytest.mark.timeout(240)
def test_a_second_role_for_a_place_of_a_running_group_ends_it_for_both_and_gets_the_next_one(
    groups: Groups, proofs: Proofs, more: More
) -> None:
    questions, native = proofs("v2")
    group = groups()
    start(group)
    again = more(group, Role.ATTENTION)
    hello = until(lambda: "state: rendezvous" in again.text(), 20, "the later hello")
    found = ends(group, hello)
    errors = {role: process.error() for role, process in group.roles.items()}
    print(f"{found}: {errors}")
    assert found.codes == {Role.FFN: 70, Role.ATTENTION: 71}
    assert max(found.seconds.values()) < LIMIT_S
    for error in errors.values():
        assert "rank restarted: A0 said hello again from " in error
    assert again.exit_code is None

    for role in group.roles.values():
        role.close()
    group.start(Role.FFN)
    group.roles[Role.ATTENTION] = again
    asyncio.run(group.ready(READY_S))
    assert differences(again.api_url, questions, native) == []
    assert group.stop() == {Role.FFN: 0, Role.ATTENTION: 0}


@pytest.mark.timeout(240)
def test_a_role_with_a_wrong_token_is_refused_on_both_sides_and_the_one_with_the_right_one_is_served(
    groups: Groups, proofs: Proofs, more: More, tmp_path: Path
) -> None:
    questions, native = proofs("v2")
    files = {}
    for name, text in (("right", TOKEN), ("wrong", WRONG)):
        files[name] = tmp_path / name
        files[name].write_text(text)
        files[name].chmod(0o600)
    right = ("--afd-auth-token-file", str(files["right"]))
    group = groups(arguments={Role.FFN: right, Role.ATTENTION: right})
    group.start(Role.FFN)
    until(lambda: "waiting for A0" in group.ffn.text(), 20, "FFN waits")

    stranger = more(group, Role.ATTENTION, "--afd-auth-token-file", str(files["wrong"]))
    hello = until(
        lambda: "state: rendezvous" in stranger.text() or stranger.exit_code is not None, 20, "hello"
    )
    assert stranger.wait(20) == 65
    told = until(
        lambda: "the token of A0 is not that of F0" in group.ffn.text(), LIMIT_S, "FFN tells it, too"
    )
    print(f"refused after {told - hello:.2f} s at most: {stranger.error()}")
    assert told - hello < LIMIT_S
    assert "the token of A0 is not that of F0" in stranger.error()
    assert group.ffn.exit_code is None

    start(group, Role.ATTENTION)
    assert differences(group.attention.api_url, questions, native) == []
    assert group.stop() == {Role.FFN: 0, Role.ATTENTION: 0}
    for role in (group.ffn, group.attention, stranger):
        assert TOKEN not in role.text() and WRONG not in role.text()
