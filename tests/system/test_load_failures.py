# SPDX-License-Identifier: Apache-2.0
"""A role that cannot load its half: both roles end at once, and both say why in the words of the one that failed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from afd.errors import RoleFailedError
from afd.testing.stack import Group
from afd.testing.tiny import resolve_builtin
from afd.topology import Role
from tests.system.checkpoints import with_another_name
from tests.system.conftest import MODEL, layout
from tests.system.interview import start


@pytest.mark.parametrize(
    ("role", "rank", "known", "unknown"),
    [
        (Role.ATTENTION, "A0", "layers.2.self_attn.o_proj", "layers.2.self_attn.x_proj"),
        (Role.FFN, "F0", "layers.2.mlp.shared_experts", "layers.2.mlp.sharex_experts"),
    ],
)
def test_a_tensor_that_the_model_does_not_know_is_the_cause_that_both_roles_give(
    role: Role, rank: str, known: str, unknown: str, tmp_path: Path, groups: Callable[..., Group]
) -> None:
    damaged = with_another_name(resolve_builtin(MODEL), tmp_path / "damaged", known, unknown)
    group = groups(layout(), models={role: str(damaged)})
    began = time.monotonic()
    with pytest.raises(RoleFailedError):
        start(group)
    codes = {ended: process.wait(5) for ended, process in group.roles.items()}
    print(f"\nafter {time.monotonic() - began:.1f} s: {group.roles[role].error()}")
    for process in group.roles.values():
        assert process.error().startswith(f"{rank}: "), process.error()
        assert unknown in process.error()
    assert codes == {role: 71, next(other for other in Role if other is not role): 70}
