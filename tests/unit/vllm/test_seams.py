# SPDX-License-Identifier: Apache-2.0
"""The seams in vLLM that AFD uses are still there, with the signatures that it was written against."""

from __future__ import annotations

import importlib.metadata
import inspect
import json
import os
from typing import Any

import pytest

from afd.errors import ConfigError, MisuseError, UnsupportedError
from afd.families import FAMILIES, Family
from afd.models.proxies import Absent, Hop, RemoteFFN
from afd.rebind import HOOKS, Hook
from afd.topology import Role
from tests.unit.vllm.conftest import Module

WORKER, RUNNER_V2 = "vllm.v1.worker.cpu_worker", "vllm.v1.worker.cpu.model_runner"
RUNNER_V1, LOADER = "vllm.v1.worker.cpu_model_runner", "vllm.model_executor.model_loader.weight_utils"


def targets(hook: Hook, module: Module) -> list[tuple[str, str]]:
    """The modules and names that a row of HOOKS is about."""
    if hook.where == "afd.models.role.role_scope" and hook.signature == "class":
        return [(f.module, name) for f in FAMILIES for name in (*f.ffn_classes, *f.attention_classes)]
    if hook.name == "get_mp_context":
        return [(name, hook.name) for name in module("afd.launch.children").IMPORTERS_OF_GET_MP_CONTEXT]
    return [(hook.module, hook.name)]


def parameters(function: Any) -> str:
    return f"({', '.join(inspect.signature(function).parameters)})"


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: f"{hook.module}.{hook.name}")
def test_every_name_that_afd_replaces_is_what_it_was_written_against(hook: Hook, module: Module) -> None:
    for owner, name in targets(hook, module):
        found = vars(module(owner))[name]
        if hook.signature == "class":
            assert inspect.isclass(found)
        else:
            assert parameters(found) == hook.signature


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_architecture_of_a_family_is_built_by_its_module(family: Family, module: Module) -> None:
    registry = module("vllm.model_executor.models.registry").ModelRegistry
    for architecture in family.architectures:
        found = registry.models[architecture]
        assert found.module_name == family.module
        assert inspect.isclass(vars(module(family.module))[found.class_name])


def test_ffn_classes_are_told_their_layer_by_a_prefix(module: Module) -> None:
    for family in FAMILIES:
        for name in family.ffn_classes:
            constructor = inspect.signature(vars(module(family.module))[name].__init__)
            assert constructor.parameters["prefix"].kind in (
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                inspect.Parameter.KEYWORD_ONLY,
            )


def test_attentions_runners_take_what_vllms_runners_take(module: Module) -> None:
    runners = module("afd.attention.runners")
    v2 = module(RUNNER_V2).CPUModelRunner
    assert parameters(runners.AttentionRunnerV2.execute_model) == parameters(v2.execute_model)
    v1 = module(RUNNER_V1).CPUModelRunner
    assert parameters(runners.AttentionRunnerV1.execute_model) == parameters(v1.execute_model)
    dummy = inspect.signature(v1._dummy_run).parameters
    assert list(dummy)[:2] == ["self", "num_tokens"] and "is_profile" in dummy
    for ours, theirs in ((runners.AttentionRunnerV2, v2), (runners.AttentionRunnerV1, v1)):
        assert issubclass(ours, theirs)
        assert callable(theirs.load_model) and callable(theirs.shutdown)


def test_the_plugin_is_registered_and_changes_nothing(module: Module) -> None:
    (entry,) = importlib.metadata.entry_points(group="vllm.general_plugins", name="afd")
    names = [(WORKER, "CPUModelRunner"), (RUNNER_V2, "CPUModelRunner"), (LOADER, "should_skip_weight")]
    before = [vars(module(owner))[name] for owner, name in names]
    module("vllm.plugins").load_general_plugins()
    entry.load()()
    assert [vars(module(owner))[name] for owner, name in names] == before
    assert all(found.__module__.startswith("vllm.") for found in before)


# ---- building one role ------------------------------------------------------------------------------------


@pytest.fixture
def deepseek(module: Module) -> Any:
    return module(FAMILIES[0].module)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_attention_is_built_without_any_ffn_block(family: Family, module: Module) -> None:
    models = module(family.module)
    before = dict(vars(models))
    with module("afd.models.role").role_scope(family, Role.ATTENTION, Hop()):
        for name in family.ffn_classes:
            block = vars(models)[name](config=None, parallel_config=None, prefix="model.layers.3.mlp")
            assert isinstance(block, RemoteFFN) and block.layer == 3
            # What vLLM asks when it collects blocks with experts, and the decoder layer at every step.
            assert isinstance(block, vars(models)[name]) and isinstance(block, before[name])
        assert models.RMSNorm is not Absent
    assert vars(models) == before


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_ffn_is_built_without_attention_embeddings_and_norms(family: Family, module: Module) -> None:
    models = module(family.module)
    before = dict(vars(models))
    with module("afd.models.role").role_scope(family, Role.FFN):
        for name in family.attention_classes:
            assert isinstance(vars(models)[name](1, eps=2, prefix="x"), Absent)
        assert all(vars(models)[name] is before[name] for name in family.ffn_classes)
    assert vars(models) == before


