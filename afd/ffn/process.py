# SPDX-License-Identifier: Apache-2.0
"""One FFN rank as a process: vLLM's configuration and loader, then the server's loop.

There is no scheduler, no KV cache and no engine core here, so nothing of vLLM's has to be switched off.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from vllm import envs
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.forward_context import set_forward_context
from vllm.model_executor.model_loader import get_model
from vllm.platforms import current_platform
from vllm.plugins import load_general_plugins
from vllm.usage.usage_lib import UsageContext
from vllm.utils.torch_utils import set_random_seed
from vllm.v1.worker.gpu_worker import init_worker_distributed_environment

from afd.connectors.base import FFNLink, Work
from afd.control.reporter import Reporter
from afd.control.session import RankSession
from afd.control.steps import StepListener
from afd.errors import AFDError
from afd.families import Family
from afd.ffn.counters import FFNCounters
from afd.ffn.server import FFNServer
from afd.launch.arguments import judged_by_vllm, parse
from afd.launch.children import core_list, keep_to
from afd.models.crossing import Crossing, agree
from afd.models.role import model_family, role_scope
from afd.topology import Rank, Role

INDEX_VARIABLE = "AFD_RANK_INDEX"


def engine_config(argv: Sequence[str]) -> VllmConfig:
    """vLLM's configuration from the arguments of ``vllm serve``. Raises ConfigError for what vLLM does not know, or
    refuses."""
    with judged_by_vllm():
        return AsyncEngineArgs.from_cli_args(parse(argv)).create_engine_config(UsageContext.OPENAI_API_SERVER)


def bind_cores(index: int) -> None:
    """Keep FFN rank ``index`` on its cores of VLLM_CPU_OMP_THREADS_BIND, such as "0,1|2-3" ("nobind": anywhere)."""
    lists = os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "").split("|")
    keep_to(core_list(lists[index] if index < len(lists) else ""))


def load(vllm_config: VllmConfig, family: Family) -> nn.Module:
    """FFN's half of the model, in evaluation mode. Opens vLLM's (single-process) groups first."""
    # Nobody else joins these groups. Through a file, because a TCP store would listen on every interface of the host.
    with tempfile.TemporaryDirectory(prefix="groups-", dir=envs.VLLM_RPC_BASE_PATH) as directory:
        init_worker_distributed_environment(
            vllm_config, 0, f"file://{directory}/store", 0, current_platform.dist_backend
        )
    set_random_seed(vllm_config.model_config.seed)
    with role_scope(family, Role.FFN):
        model: nn.Module = get_model(vllm_config=vllm_config)
    return model


def ffn_layers(model: nn.Module, family: Family) -> dict[int, nn.Module]:
    """The native FFN block of every layer, by layer index."""
    layers = model.get_submodule("model.layers")
    return {int(name): layer.get_submodule(family.ffn_attribute) for name, layer in layers.named_children()}


@dataclass(frozen=True)
class Resident:
    """What an FFN process makes once and keeps over epochs: vLLM's configuration, its groups (in vLLM's own state) and
    the native FFN block of every layer, with its weights."""

    config: VllmConfig
    layers: dict[int, nn.Module]

    @classmethod
    def make(cls, argv: Sequence[str], rank: Rank) -> Resident:
        """Open vLLM's groups and load FFN's half of the model. Raises ConfigError, and what vLLM's loader raises."""
        config = engine_config(argv)
        family = model_family(config)
        with set_current_vllm_config(config), torch.inference_mode():
            return cls(config, ffn_layers(load(config, family), family))


class RankProcess:
    """Everything one FFN rank holds for one epoch: its links to Attention, and what it counts."""

    def __init__(self, vllm_config: VllmConfig, crossing: Crossing, layers: dict[int, nn.Module]) -> None:
        self._config = vllm_config
        self._crossing = crossing
        self._layers = layers
        self.counters = FFNCounters()

    def serve(self) -> None:
        """Connect to every Attention rank and serve until they all leave. Whatever ends it, nothing that belongs to
        the epoch stays open."""
        crossing = self._crossing
        timeouts = crossing.config.timeouts
        topology = crossing.spec.topology
        with ExitStack() as epoch:
            listener = StepListener(
                crossing.rank,
                crossing.spec.epoch,
                [
                    Rank(Role.ATTENTION, index)
                    for index in range(0, topology.num_attention, crossing.spec.attention_tp)
                ],
                abort=crossing.spec.abort,
                step_s=timeouts.step_s,
                token=crossing.config.token(),
            )
            epoch.callback(listener.close, "shutdown")
            crossing.exchange("steps", listener.address)
            listener.connect_all(timeouts.load_s)
            link = crossing.connector.open_ffn(crossing.spec, crossing.exchange)
            epoch.callback(link.close, "the FFN rank ended its epoch")
            self.counters.follow(lambda: link.counters)
            crossing.session.report({}, state="ready-to-warm")
            reporter = Reporter(crossing.session, self.counters.snapshot)
            epoch.callback(reporter.close)
            self.server(link).serve(listener.next)

    def server(self, link: FFNLink) -> FFNServer:
        """The loop over ``link``."""
        return FFNServer(self._layers, link, self._forward_context, self.counters)

    @contextmanager
    def _forward_context(self, work: Work) -> Iterator[None]:
        with set_forward_context(None, self._config, num_tokens=work.hidden.shape[0]):
            yield


def serve_epoch(
    resident: Resident, session: RankSession, rank: Rank, process: type[RankProcess] = RankProcess
) -> None:
    """One epoch of a process that has its weights: agree with every rank, connect, and serve until Attention leaves."""
    with set_current_vllm_config(resident.config), torch.inference_mode():
        crossing = agree(resident.config, session, rank, tuple(sorted(resident.layers)))
        process(resident.config, crossing, resident.layers).serve()


def main(argv: Sequence[str], process: type[RankProcess] = RankProcess) -> None:
    """Run the FFN rank that the environment names until its Attention ranks leave.

    Raises the cause of the end of the epoch, which the launcher turns into this process's exit code.
    """
    load_general_plugins()
    rank = Rank(Role.FFN, int(os.environ[INDEX_VARIABLE]))
    bind_cores(rank.index)
    session = RankSession.attach(rank=rank)
    try:
        serve_epoch(Resident.make(argv, rank), session, rank, process)
    except BaseException as error:
        cause = session.fail(error)
        if isinstance(error, AFDError):
            raise cause.error() from error  # what this rank saw is often only an effect of the root cause
        raise
    session.close("shutdown")
