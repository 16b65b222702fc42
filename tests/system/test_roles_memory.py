# SPDX-License-Identifier: Apache-2.0
"""A role holds its own half of the model and nothing of the other's: in parameters, in bytes, and in what it reads."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from afd.agent.safetensors_files import read_header
from afd.families import FAMILIES, Family
from afd.testing.reference import Reference
from afd.testing.stack import Group, Layout
from afd.testing.tiny import BUILTINS, TinyModel, build
from afd.topology import Role
from tests.system.conftest import VLLM_ARGS, layout
from tests.system.interview import READY_S, start, stop
from tests.system.program import running
from tests.system.variants import INVENTORY_DIRECTORY

pytestmark = [pytest.mark.pairwise, pytest.mark.timeout(300)]

MIB = 1 << 20

WIDE = {
    "deepseek": TinyModel(num_experts=16, moe_intermediate_size=1024, shards=3),
    "qwen3_moe": replace(BUILTINS["tiny-qwen3-moe"], num_experts=24, moe_intermediate_size=1024, shards=3),
}
"""For each family experts that outweigh everything else, in three files."""

ROLES = ("attention", "ffn", "native")


@pytest.fixture(scope="module", params=sorted(WIDE))
def family(request: pytest.FixtureRequest) -> Family:
    """The family of the checkpoint."""
    (row,) = (row for row in FAMILIES if row.name == request.param)
    return row


@pytest.fixture(scope="module")
def wide(family: Family, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint."""
    return build(WIDE[family.name], tmp_path_factory.mktemp("wide") / "model")


def take(chosen: Layout, directory: Path, launcher: str) -> dict[str, dict[str, Any]]:
    """What each role and native vLLM hold, from real processes that serve the same checkpoint."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(INVENTORY_DIRECTORY, str(directory))
        programs = {role: running(f"tests.system.variants.inventory:{role}") for role in Role}
        with Group(chosen, directory, launcher, programs=programs) as group:
            start(group)
            stop(group)

        async def native() -> None:
            target = "tests.system.variants.inventory:native"
            reference = await Reference.start(chosen, directory, launcher, target=target)
            try:
                await reference.ready(READY_S)
            finally:
                await reference.close()

        asyncio.run(native())
    return {name: json.loads((directory / f"{name}.json").read_text()) for name in ROLES}


@pytest.fixture(scope="module")
def inventories(
    wide: Path, launchers: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """That of the wide checkpoint."""
    chosen = layout(model=str(wide))
    return take(chosen, tmp_path_factory.mktemp("inventory"), launchers(chosen.runner))


@pytest.fixture(scope="module")
def checkpoint(wide: Path) -> dict[str, int]:
    """Name and bytes of every tensor of the checkpoint."""
    found: dict[str, int] = {}
    for path in wide.glob("*.safetensors"):
        for name, entry in read_header(path).items():
            first, end = entry["data_offsets"]
            found[name] = end - first
    return found


def total(tensors: dict[str, list[Any]]) -> int:
    return sum(size for _, _, size, _ in tensors.values())


def test_the_two_halves_are_the_native_model_and_share_nothing(
    inventories: dict[str, dict[str, Any]],
) -> None:
    for kind in ("parameters", "buffers"):
        attention, ffn, native = (inventories[name][kind] for name in ROLES)
        print(
            f"\n{kind}: attention {len(attention)} of {total(attention)} bytes, ffn {len(ffn)} of {total(ffn)} "
            f"bytes, native {len(native)} of {total(native)} bytes"
        )
        assert set(attention) & set(ffn) == set()
        assert {**attention, **ffn} == native
        assert total(attention) + total(ffn) == total(native)
    assert all(".mlp." in name for name in inventories["ffn"]["parameters"])
    assert not any(".mlp." in name for name in inventories["attention"]["parameters"])


def test_dummy_weights_of_a_role_have_the_values_that_native_gives_them(
    tmp_path: Path, launchers: Callable[[str], str]
) -> None:
    """Tokens would not tell: with dummy weights the FFN hardly moves them."""
    chosen = layout(vllm_args=(*VLLM_ARGS, "--load-format", "dummy"))
    attention, ffn, native = take(chosen, tmp_path, launchers(chosen.runner)).values()
    assert {**attention["parameters"], **ffn["parameters"]} == native["parameters"]
    assert attention["read"] == ffn["read"] == native["read"] == {}


def test_a_role_has_no_tensors_besides_its_own_parameters_and_buffers(
    inventories: dict[str, dict[str, Any]],
) -> None:
    for name in ("attention", "ffn"):
        found = inventories[name]
        own = total(found["parameters"]) + total(found["buffers"])
        print(f"\n{name}: {found['live']} bytes in tensors, {own} of them parameters and buffers")
        assert own <= found["live"] <= own + MIB


def test_loading_attention_needs_no_memory_for_the_experts(inventories: dict[str, dict[str, Any]]) -> None:
    for name in ROLES:
        found = inventories[name]
        own = total(found["parameters"]) + total(found["buffers"])
        print(f"\n{name}: {own / MIB:.1f} MiB of weights, at most {found['grown'] / MIB:.1f} MiB more memory")
    attention, ffn, native = (inventories[name] for name in ROLES)
    experts = total(ffn["parameters"])
    assert experts > 140 * MIB
    assert ffn["grown"] > experts, "the measure does not see what is surely there"
    assert native["grown"] > experts
    assert attention["grown"] < experts / 3, "code and configuration, and no expert"


def test_each_tensor_is_read_from_disk_by_the_role_that_owns_it_and_by_no_other(
    inventories: dict[str, dict[str, Any]], checkpoint: dict[str, int], family: Family
) -> None:
    attention, ffn, native = (inventories[name]["read"] for name in ROLES)
    print(
        f"\nread: attention {len(attention)} tensors, {sum(attention.values())} bytes; ffn {len(ffn)}, "
        f"{sum(ffn.values())}; native {len(native)}, {sum(native.values())}"
    )
    assert native == checkpoint
    assert attention == {n: size for n, size in checkpoint.items() if family.owner(n) is Role.ATTENTION}
    assert ffn == {n: size for n, size in checkpoint.items() if family.owner(n) is Role.FFN}


def test_no_process_uses_the_rotary_kernel_that_is_wrong(inventories: dict[str, dict[str, Any]]) -> None:
    for name in ROLES:
        found = inventories[name]
        assert found["custom_ops"] == ["all", "-rotary_embedding"], name
        assert found["rotary kernel"] is False, name
        assert found["rotary forwards"] == ([] if name == "ffn" else ["forward_native"]), name
        assert found["dtype"] == "torch.float32", name
