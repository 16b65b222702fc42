# SPDX-License-Identifier: Apache-2.0
"""What a role agent decides before it opens anything."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from afd import config as afd_config
from afd.agent import cores
from afd.agent.environment import cpu_environment, runner_of
from afd.agent.plan import API_SERVER, FFN_RANK, WORKER_CLASS, versions
from afd.config import CAM_ASYNC
from afd.control.handshake import differences
from afd.errors import ConfigError, UnsupportedError
from afd.topology import Rank, Role
from tests.unit.agent.plans import FLOAT32, planned


def value(argv: Sequence[str], flag: str) -> str:
    return argv[argv.index(flag) + 1]


# ---- what both roles run ----------------------------------------------------------------------------------


def test_attention_runs_vllms_server_with_the_worker_and_the_counter_of_afd(checkpoint: Path) -> None:
    plan = planned(checkpoint)
    assert plan.target == API_SERVER
    assert plan.ranks == (Rank(Role.ATTENTION, 0),)
    assert plan.argv[0] == str(checkpoint)
    assert value(plan.argv, "--worker-cls") == WORKER_CLASS
    assert value(plan.argv, "--middleware") == "afd.agent.inflight.Inflight"


def test_ffn_runs_its_rank_without_worker_and_server(checkpoint: Path) -> None:
    plan = planned(checkpoint, Role.FFN)
    assert plan.target == FFN_RANK
    assert plan.ranks == (Rank(Role.FFN, 0),)
    assert not {"--worker-cls", "--middleware", "--served-model-name"} & set(plan.argv)


def test_both_roles_say_the_same_about_everything_that_must_agree(checkpoint: Path) -> None:
    assert differences([planned(checkpoint, role).hello for role in Role]) == ()


@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        (["--hf-overrides", '{"num_experts_per_tok": 1}'], "model top-k"),
        (["--hf-overrides.num_experts_per_tok", "1"], "model top-k"),
        (["--hf-overrides", '{"routed_scaling_factor": 2.5}'], "model configuration digest"),
    ],
)
def test_an_override_of_the_models_configuration_on_one_role_is_a_difference(
    checkpoint: Path, overrides: list[str], field: str
) -> None:
    hellos = [planned(checkpoint, Role.FFN, (*FLOAT32, *overrides)).hello, planned(checkpoint).hello]
    assert [difference.field for difference in differences(hellos)] == [field]


def test_a_target_of_a_test_replaces_the_function_that_processes_run(checkpoint: Path) -> None:
    assert planned(checkpoint, Role.FFN, target="my.module:main").target == "my.module:main"


def test_the_hello_describes_model_layout_and_versions(checkpoint: Path) -> None:
    hello = planned(checkpoint).hello
    assert (hello.model.architecture, hello.model.hidden_size, hello.model.layers) == (
        "DeepseekV2ForCausalLM",
        32,
        2,
    )
    assert (hello.model.experts, hello.model.top_k, hello.model.dtype) == (4, 2, "float32")
    assert (hello.layout.num_attention, hello.layout.num_ffn, hello.layout.order) == (1, 1, "ffn_first")
    assert (hello.gate, hello.ids, hello.runner, hello.transport) == ("ffn", False, "v2", "auto")
    assert set(hello.versions) == {"protocol", "afd", "vllm", "torch"} == set(versions())
    assert hello.host.pid == os.getpid()


def test_the_configuration_travels_in_vllms_additional_config(checkpoint: Path) -> None:
    plan = planned(
        checkpoint, argv=(*FLOAT32, "--additional-config", '{"mine": [1], "afd": {"port": 1}}'), port=9444
    )
    found = json.loads(value(plan.argv, "--additional-config"))
    assert found["mine"] == [1]
    assert afd_config.resolve({}, {}, found["afd"]).config == plan.config
    assert plan.config.port == 9444


# ---- names, addresses, keys -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "names", "first"),
    [
        ((), None, None),
        (("--served-model-name", "a"), ["a"], "a"),
        (("--served-model-name", "a", "b"), ["a", "b"], "a"),
    ],
)
def test_the_model_is_served_under_the_name_that_the_user_gave(
    checkpoint: Path, argv: tuple[str, ...], names: list[str] | None, first: str | None
) -> None:
    plan = planned(checkpoint, argv=(*FLOAT32, *argv))
    at = plan.argv.index("--served-model-name")
    assert list(plan.argv[at + 1 : at + 1 + len(names or [""])]) == (names or [str(checkpoint)])
    assert plan.served_model == (first or str(checkpoint))
    assert plan.argv.count("--served-model-name") == 1


@pytest.mark.parametrize(
    ("argv", "url"),
    [
        ((), "http://127.0.0.1:8000"),
        (("--host", "0.0.0.0", "--port", "8001"), "http://127.0.0.1:8001"),
        (("--host=::",), "http://[::1]:8000"),
        (("--host", "10.0.0.7"), "http://10.0.0.7:8000"),
        (("--host", "fd00::7"), "http://[fd00::7]:8000"),
    ],
)
def test_the_agent_knows_where_to_reach_the_api_server(
    checkpoint: Path, argv: tuple[str, ...], url: str
) -> None:
    assert planned(checkpoint, argv=(*FLOAT32, *argv)).api_url == url


def test_the_agent_asks_with_the_first_api_key(checkpoint: Path) -> None:
    assert planned(checkpoint).api_key == ""
    by_variable = planned(checkpoint, environment={"VLLM_API_KEY": "from-env"})
    assert by_variable.api_key == "from-env"
    plan = planned(checkpoint, argv=(*FLOAT32, "--api-key", "one", "two"), environment={"VLLM_API_KEY": "e"})
    assert plan.api_key == "one"
    assert "'from-env'" not in repr(replace(by_variable, environment={}))


# ---- runner, threads, environment -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "runner"),
    [
        ({}, "v2"),
        ({"VLLM_USE_V2_MODEL_RUNNER": "1"}, "v2"),
        ({"VLLM_USE_V2_MODEL_RUNNER": "0"}, "v1"),
    ],
)
def test_the_runner_is_the_users_choice_and_v2_without_one(
    checkpoint: Path, environment: dict[str, str], runner: str
) -> None:
    plan = planned(checkpoint, environment=environment)
    assert plan.hello.runner == runner_of(environment) == runner
    assert plan.environment["VLLM_USE_V2_MODEL_RUNNER"] == ("1" if runner == "v2" else "0")
    assert ("TRITON_BACKENDS_IN_TREE" in plan.environment) is (runner == "v1")


@pytest.mark.parametrize("chosen", ["2", "yes", "", "v1"])
def test_a_runner_that_does_not_exist_is_refused(checkpoint: Path, chosen: str) -> None:
    with pytest.raises(ConfigError, match=r"VLLM_USE_V2_MODEL_RUNNER: .* is neither 0"):
        planned(checkpoint, environment={"VLLM_USE_V2_MODEL_RUNNER": chosen})


def test_each_role_gets_its_share_of_the_cores_and_the_same_number_of_threads(checkpoint: Path) -> None:
    dealt = cores.plan_threads(2)
    ffn, attention = planned(checkpoint, Role.FFN), planned(checkpoint, Role.ATTENTION)
    assert ffn.environment["VLLM_CPU_OMP_THREADS_BIND"] == dealt[0].bind
    assert attention.environment["VLLM_CPU_OMP_THREADS_BIND"] == dealt[1].bind
    assert ffn.environment["OMP_NUM_THREADS"] == attention.environment["OMP_NUM_THREADS"]


def test_what_the_user_put_into_the_environment_is_kept() -> None:
    mine = {"OMP_NUM_THREADS": "7", "VLLM_CPU_OMP_THREADS_BIND": "3", "VLLM_MLA_DISABLE": "0", "X": "y"}
    found = cpu_environment(mine, runner="v2", threads=2, bind="0,1")
    assert {name: found[name] for name in mine} == mine
    assert found["TORCHDYNAMO_DISABLE"] == "1"


def test_the_mark_of_runner_v1_does_not_survive_a_change_to_v2() -> None:
    v1 = cpu_environment({}, runner="v1", threads=1, bind="nobind")
    assert "TRITON_BACKENDS_IN_TREE" not in cpu_environment(v1, runner="v2", threads=1, bind="nobind")


# ---- refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "settings", "says"),
    [
        (("--dtype", "float8"), {}, "dtype float8 is not supported"),
        (("--quantization", "fp8"), {}, "quantisation fp8 is not supported"),
        (("--enable-lora",), {}, r"lora \(--enable-lora, .*\) is not supported"),
        (("-sc.method", "ngram"), {}, "speculative"),
        (("--enable-eplb",), {}, "eplb"),
        (("--kv-transfer-config", "{}"), {}, "kv_transfer"),
        (("--enable-sleep-mode",), {}, "sleep_mode"),
        (("-pp", "2"), {}, "pipeline_parallel"),
        (("-pcp", "2"), {}, "prefill_context_parallel"),
        (("-dcp", "2"), {}, "decode_context_parallel"),
        (("-n", "2"), {}, "multi_node"),
        (("--load-format", "gguf"), {}, "load_format"),
        (("--runner", "pooling"), {}, "pooling"),
        (("--enable-dbo",), {}, "ubatches 2 is not supported"),
        (("--no-enforce-eager",), {}, "mode graph is not supported"),
        (("-cc.mode", "3"), {}, "torch.compile does not see the hop"),
        (("--worker-cls", "x.Y"), {}, "worker class is AFD's own"),
        (("--config", "c.yaml"), {}, "--config"),
        (
            ("-tp", "2"),
            {},
            "is 1, but data-parallel size 1 × tensor-parallel size 2 makes 2; use --afd-num-att",
        ),
        (("-dp", "3"), {"num_attention_ranks": 2}, "is 2, but data-parallel size 3 .*-ranks 3$"),
        ((), {"ubatch": {"num_ubatches": 2}}, "ubatches 2 is not supported"),
        ((), {"connector": CAM_ASYNC, "compute_gate_on_attention": True, "async": True}, "connector"),
        ((), {"transport": "cam"}, "transport cam is not supported"),
        (
            (),
            {"compute_gate_on_attention": True},
            "gate attention with connector CAMP2pAFDConnector is not supported",
        ),
    ],
)
def test_what_is_not_supported_is_refused_before_anything_is_opened(
    checkpoint: Path, argv: tuple[str, ...], settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(UnsupportedError, match=says):
        planned(checkpoint, argv=(*FLOAT32, *argv), **settings)


@pytest.mark.parametrize("role", list(Role))
def test_endpoints_that_act_on_attention_only_are_not_opened(checkpoint: Path, role: Role) -> None:
    planned(checkpoint, role, environment={"VLLM_SERVER_DEV_MODE": "0"})
    with pytest.raises(UnsupportedError, match=r"^VLLM_SERVER_DEV_MODE=1: .* /pause, .*only; unset it"):
        planned(checkpoint, role, environment={"VLLM_SERVER_DEV_MODE": "1"})


@pytest.mark.parametrize(
    ("variable", "good", "bad", "says"),
    [
        ("VLLM_MLA_DISABLE", "1", "0", "VLLM_MLA_DISABLE=0: vLLM's CPU backend has no MLA; unset it"),
        (
            "VLLM_BATCH_INVARIANT",
            "0",
            "1",
            "VLLM_BATCH_INVARIANT=1: on CPU its kernels run in an interpreter",
        ),
        (
            "VLLM_CPU_OMP_THREADS_BIND",
            "0-3|4,5",
            "junk",
            "VLLM_CPU_OMP_THREADS_BIND=junk: expected auto, nobind",
        ),
        ("VLLM_CPU_OMP_THREADS_BIND", "nobind", "|", r"VLLM_CPU_OMP_THREADS_BIND=\|: expected auto, nobind"),
    ],
)
def test_variables_with_which_vllm_would_fail_after_the_start_are_refused_before_it(
    checkpoint: Path, variable: str, good: str, bad: str, says: str
) -> None:
    planned(checkpoint, environment={variable: good})
    with pytest.raises(ConfigError, match=f"^{says}"):
        planned(checkpoint, environment={variable: bad})


@pytest.mark.parametrize("flag", ["-tp", "-dp"])
def test_parallel_sizes_of_attention_are_refused_on_ffn(checkpoint: Path, flag: str) -> None:
    with pytest.raises(UnsupportedError, match=r"for Attention only: .* 2; leave out"):
        planned(checkpoint, Role.FFN, (*FLOAT32, flag, "2"))
    planned(checkpoint, Role.FFN, (*FLOAT32, flag, "1"))


@pytest.mark.parametrize(
    ("architecture", "says"),
    [
        ("LlamaForCausalLM", "family LlamaForCausalLM is not supported yet; use a model of the DeepSeek"),
        (
            "DeepseekV32ForCausalLM",
            "family deepseek_v32 is not supported: .* it needs Ascend; use a model of",
        ),
        ("GlmMoeDsaForCausalLM", "family glm_moe_dsa is not supported: .* it needs Ascend; use a model of"),
    ],
)
def test_a_model_of_another_family_is_refused_with_those_that_exist(
    checkpoint: Path, tmp_path: Path, architecture: str, says: str
) -> None:
    other = Path(tmp_path / "other")
    other.mkdir()
    for path in checkpoint.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "architectures": [architecture]}))
    with pytest.raises(UnsupportedError, match=says):
        planned(other)


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("given", ["0", "-1", "65536", "99999", "x", "80.5", "9" * 30, ""])
def test_a_port_of_the_api_server_that_is_none_is_refused(checkpoint: Path, role: Role, given: str) -> None:
    with pytest.raises(ConfigError, match=r"^vLLM argument --port: .* is not a port \(1-65535\)$"):
        planned(checkpoint, role, (*FLOAT32, f"--port={given}"))


@pytest.mark.parametrize("flag", ["-tp", "-dp"])
@pytest.mark.parametrize("size", ["0", "-1"])
def test_a_parallel_size_that_is_none_is_refused(checkpoint: Path, flag: str, size: str) -> None:
    with pytest.raises(ConfigError, match=rf"-parallel-size: {size} is not a size"):
        planned(checkpoint, argv=(*FLOAT32, flag, size))


def test_dummy_weights_need_no_weight_files(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    assert planned(tmp_path, Role.FFN, (*FLOAT32, "--load-format", "dummy")).model == tmp_path
    with pytest.raises(ConfigError):
        planned(tmp_path, Role.FFN)


@pytest.mark.parametrize(
    ("asked", "dtype"),
    [
        ("auto", "bfloat16"),
        ("float", "float32"),
        ("float32", "float32"),
        ("bfloat16", "bfloat16"),
        ("half", "float16"),
    ],
)
def test_the_dtype_in_the_hello_is_the_one_vllm_will_use(checkpoint: Path, asked: str, dtype: str) -> None:
    assert planned(checkpoint, argv=("--dtype", asked)).hello.model.dtype == dtype


def test_the_functions_that_processes_run_and_the_middleware_exist() -> None:
    for name in (API_SERVER, FFN_RANK):
        module, _, function = name.partition(":")
        path = Path(import_module("afd").__file__ or "").parent.joinpath(*module.split(".")[1:])
        assert f"def {function}(" in path.with_suffix(".py").read_text()


def test_several_ffn_ranks_split_the_experts_and_one_has_them_all(checkpoint: Path) -> None:
    two = {"num_attention_ranks": 2, "num_ffn_ranks": 2}
    several = planned(checkpoint, Role.FFN, **two)
    assert value(several.argv, "--tensor-parallel-size") == "2"
    assert "--enable-expert-parallel" in several.argv
    assert several.ranks == (Rank(Role.FFN, 0), Rank(Role.FFN, 1))
    one = planned(checkpoint, Role.FFN, **{**two, "num_ffn_ranks": 1})
    assert not {"--tensor-parallel-size", "--enable-expert-parallel"} & set(one.argv)
    attention = planned(checkpoint, argv=(*FLOAT32, "-dp", "2"), **two)
    assert "--enable-expert-parallel" not in attention.argv
    assert attention.ranks == (Rank(Role.ATTENTION, 0), Rank(Role.ATTENTION, 1))


def test_the_hello_says_how_attentions_ranks_form_groups_and_ffns_does_not(checkpoint: Path) -> None:
    four = {"num_attention_ranks": 4}
    wide = planned(checkpoint, argv=(*FLOAT32, "-tp", "2", "-dp", "2"), **four)
    assert wide.hello.layout.attention_tp == 2
    assert planned(checkpoint, Role.FFN, **four).hello.layout.attention_tp == 0
