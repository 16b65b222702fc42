# SPDX-License-Identifier: Apache-2.0
"""One FFN rank as a process: vLLM's configuration and loader, then the server's loop.

There is no scheduler, no KV cache and no engine core here, so nothing of vLLM's has to be switched off.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn
from vllm import envs
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import destroy_distributed_environment, destroy_model_parallel
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.forward_context import set_forward_context
from vllm.model_executor.model_loader import get_model
from vllm.platforms import current_platform
from vllm.plugins import load_general_plugins
from vllm.usage.usage_lib import UsageContext
from vllm.utils.torch_utils import set_random_seed
from vllm.v1.worker.gpu_worker import init_worker_distributed_environment

from afd.agent import vllm_arguments
from afd.config import AFDConfig
from afd.connectors.base import FFNLink, Work
from afd.control.abort import Cause
from afd.control.channel import Deadline
from afd.control.messages import RESTS
from afd.control.reporter import Reporter
from afd.control.session import ATTACH_S, RankSession
from afd.control.steps import StepListener
from afd.errors import AFDError, ConfigError
from afd.families import Family
from afd.ffn.counters import FFNCounters
from afd.ffn.experts import split_experts
from afd.ffn.mesh import RowMesh
from afd.ffn.profile import Profiling
from afd.ffn.rows import GroupRows
from afd.ffn.server import FFNServer
from afd.ffn.watch import LayerWatch
from afd.launch.arguments import judged_by_vllm, parse
from afd.launch.children import core_list, keep_to
from afd.models.crossing import HOST_VARIABLE, Crossing, agree, configuration
from afd.models.resolved import Resolved, resolve
from afd.models.role import model_family, role_scope
from afd.topology import Rank, Role, Topology

INDEX_VARIABLE = "AFD_RANK_INDEX"
MOST_SPINNING = 8
"""How many ranks vLLM's collectives in shared memory can have."""
REST_S = 0.05
"""How often a rank that rests looks for the next epoch."""


def engine_config(argv: Sequence[str]) -> VllmConfig:
    """vLLM's configuration from the arguments of ``vllm serve``. Raises ConfigError for what vLLM does not know, or
    refuses."""
    with judged_by_vllm():
        return AsyncEngineArgs.from_cli_args(parse(argv)).create_engine_config(UsageContext.OPENAI_API_SERVER)


def cores_of(index: int) -> set[int]:
    """FFN rank ``index``'s part of VLLM_CPU_OMP_THREADS_BIND, such as "0,1|2-3"; empty for "nobind"."""
    lists = os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "").split("|")
    return core_list(lists[index] if index < len(lists) else "")


def bind_cores(index: int) -> None:
    """Keep FFN rank ``index`` on its cores, when it has some of its own."""
    keep_to(cores_of(index))


def join_group(vllm_config: VllmConfig, rank: Rank, epoch: str) -> None:
    """Open the groups in which vLLM's layers run: one rank in them for each FFN rank, all on this host.

    ``epoch`` makes their names unique. vLLM sums over ranks in shared memory when they all give it the same name; it
    spins then, which is fast on cores of one's own and slow, for everybody, on shared ones. There Gloo sums, which
    sleeps: with two ranks on two busy cores a layer took 6 ms instead of 9.
    """
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # else it listens where the host's name leads
    spinning = cores_of(rank.index) and vllm_config.parallel_config.world_size <= MOST_SPINNING
    name = f"afd-{epoch}-ffn" if spinning else f"afd-{epoch}-ffn-{rank.index}"
    os.environ["VLLM_DIST_IDENT"] = name
    # Through a file, because a TCP store would listen on every interface of the host.
    store = Path(envs.VLLM_RPC_BASE_PATH, f"ffn-{epoch}")
    init_worker_distributed_environment(
        vllm_config, rank.index, f"file://{store}", rank.index, current_platform.dist_backend
    )
    for left in Path("/dev/shm").glob(f"{name}-*_{rank.index}"):
        left.unlink()  # all have mapped it, and nothing shall be left of a rank that is killed


