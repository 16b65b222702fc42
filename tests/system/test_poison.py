# SPDX-License-Identifier: Apache-2.0
"""No role uses a view of transport memory that is not valid any more."""

from __future__ import annotations

import asyncio

import pytest

from afd.errors import AFDError
from afd.testing.completions import Question, ask_all
from afd.topology import Role
from tests.system.conftest import Groups, Natives, layout
from tests.system.interview import (
    READY_S,
    interview_group,
    reasons,
    report,
    short_script,
    start,
    stop,
)
from tests.system.program import running
from tests.system.variants import ALIASING

PROGRAMS = {role: running(f"tests.system.variants.poison:{role}") for role in Role}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("runner", ["v2", "v1"])
def test_tokens_stay_native_while_transport_memory_is_overwritten_after_use(
    runner: str, groups: Groups, natives: Natives
) -> None:
    chosen = layout(runner)
    native = natives(chosen, short_script())
    group = start(groups(chosen, programs=PROGRAMS))
    ours = interview_group(group, short_script())
    stop(group)
    comparison = ours.against(native)
    report(f"with poison, runner {runner}", comparison)
    assert comparison.agrees, reasons(comparison)


def test_an_output_that_aliases_transport_memory_is_found_overwritten_by_the_next_step(
    groups: Groups,
) -> None:
    group = groups(layout(), programs=PROGRAMS, environment={ALIASING: "1"})
    group.start()
    question = Question("any", "Attention keeps", max_tokens=8)

    async def ask() -> None:
        await group.ready(READY_S)
        await ask_all(group.attention.api_url, "afd", [question], concurrency=1, timeout_s=30)

    with pytest.raises(AFDError):
        asyncio.run(ask())
    assert [role.wait(20) for role in group.roles.values()] == [70, 71]
    for role in group.roles.values():
        assert "what the last step returned was overwritten with" in role.error()
