# SPDX-License-Identifier: Apache-2.0
"""Replacing names for the length of a block. The rows of HOOKS are compared with vLLM in tests/unit/vllm."""

from __future__ import annotations

import types

import pytest

from afd.rebind import HOOKS, rebind


@pytest.fixture
def module() -> types.ModuleType:
    made = types.ModuleType("upstream")
    vars(made).update(Runner=int, step=len)
    return made


def test_names_are_replaced_inside_the_block_only(module: types.ModuleType) -> None:
    with rebind(module, Runner=float, step=max):
        assert (module.Runner, module.step) == (float, max)
    assert (module.Runner, module.step) == (int, len)


def test_names_come_back_when_the_block_raises(module: types.ModuleType) -> None:
    with pytest.raises(ValueError, match="inside"), rebind(module, Runner=float):
        raise ValueError("inside")
    assert module.Runner is int


def test_a_name_that_is_gone_upstream_is_refused_and_nothing_is_replaced(module: types.ModuleType) -> None:
    with pytest.raises(AttributeError, match=r"cannot rebind upstream\.Gone: upstream no longer defines it"):
        with rebind(module, Runner=float, Gone=1):
            raise AssertionError("not reached")
    assert module.Runner is int
    assert "Gone" not in vars(module)


def test_blocks_may_be_nested_and_each_restores_what_it_found(module: types.ModuleType) -> None:
    with rebind(module, Runner=float):
        with rebind(module, Runner=str):
            assert module.Runner is str
        assert module.Runner is float
    assert module.Runner is int


def test_a_name_of_a_class_is_replaced_and_an_inherited_one_is_not() -> None:
    class Base:
        def inherited(self) -> int:
            return 1

    class Owner(Base):
        def own(self) -> int:
            return 1

    with rebind(Owner, own=lambda self: 2):
        assert Owner().own() == 2
    assert Owner().own() == 1
    with pytest.raises(AttributeError, match=r"Owner\.inherited"), rebind(Owner, inherited=None):
        raise AssertionError("not reached")


def test_every_hook_says_why_it_is_there_and_when_it_goes() -> None:
    assert 0 < len(HOOKS) <= 8
    for hook in HOOKS:
        assert hook.reason and hook.until and hook.where.startswith("afd.")
        assert hook.signature == "class" or hook.signature.startswith("(")