def leave_group() -> None:
    """Close the groups, and remove what they hold in shared memory."""
    destroy_model_parallel()
    destroy_distributed_environment()


def load(vllm_config: VllmConfig, family: Family) -> nn.Module:
    """FFN's half of the model, in evaluation mode: with several ranks in the group, this one's share of it."""
    set_random_seed(vllm_config.model_config.seed)
    with ExitStack() as scope:
        scope.enter_context(role_scope(family, Role.FFN))
        if vllm_config.parallel_config.world_size > 1:
            scope.enter_context(split_experts())
        model: nn.Module = get_model(vllm_config=vllm_config)
    return model


def ffn_layers(model: nn.Module, family: Family) -> dict[int, nn.Module]:
    """The native FFN block of every layer, by layer index."""
    layers = model.get_submodule("model.layers")
    return {int(name): layer.get_submodule(family.ffn_attribute) for name, layer in layers.named_children()}


@dataclass(frozen=True)
class Resident:
    """What an FFN process makes once and keeps over epochs: vLLM's configuration, what it resolved before the model was
    built, its groups (in vLLM's own state) and the native FFN block of every layer, with its weights."""

    config: VllmConfig
    resolved: Resolved
    layers: dict[int, nn.Module]

    @classmethod
    def make(cls, argv: Sequence[str], rank: Rank, epoch: str) -> Resident:
        """Join the group of FFN ranks and load this rank's share of FFN's half of the model.

        Raises ConfigError, and what vLLM's loader raises. ``epoch`` is the one in which the process began.
        """
        config = engine_config(argv)
        size, ranks = config.parallel_config.world_size, configuration(config).num_ffn_ranks
        if size != ranks:
            raise ConfigError(
                f"{rank}: vLLM's arguments make a group of {size} ranks, but there are {ranks} FFN ranks"
            )
        family = model_family(config)
        with set_current_vllm_config(config), torch.inference_mode():
            join_group(config, rank, epoch)
            resolved = resolve(config)
            if not vllm_arguments.parse(argv[1:]).enabled("--max-num-batched-tokens"):
                resolved = replace(resolved, max_tokens=None)
            return cls(config, resolved, ffn_layers(load(config, family), family))


@dataclass(frozen=True)
class Patience:
    """How long waits of an FFN rank last, in seconds.

    A rank that stops makes others wait for those who wait for it. The nearer to it a wait is, the shorter it must be,
    or the wrong rank is blamed: an FFN rank waits for Attention less long than its neighbours wait for it, and those
    less long (``step_s``) than the Attention ranks that they serve.
    """

    for_attention_s: float
    for_ffn_s: float

    @classmethod
    def of(cls, step_s: float, topology: Topology) -> Patience:
        """With one Attention rank, which waits for nobody else, ``step_s`` it is."""
        return cls(0.8 * step_s, 0.9 * step_s) if topology.num_attention > 1 else cls(step_s, step_s)


