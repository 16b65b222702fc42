# SPDX-License-Identifier: Apache-2.0
"""Roles that were configured differently: both exit naming what differs, before anything was opened."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from afd.agent.plan import versions
from afd.testing import tiny
from afd.testing.stack import Group, Layout
from afd.topology import Role
from tests.system.conftest import Groups, layout
from tests.system.driver import driving
from tests.system.rig import Census, census, ends, until

LIMIT_S = 5.0
"""From the later hello to both exits."""


@dataclass(frozen=True)
class Case:
    """One difference: what it is called, and its value on the role that was changed and on the other."""

    name: str
    changed: str
    other: str
    hello: Mapping[str, Any] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name.replace(" ", "-")


CASES = (
    Case("dtype", "bfloat16", "float32", arguments=("--dtype", "bfloat16")),
    Case("model top-k", "1", "2", arguments=("--hf-overrides", '{"num_experts_per_tok": 1}')),
    Case("num_attention_ranks", "2", "1", hello={"layout.num_attention": 2}),
    Case("num_ffn_ranks", "2", "1", hello={"layout.num_ffn": 2}),
    Case("ids mode", "with token ids", "without token ids", hello={"ids": True}),
    Case("gate placement", "attention", "ffn", hello={"gate": "attention"}),
    Case(
        "connector", "CAMAsyncAFDConnector", "CAMP2pAFDConnector", hello={"connector": "CAMAsyncAFDConnector"}
    ),
    Case("configuration revision", "8", "none", arguments=("--afd-config-revision", "8")),
    Case("version of vllm", "0.0.1", versions()["vllm"], hello={"versions.vllm": "0.0.1"}),
    Case("ubatch.decode_token_threshold", "7", "32", arguments=("--afd-ubatch-decode-token-threshold", "7")),
)
PAIRWISE = ("dtype",)


def _settle(group: Group, first: Role, second: Role, watch: Census) -> None:
    """Start one role, the other when the first waits for it, and see both exit in time with one account."""
    group.start(first)
    until(lambda: "waiting for" in group.roles[first].text(), 20, f"{first} waits")
    group.start(second)
    later = group.roles[second]
    hello = until(lambda: "state: rendezvous" in later.text() or later.exit_code is not None, 20, "the hello")
    found = ends(group, hello)
    print(f"{found}: {group.ffn.error()}")
    assert found.codes == {Role.FFN: 65, Role.ATTENTION: 65}
    assert max(found.seconds.values()) < LIMIT_S
    assert group.ffn.error() == group.attention.error()
    assert set(watch.seen) == {role.process.pid for role in group.roles.values()}, watch.seen
    assert group.ports["rendezvous"] in watch.ports
    assert watch.ports <= {group.ports[name] for name in ("rendezvous", "ffn", "attention")}
    assert not watch.shm
    for role in group.roles.values():
        assert "is process" not in role.text()
        assert "Traceback" not in role.text()


@pytest.mark.parametrize("side", list(Role), ids=str)
@pytest.mark.parametrize(
    "case",
    [pytest.param(c, id=str(c), marks=[pytest.mark.pairwise] if c.name in PAIRWISE else []) for c in CASES],
)
def test_one_field_that_differs_on_either_side_ends_both_roles_before_anything_is_opened(
    groups: Groups, case: Case, side: Role
) -> None:
    group = groups(
        programs={side: driving(hello=case.hello)} if case.hello else {},
        arguments={side: case.arguments},
    )
    with census() as watch:
        _settle(group, Role.FFN, Role.ATTENTION, watch)
    ffn, attention = (case.changed, case.other) if side is Role.FFN else (case.other, case.changed)
    assert f"{case.name}: {ffn} on F0 but {attention} on A0" in group.ffn.error()


def test_the_later_role_may_be_the_one_that_listens(groups: Groups) -> None:
    group = groups(arguments={Role.FFN: ("--dtype", "bfloat16")})
    with census() as watch:
        _settle(group, Role.ATTENTION, Role.FFN, watch)
    assert "dtype: bfloat16 on F0 but float32 on A0" in group.ffn.error()


@pytest.mark.parametrize("side", list(Role), ids=str)
@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"hidden_size": 128}, "model hidden size: {} on F0 but {} on A0"),
        ({"num_layers": 3}, "model layers: {} on F0 but {} on A0"),
        ({"routed_scaling_factor": 2.0}, "model configuration digest: "),
    ],
    ids=["hidden-size", "layers", "a-value-that-has-no-name"],
)
def test_another_model_on_either_side_ends_both_roles(
    groups: Groups, tmp_path: Path, side: Role, change: dict[str, Any], text: str
) -> None:
    base = tiny.BUILTINS["tiny-deepseek-v2"]
    other = tiny.build(replace(base, **change), tmp_path / "other")
    group = groups(models={side: str(other)})
    with census() as watch:
        _settle(group, Role.FFN, Role.ATTENTION, watch)
    (name,) = change
    values = {role: vars(base)[name] for role in Role} | {side: change[name]}
    assert text.format(values[Role.FFN], values[Role.ATTENTION]) in group.ffn.error()


@pytest.mark.parametrize("side", list(Role), ids=str)
def test_another_version_of_afd_on_either_side_ends_both_roles(
    groups: Groups, tmp_path: Path, side: Role
) -> None:
    installed = tmp_path / "site" / "vllm_afd-99.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-afd\nVersion: 99.0\n")
    path = os.pathsep.join(filter(None, (str(installed.parent), os.environ.get("PYTHONPATH"))))
    group = groups(environments={side: {"PYTHONPATH": path}})
    with census() as watch:
        _settle(group, Role.FFN, Role.ATTENTION, watch)
    own = versions()["afd"]
    ffn, attention = ("99.0", own) if side is Role.FFN else (own, "99.0")
    assert f"version of afd: {ffn} on F0 but {attention} on A0" in group.ffn.error()


@pytest.mark.parametrize("side", list(Role), ids=str)
def test_counts_of_ranks_that_differ_end_both_roles(groups: Groups, side: Role) -> None:
    sizes = ("--data-parallel-size", "2") if side is Role.ATTENTION else ()
    group = groups(arguments={side: ("--afd-num-attention-ranks", "2", *sizes)})
    with census() as watch:
        _settle(group, Role.FFN, Role.ATTENTION, watch)
    ffn, attention = ("2 on F0", "1 on A0") if side is Role.FFN else ("1 on F0", "2 on A0, A1")
    assert f"num_attention_ranks: {ffn} but {attention}" in group.ffn.error()


@pytest.mark.parametrize("side", list(Role), ids=str)
def test_a_token_budget_that_differs_ends_both_roles_before_any_shared_memory_of_afd_exists(
    groups: Groups, side: Role
) -> None:
    chosen: Layout = layout()
    group = groups(chosen, arguments={side: ("--max-num-batched-tokens", "96")})
    with census() as watch:
        group.start()
        until(lambda: all("attached" in role.text() for role in group.roles.values()), 60, "both attach")
        attached = until(
            lambda: any(role.exit_code is not None for role in group.roles.values()), 30, "an exit"
        )
        found = ends(group, attached)
    print(f"{found}: {group.ffn.error()}")
    assert found.codes == {Role.FFN: 65, Role.ATTENTION: 65}
    assert max(found.seconds.values()) < LIMIT_S
    ffn, attention = (96, 64) if side is Role.FFN else (64, 96)
    assert f"resolved.max_tokens: {ffn} on F0 but {attention} on A0" in group.ffn.error()
    assert group.ffn.error() == group.attention.error()
    assert len(watch.seen) > 4, "the census did not see the model processes"
    assert not [name for name in watch.shm if name.startswith("afd-")]
    assert watch.left_after(1.0) == []
