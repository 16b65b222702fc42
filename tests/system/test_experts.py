# SPDX-License-Identifier: Apache-2.0
"""Experts split over FFN ranks: who holds which, and what each computes, against plain PyTorch. The ranks are real
processes with vLLM's groups and layers; Attention is not needed for this."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from afd.agent.environment import cpu_environment
from afd.agent.exits import describe_exit
from afd.agent.launcher import Launcher
from afd.agent.run_directory import RunDirectory
from afd.agent.vllm_arguments import complete, parse
from afd.ffn import process
from afd.testing.stack import base_environment
from afd.testing.tiny import resolve_builtin
from tests.system.conftest import VLLM_ARGS
from tests.system.plain import PlainFFN
from tests.system.variants import PARTIALS_DIRECTORY

V2, V3, QWEN = "tiny-deepseek-v2", "tiny-deepseek-v3", "tiny-qwen3-moe"
"""Layer 0 of the first two is dense, the others have a shared expert. Half of the last one's are dense, none shared."""


@dataclass(frozen=True)
class Case:
    """A model on some FFN ranks. With ``bind`` each has cores of its own, and vLLM sums in shared memory."""

    model: str
    ranks: int
    bind: str = "nobind"

    def __str__(self) -> str:
        return f"{self.model}-{self.ranks}F{'' if self.bind == 'nobind' else '-own-cores'}"


CASES = (
    Case(V2, 1),
    Case(V2, 2),
    Case(V2, 4),
    Case(V3, 1),
    Case(V3, 2),
    Case(V3, 4),
    Case(QWEN, 2),
    Case(V2, 2, "0|1"),
)
SPLIT = tuple(case for case in CASES if case.ranks > 1)


@dataclass(frozen=True)
class Ran:
    """What the ranks of a case wrote: loaded weights, outputs of each alone and their sums, by input and layer."""

    case: Case
    plain: PlainFFN
    inputs: dict[str, Tensor]
    ranks: list[dict[str, Any]]

    @property
    def layers(self) -> list[int]:
        return list(range(self.plain.config["num_hidden_layers"]))

    @property
    def sparse(self) -> list[int]:
        return [layer for layer in self.layers if self.plain.is_sparse(layer)]

    def experts(self, rank: int) -> range:
        share = self.plain.num_experts // self.case.ranks
        return range(rank * share, (rank + 1) * share)


def make_inputs(plain: PlainFFN) -> dict[str, Tensor]:
    """Rows for every rank, one row, and for each layer rows whose experts are all in the first quarter."""
    torch.manual_seed(1)
    hidden = plain.config["hidden_size"]
    many = torch.randn(20_000, hidden)
    found = {"mixed": many[:40], "one": many[:1]}
    for layer in filter(plain.is_sparse, range(plain.config["num_hidden_layers"])):
        ids, _ = plain.routing(layer, many)
        first = (ids < plain.num_experts // 4).all(-1)
        found[f"all on F0 in layer {layer}"] = many[first][:16]
    assert all(len(rows) for rows in found.values())
    return found


async def run_ranks(case: Case, argv: list[str], directory: Path, launcher: str) -> None:
    """Start one process a rank and wait until all have written."""
    sockets = RunDirectory.for_sockets()
    environment = {
        **cpu_environment(base_environment(), runner="v2", threads=1, bind=case.bind),
        "VLLM_RPC_BASE_PATH": str(sockets.path),
        PARTIALS_DIRECTORY: str(directory),
    }
    opened = await Launcher.open(directory, environment, 120.0, path=launcher)
    try:
        target = "tests.system.variants.partials:rank"
        children = [
            await opened.spawn(f"F{i}", target, argv, {**environment, process.INDEX_VARIABLE: str(i)}, print)
            for i in range(case.ranks)
        ]
        codes = await asyncio.wait_for(asyncio.gather(*(child.exited for child in children)), 90)
        for child, code in zip(children, codes, strict=True):
            assert code == 0, f"{child.name} {describe_exit(code)}: {child.tail[-5:]}"
    finally:
        await opened.close()
        sockets.close()


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, launchers: Callable[[str], str]) -> Callable[[Case], Ran]:
    """Runs a case once."""
    held: dict[Case, Ran] = {}

    def run(case: Case) -> Ran:
        if case not in held:
            directory = tmp_path_factory.mktemp("partials")
            model = resolve_builtin(f"builtin:{case.model}")
            plain = PlainFFN(model)
            inputs = make_inputs(plain)
            torch.save(inputs, directory / "inputs.pt")
            config = {"num_attention_ranks": case.ranks, "num_ffn_ranks": case.ranks}
            argv = [str(model), *complete(parse(VLLM_ARGS), additional={"afd": config}, worker_class=None)]
            if case.ranks > 1:
                argv += ["--tensor-parallel-size", str(case.ranks), "--enable-expert-parallel"]
            asyncio.run(run_ranks(case, argv, directory, launchers("v2")))
            ranks = [torch.load(directory / f"F{index}.pt") for index in range(case.ranks)]
            held[case] = Ran(case, plain, inputs, ranks)
        return held[case]

    return run


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found.double(), expected, rtol=2e-4, atol=2e-5)