class RankProcess:
    """Everything one FFN rank holds for one epoch: its links to Attention, and what it counts."""

    def __init__(self, vllm_config: VllmConfig, crossing: Crossing, layers: dict[int, nn.Module]) -> None:
        self._config = vllm_config
        self._crossing = crossing
        self._layers = layers
        self._rows = GroupRows(crossing.spec)
        self.counters = FFNCounters(crossing.spec)

    def serve(self) -> None:
        """Connect to every Attention rank and serve until they all leave. Whatever ends it, nothing that belongs to
        the epoch stays open."""
        with ExitStack() as epoch:
            try:
                self._serve(epoch)
            except BaseException as error:
                # Before anything closes: a peer must not take that for the cause.
                self._crossing.session.fail(error)
                raise

    def _serve(self, epoch: ExitStack) -> None:
        crossing, spec = self._crossing, self._crossing.spec
        timeouts, topology = crossing.config.timeouts, spec.topology
        patience = Patience.of(timeouts.step_s, topology)
        listener = StepListener(
            spec.rank,
            spec.epoch,
            [Rank(Role.ATTENTION, index) for index in range(0, topology.num_attention, spec.attention_tp)],
            abort=spec.abort,
            step_s=patience.for_attention_s,
            token=crossing.config.token(),
            host=os.environ[HOST_VARIABLE],
        )
        epoch.callback(listener.close, "shutdown")
        mesh = None
        if topology.num_ffn > 1:
            mesh = RowMesh(
                spec.rank,
                topology.num_ffn,
                spec.epoch,
                Path(envs.VLLM_RPC_BASE_PATH),
                abort=spec.abort,
                step_s=patience.for_ffn_s,
            )
            epoch.callback(mesh.close)
        crossing.exchange("steps", listener.address)
        if mesh is not None:
            mesh.connect(timeouts.load_s)
            watch = LayerWatch(mesh, patience.for_attention_s, crossing.session.fail)
            epoch.callback(watch.close)
        self._rows = GroupRows(spec, mesh)
        listener.connect_all(timeouts.load_s)
        link = crossing.connector.open_ffn(replace(spec, step_s=patience.for_attention_s), crossing.exchange)
        epoch.callback(link.close, "the FFN rank ended its epoch")
        self.counters.follow(lambda: link.counters)
        crossing.session.report({}, state="ready-to-warm")
        reporter = Reporter(crossing.session, self.counters.snapshot)
        epoch.callback(reporter.close)
        profiling = Profiling(self._config.profiler_config, crossing.session, spec.rank)
        epoch.callback(profiling.close)
        try:
            self.server(link).serve(profiling.between(listener.next))
        except RuntimeError as error:
            if mesh is None or (loss := mesh.blame(error)) is None:
                raise
            raise loss from error

    def server(self, link: FFNLink) -> FFNServer:
        """The loop over ``link``."""
        return FFNServer(self._layers, link, self._forward_context, self.counters, self._rows)

    @contextmanager
    def _forward_context(self, work: Work) -> Iterator[None]:
        with set_forward_context(None, self._config, num_tokens=work.hidden.shape[0]):
            yield


def serve_epoch(
    resident: Resident, session: RankSession, rank: Rank, process: type[RankProcess] = RankProcess
) -> None:
    """One epoch of a process that has its weights: agree with every rank, connect, and serve until Attention leaves."""
    with set_current_vllm_config(resident.config), torch.inference_mode():
        crossing = agree(resident.config, session, rank, tuple(sorted(resident.layers)), resident.resolved)
        process(resident.config, crossing, resident.layers).serve()


def main(argv: Sequence[str], process: type[RankProcess] = RankProcess) -> None:
    """Run the FFN rank that the environment names until its Attention ranks leave.

    With ``on_loss=rejoin`` an epoch that others have broken is not the end: the weights stay for the next one. Else
    raises the cause of the end of the epoch, which the launcher turns into this process's exit code.
    """
    load_general_plugins()
    rank = Rank(Role.FFN, int(os.environ[INDEX_VARIABLE]))
    bind_cores(rank.index)
    session = RankSession.attach(rank=rank)
    resident: Resident | None = None
    while True:
        try:
            resident = resident or Resident.make(argv, rank, session.epoch)
            serve_epoch(resident, session, rank, process)
            break
        except BaseException as error:
            cause = session.fail(error)
            if not isinstance(error, AFDError):
                raise
            settings = None if resident is None else configuration(resident.config)
            if settings is None or settings.on_loss != "rejoin" or cause.rank == str(rank):
                raise cause.error() from error  # what this rank saw is often only an effect of the root cause
        session.close(RESTS)
        session = next_session(rank, cause, settings)
    session.close("shutdown")
    leave_group()


def next_session(rank: Rank, cause: Cause, settings: AFDConfig) -> RankSession:
    """Attach to the next epoch, as soon as the agent has one. Raises ``cause``, which ended the last one, when that
    takes longer than the agent may wait for its peers. An agent that ends, or wants no process that rests, kills it."""
    patience = Deadline(settings.rejoin.backoff_max_s + settings.timeouts.rendezvous_s + ATTACH_S)
    while True:
        try:
            return RankSession.attach(rank=rank)
        except AFDError as error:  # there is no epoch yet, or still the old one
            if patience.passed:
                raise cause.error() from error
        time.sleep(REST_S)