def test_tensors_of_the_other_role_are_skipped_by_name(module: Module) -> None:
    loader, scope = module(LOADER), module("afd.models.role").role_scope
    native = loader.should_skip_weight
    mlp, norm = "model.layers.1.mlp.gate.weight", "model.norm.weight"
    with scope(FAMILIES[0], Role.ATTENTION, Hop()):
        assert (loader.should_skip_weight(mlp, None), loader.should_skip_weight(norm, None)) == (True, False)
    with scope(FAMILIES[0], Role.FFN):
        assert (loader.should_skip_weight(mlp, None), loader.should_skip_weight(norm, None)) == (False, True)
    assert loader.should_skip_weight is native


def test_a_scope_restores_every_name_when_the_build_fails(module: Module, deepseek: Any) -> None:
    before = dict(vars(deepseek))
    with pytest.raises(MisuseError), module("afd.models.role").role_scope(FAMILIES[0], Role.ATTENTION, Hop()):
        deepseek.DeepseekV2MoE(prefix="no layer here")
    assert all(vars(deepseek)[name] is value for name, value in before.items())


def test_vllms_processes_are_forked_inside_the_block_only(module: Module) -> None:
    children = module("afd.launch.children")
    owners = [module(name) for name in children.IMPORTERS_OF_GET_MP_CONTEXT]
    before = [owner.get_mp_context for owner in owners]
    with children.forked_children():
        assert {owner.get_mp_context().get_start_method() for owner in owners} == {"fork"}
    assert [owner.get_mp_context for owner in owners] == before


# ---- what vLLM resolves -----------------------------------------------------------------------------------


def test_what_vllm_resolved_is_read_once_for_both_roles_to_compare(
    module: Module, engine_config: Any
) -> None:
    config = engine_config()
    resolved = module("afd.models.resolved").resolve(config)
    values = resolved.as_dict()
    assert values["hf_config.num_experts_per_tok"] == "2" and "hf_config.dtype" not in values
    assert max(len(str(value)) for value in values.values()) <= 120
    assert {key: value for key, value in values.items() if not key.startswith("hf_config.")} == {
        "architecture": "DeepseekV2ForCausalLM",
        "hidden_size": 256,
        "num_layers": 4,
        "dtype": "float32",
        "max_tokens": 64,
        "load_format": "auto",
        "quantisation": "none",
    }
    assert str(resolved.torch_dtype) == "torch.float32"
    assert module("afd.models.role").model_family(config) is FAMILIES[0]
    assert module("afd.models.crossing").configuration(config).port == 9444


def test_settings_of_afd_survive_all_that_vllm_does_to_a_configuration(
    module: Module, engine_config: Any
) -> None:
    """vLLM's platform and its own checks change a configuration after it was made; AFD's part is not theirs."""
    told = {
        "port": 9555,
        "ubatch": {"num_ubatches": 2, "decode_token_threshold": 7},
        "timeouts": {"step_s": 9},
    }
    found = module("afd.models.crossing").configuration(
        engine_config("--additional-config", json.dumps({"afd": told}), "--enforce-eager", completed=False)
    )
    assert (found.port, found.timeouts.step_s) == (9555, 9.0)
    assert (found.ubatch.num_ubatches, found.ubatch.decode_token_threshold) == (2, 7)
    assert found.ubatch.prefill_token_threshold == type(found.ubatch)().prefill_token_threshold


def test_a_process_that_was_not_started_by_afd_serve_is_told_so(module: Module, engine_config: Any) -> None:
    with pytest.raises(ConfigError, match="start this role with `afd serve`"):
        module("afd.models.crossing").configuration(engine_config("--enforce-eager", completed=False))


def test_compilation_that_slipped_through_is_refused(module: Module, engine_config: Any) -> None:
    config = engine_config()
    config.compilation_config.mode = module("vllm.config").CompilationMode.VLLM_COMPILE
    with pytest.raises(UnsupportedError, match="compilation mode VLLM_COMPILE"):
        module("afd.models.resolved").resolve(config)


# ---- cores ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bind", "index", "bound"), [("{0}", 0, True), ("nobind", 0, False), ("9999|{0}", 1, True)]
)
def test_an_ffn_rank_keeps_to_its_own_list_of_cores(
    module: Module, monkeypatch: pytest.MonkeyPatch, bind: str, index: int, bound: bool
) -> None:
    before = os.sched_getaffinity(0)
    core = min(before)
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", bind.replace("{0}", str(core)))
    try:
        module("afd.ffn.process").bind_cores(index)
        assert os.sched_getaffinity(0) == ({core} if bound else before)
    finally:
        os.sched_setaffinity(0, before)