@pytest.mark.pairwise
@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", SPLIT, ids=str)
def test_each_rank_holds_its_experts_bit_by_bit_and_together_they_hold_all(
    case: Case, ran: Callable[[Case], Ran]
) -> None:
    found = ran(case)
    tensors, seen = found.plain.tensors, []
    for index, rank in enumerate(found.ranks):
        mine = found.experts(index)
        seen += mine
        for layer in found.sparse:
            at = f"model.layers.{layer}.mlp.experts"
            (w13,) = (v for k, v in rank["loaded"].items() if k.startswith(at) and k.endswith("w13_weight"))
            (w2,) = (v for k, v in rank["loaded"].items() if k.startswith(at) and k.endswith("w2_weight"))
            assert w13.shape[0] == w2.shape[0] == len(mine), "no room for experts of other ranks"
            for place, expert in enumerate(mine):
                gate, up, down = (tensors[f"{at}.{expert}.{n}_proj.weight"] for n in ("gate", "up", "down"))
                assert torch.equal(w13[place], torch.cat([gate, up]))
                assert torch.equal(w2[place], down)
    assert sorted(seen) == list(range(found.plain.num_experts))


@pytest.mark.pairwise
@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_each_rank_computes_alone_is_what_plain_pytorch_makes_of_its_share(
    case: Case, ran: Callable[[Case], Ran]
) -> None:
    found = ran(case)
    for name, hidden in found.inputs.items():
        for index, rank in enumerate(found.ranks):
            for layer in found.layers:
                close(
                    rank["parts"][name][layer],
                    found.plain.part(layer, hidden, found.experts(index), index, case.ranks),
                )


@pytest.mark.pairwise
@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_sum_over_ranks_is_the_whole_layer_and_the_same_on_every_rank(
    case: Case, ran: Callable[[Case], Ran]
) -> None:
    found = ran(case)
    for name, sums in found.ranks[0]["sums"].items():
        for layer, out in sums.items():
            everything = range(found.plain.num_experts)
            close(out, found.plain.part(layer, found.inputs[name], everything, 0, 1))
            for rank in found.ranks[1:]:
                assert torch.equal(rank["sums"][name][layer], out)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("model", [V2, V3])
def test_several_ranks_agree_with_one(model: str, ran: Callable[[Case], Ran]) -> None:
    one = ran(Case(model, 1)).ranks[0]["sums"]
    for ranks in (2, 4):
        several = ran(Case(model, ranks)).ranks[0]["sums"]
        worst = max(
            float((several[name][layer] - one[name][layer]).abs().max())
            for name in one
            for layer in one[name]
        )
        print(f"\n{model}: {ranks} ranks differ from one by at most {worst:.1e}")
        assert worst < 2e-5


@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", SPLIT, ids=str)
def test_rows_without_an_expert_here_still_get_their_part_of_the_shared_expert(
    case: Case, ran: Callable[[Case], Ran]
) -> None:
    found = ran(case)
    for layer in found.sparse:
        name = f"all on F0 in layer {layer}"
        hidden = found.inputs[name]
        for index in range(1, case.ranks):
            part = found.ranks[index]["parts"][name][layer]
            close(part, found.plain.part(layer, hidden, (), index, case.ranks))
            assert bool(part.any()) is (case.model != QWEN)
