# SPDX-License-Identifier: Apache-2.0
"""Inputs that cannot work: one readable line and an exit code, before anything starts if the agent can know."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from afd.testing import tiny
from afd.testing.stack import Group
from afd.topology import Role
from tests.system.conftest import MODEL, Groups, layout
from tests.system.rig import census, ends

BOTH = pytest.mark.parametrize("here", list(Role), ids=str)


def _refused(group: Group, here: Role, *texts: str) -> None:
    """Start one role; it must end by itself with 64 and one line that has ``texts``, and start nothing."""
    with census() as watch:
        group.start(here)
        role = group.roles[here]
        found = ends(group, role.started, 30)
    print(f"{found}: {role.error()}")
    assert found.codes == {here: 64}
    assert found.seconds[here] < 10
    for text in texts:
        assert text in role.error()
    assert role.text().count("afd: error: ") == 1
    assert "Traceback" not in role.text()
    assert set(watch.seen) == {role.process.pid}
    assert not watch.ports
    assert not watch.shm


@BOTH
@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (("--pipeline-parallel-size", "2"), ("pipeline",)),
        (("-pp", "2"), ("pipeline",)),
        (("--enable-lora",), ("lora", "adapters")),
        (("--quantization", "fp8"), ("fp8",)),
        (("--compilation-config", '{"mode": 3}'), ("mode 3", "hop")),
        (("--afd-num-ffn-rank", "2"), ("--afd-num-ffn-rank: there is no such flag", "--afd-num-ffn-ranks")),
        (("--max-modl-len", "64"), ("--max-modl-len: there is no such flag", "'--max-model-len'")),
        (("--agent-prot", "1"), ("--agent-prot: there is no such flag", "'--agent-port'")),
        (("--max-model-len", "99999"), ("--max-model-len: 99999 is more than the 2048 positions",)),
        (("--dtype", "float3"), ("dtype float3 is not supported", "use --dtype float32 or bfloat16")),
        (("--afd-port", "many"), ("--afd-port", "many")),
        (("--afd-timeouts-heartbeat-s", "5"), ("heartbeat", "0.66")),
        (("--afd-connector", "CAMAsyncAFDConnector"), ("CAMAsyncAFDConnector",)),
    ],
    ids=lambda value: "_".join(value).replace("/", "")[:40] if isinstance(value, tuple) else None,
)
def test_an_argument_that_afd_can_judge_is_refused_before_anything_starts(
    groups: Groups, here: Role, arguments: tuple[str, ...], texts: tuple[str, ...]
) -> None:
    _refused(groups(arguments={here: arguments}), here, *texts)


@BOTH
def test_a_variable_that_afd_does_not_know_is_refused(groups: Groups, here: Role) -> None:
    group = groups(environment={"AFD_NUM_FFN_RANK": "1"})
    _refused(group, here, "AFD_NUM_FFN_RANK", "AFD_NUM_FFN_RANKS")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A copy of the built-in model."""
    target = tmp_path / "checkpoint"
    shutil.copytree(tiny.resolve_builtin(MODEL), target)
    return target


def _truncated(path: Path) -> str:
    (weights,) = path.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1000])
    return weights.name


def _no_weights(path: Path) -> str:
    for weights in path.glob("*.safetensors"):
        weights.unlink()
    return "safetensors"


def _broken_config(path: Path) -> str:
    (path / "config.json").write_text("{")
    return "config.json"


def _dangling(path: Path) -> str:
    (weights,) = path.glob("*.safetensors")
    weights.unlink()
    weights.symlink_to("blobs/gone")
    return weights.name


def _another_family(path: Path) -> str:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "architectures": ["LlamaForCausalLM"]}))
    return "LlamaForCausalLM"


@BOTH
@pytest.mark.parametrize("damage", [_truncated, _no_weights, _broken_config, _dangling, _another_family])
def test_a_checkpoint_that_cannot_work_is_refused_before_anything_starts(
    groups: Groups, checkpoint: Path, here: Role, damage: Callable[[Path], str]
) -> None:
    text = damage(checkpoint)
    _refused(groups(layout(model=str(checkpoint))), here, text)


def test_a_checkpoint_without_a_tokenizer_is_refused_by_attention_before_anything_starts(
    groups: Groups, checkpoint: Path
) -> None:
    (checkpoint / "tokenizer.json").unlink()
    group = groups(layout(model=str(checkpoint)))
    _refused(group, Role.ATTENTION, "no tokenizer", "Attention needs one", "--tokenizer")


@BOTH
@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("/no/such/model", "there is no such directory"),
        ("nobody/no-such-model", "nobody/no-such-model"),
        ("builtin:tiny-deepseek", "there is no built-in model 'builtin:tiny-deepseek'; did you mean"),
    ],
)
def test_a_model_that_does_not_exist_is_refused_before_anything_starts(
    groups: Groups, here: Role, model: str, text: str
) -> None:
    _refused(groups(layout(model=model)), here, text)


@pytest.mark.parametrize(
    ("here", "arguments", "text", "code"),
    [
        (Role.ATTENTION, ("--max-num-seqs", "many"), "--max-num-seqs: invalid int value: 'many'", 64),
        (Role.FFN, ("--max-logprobs", "-5"), "vLLM's ModelConfig: max_logprobs: Input should be greater", 64),
        (Role.ATTENTION, ("--max-logprobs", "-5"), "vLLM's ModelConfig: max_logprobs: Input should", 64),
        # Found by the engine, two processes below the one that the agent started.
        (Role.ATTENTION, ("--kv-cache-memory-bytes", "4096"), "To serve at least one request", 71),
    ],
    ids=[
        "wrong-type",
        "impossible-ffn",
        "impossible-attention",
        "engine",
    ],
)
def test_what_only_vllm_can_judge_ends_both_roles_with_vllms_own_words(
    groups: Groups, here: Role, arguments: tuple[str, ...], text: str, code: int
) -> None:
    group = groups(arguments={here: arguments})
    began = time.monotonic()
    group.start()
    found = ends(group, began, 60)
    other = Role.FFN if here is Role.ATTENTION else Role.ATTENTION
    print(f"{found}: {group.roles[here].error()} | {group.roles[other].error()}")
    assert found.codes == {here: code, other: 70}
    assert max(found.seconds.values()) < 30
    for role in group.roles.values():
        assert text in role.error()
        assert role.error() == group.roles[here].error()
        assert role.text().count("afd: error: ") == 1
