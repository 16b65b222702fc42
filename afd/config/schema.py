# SPDX-License-Identifier: Apache-2.0
"""AFD's configuration as frozen dataclasses, and the one table of options derived from their fields.

A field's metadata holds its kind, its sentence of documentation and its aliases. Flags
(``--afd-timeouts-step-s``), environment names (``AFD_TIMEOUTS_STEP_S``), JSON keys, ``afd config show`` and
``docs/configuration.md`` all come from :func:`options`, so they cannot drift apart.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from types import MappingProxyType
from typing import Any

from afd.config import kinds
from afd.config.kinds import Kind
from afd.errors import ConfigError
from afd.topology import Role, Topology, WorldOrder

CAMP2P = "CAMP2pAFDConnector"
CAM_ASYNC = "CAMAsyncAFDConnector"


@dataclass(frozen=True)
class Option:
    """One setting. ``path`` is its place in :class:`AFDConfig` ("timeouts.step_s"), ``key`` its place in
    JSON.
    """

    path: str
    key: str
    flag: str
    env: str
    kind: Kind
    default: Any
    doc: str
    aliases: tuple[str, ...] = ()

    @property
    def type(self) -> str:
        return self.kind.name

    @property
    def no_flag(self) -> str:
        """The flag that says no to a yes-or-no setting ("--no-afd-async"); empty for other kinds."""
        return self.flag.replace("--", "--no-", 1) if self.kind is kinds.BOOLEAN else ""

    @property
    def choices(self) -> tuple[str, ...]:
        return self.kind.choices


def _option(kind: Kind, doc: str, *, key: str = "", aliases: tuple[str, ...] = ()) -> Mapping[str, Any]:
    return {"kind": kind, "doc": doc, "key": key, "aliases": aliases}


@dataclass(frozen=True)
class UbatchPolicy:
    """When a step is cut into two ubatches. Thresholds count real tokens, the minimum over all ranks."""

    num_ubatches: int = field(
        default=1,
        metadata=_option(
            kinds.between("a number of ubatches", 1, 2),
            "Slices of a step that overlap Attention with FFN; 1 is off.",
        ),
    )
    decode_token_threshold: int = field(
        default=32,
        metadata=_option(
            kinds.at_least("a number of tokens", 0),
            "Tokens from which a step of only decodes is cut in two.",
        ),
    )
    prefill_token_threshold: int = field(
        default=512,
        metadata=_option(
            kinds.at_least("a number of tokens", 0), "Tokens from which any other step is cut in two."
        ),
    )


@dataclass(frozen=True)
class Timeouts:
    """Deadlines, in seconds, of the waits that depend on the model or the cluster. All others are short and fixed."""

    rendezvous_s: float = field(
        default=600.0,
        metadata=_option(
            kinds.SECONDS, "How long a role waits for the other one to appear. Then missing ranks are named."
        ),
    )
    load_s: float = field(
        default=1800.0,
        metadata=_option(
            kinds.SECONDS,
            "How long a role may take from the rendezvous to being ready: imports, weights, warm-up.",
        ),
    )
    step_s: float = field(
        default=60.0,
        metadata=_option(kinds.SECONDS, "How long a live peer may take to make progress within a step."),
    )
    heartbeat_s: float = field(
        default=0.66,
        metadata=_option(
            kinds.SECONDS,
            "A peer that gives no sign of life for three of these is lost; at most 0.66, so that this is seen "
            "within 2 s. Signs of life are sent five times as often.",
        ),
    )
    grace_s: float = field(
        default=5.0,
        metadata=_option(
            kinds.SECONDS,
            "How long a role that is stopped may take to answer what is in flight, before it is killed.",
        ),
    )


@dataclass(frozen=True)
class Auth:
    """How peers prove that they belong to the run. The token itself is never part of the configuration."""

    token_file: str | None = field(
        default=None,
        metadata=_option(
            kinds.PATH,
            "File with a shared token of 16 bytes or more, closed to other users. Without one, peers are "
            "trusted.",
        ),
    )


@dataclass(frozen=True)
class Rejoin:
    """How often, and how fast, a role with ``on_loss=rejoin`` starts again before it gives up."""

    attempts: int = field(
        default=5,
        metadata=_option(
            kinds.count("a number of attempts"),
            "With `rejoin`: how often a role may start again in a row. Then it ends with the last cause.",
        ),
    )
    backoff_s: float = field(
        default=1.0,
        metadata=_option(
            kinds.SECONDS,
            "With `rejoin`: pause before the second attempt, doubled for each one after it. The first is made at once.",
        ),
    )
    backoff_max_s: float = field(
        default=30.0,
        metadata=_option(kinds.SECONDS, "With `rejoin`: the longest pause between two attempts."),
    )
    reset_s: float = field(
        default=300.0,
        metadata=_option(
            kinds.SECONDS,
            "With `rejoin`: after being ready for so long, attempts are counted from the start.",
        ),
    )


@dataclass(frozen=True)
class AFDConfig:
    """The settings of one role. Build it with :func:`afd.config.resolve`, which validates.

    ``connector_extra_config`` holds only the keys that the user gave, checked against
    :data:`EXTRA_OPTIONS`; :meth:`extra` adds the defaults.
    """

    role: Role | None = field(
        default=None,
        metadata=_option(
            kinds.choice("attention", "ffn"),
            "The role of this process. `afd serve` sets it from its first argument.",
            aliases=("afd_role",),
        ),
    )
    connector: str = field(
        default=CAMP2P,
        metadata=_option(
            kinds.choice(CAMP2P, CAM_ASYNC), "Protocol between the roles.", aliases=("afd_connector",)
        ),
    )
    host: str = field(
        default="127.0.0.1",
        metadata=_option(
            kinds.HOST,
            "Where the rendezvous listens: an address of the host with world rank 0 (F0 for CAMP2P, A0 for "
            "CAMAsync). When that host does not know it as its own (a service name), it listens on all its addresses.",
            aliases=("afd_host",),
        ),
    )
    port: int = field(
        default=9310, metadata=_option(kinds.PORT, "Port of the rendezvous.", aliases=("afd_port",))
    )
    num_attention_ranks: int = field(
        default=1,
        metadata=_option(
            kinds.count("a number of ranks"),
            "Attention ranks over all hosts (DP x PCP x TP). A multiple of the FFN ranks.",
        ),
    )
    num_ffn_ranks: int = field(
        default=1, metadata=_option(kinds.count("a number of ranks"), "FFN ranks over all hosts.")
    )
    compute_gate_on_attention: bool = field(
        default=False,
        metadata=_option(
            kinds.BOOLEAN, "Choose experts on Attention (needed by CAMAsync) instead of on FFN (CAMP2P)."
        ),
    )
    async_dp: bool = field(
        default=False,
        metadata=_option(
            kinds.BOOLEAN,
            "Drive FFN by arriving data (CAMAsync) instead of by step messages (CAMP2P); follows from the connector.",
            key="async",
            aliases=("async_dp",),
        ),
    )
    connector_extra_config: Mapping[str, Any] = field(
        default_factory=lambda: MappingProxyType({}),
        metadata=_option(
            kinds.MAPPING,
            'Settings of the connector, for example `{"core_num": 8}`; docs/configuration.md lists them.',
        ),
        hash=False,
    )
    transport: str = field(
        default="auto",
        metadata=_option(
            kinds.choice("auto", "shm", "collective", "cam"),
            "What moves tensors between the roles: shared memory of one host, sends and receives between any hosts, "
            "or Ascend's operators. `auto` takes `shm` when all ranks really share memory, else `collective`.",
        ),
    )
    ubatch: UbatchPolicy = field(default_factory=UbatchPolicy, metadata={"group": UbatchPolicy})
    timeouts: Timeouts = field(default_factory=Timeouts, metadata={"group": Timeouts})
    auth: Auth = field(default_factory=Auth, metadata={"group": Auth})
    config_revision: str | None = field(
        default=None,
        metadata=_option(
            kinds.WORD,
            "Revision of the deployment, such as a chart's. Roles of different revisions form no group.",
        ),
    )
    on_loss: str = field(
        default="exit",
        metadata=_option(
            kinds.choice("exit", "rejoin"),
            "What a role does when a peer or one of its own processes is lost: end, or stay and start again with its "
            "peers in a new epoch. Each role decides for itself.",
        ),
    )
    rejoin: Rejoin = field(default_factory=Rejoin, metadata={"group": Rejoin})

    @property
    def topology(self) -> Topology:
        """Counts of both roles, in the world order of the connector."""
        order = WorldOrder.FFN_FIRST if self.connector == CAMP2P else WorldOrder.ATTENTION_FIRST
        return Topology(self.num_attention_ranks, self.num_ffn_ranks, order)

    def extra(self) -> dict[str, Any]:
        """``connector_extra_config`` with the connector's defaults filled in."""
        return {
            option.path: self.connector_extra_config.get(option.path, option.default)
            for option in EXTRA_OPTIONS[self.connector]
        }

    def token(self) -> bytes | None:
        """The shared token, read from ``auth.token_file`` now; None when none is configured.

        Raises :class:`ConfigError` when the file is missing, too open, or too short. No message contains the
        token.
        """
        return None if self.auth.token_file is None else read_token(self.auth.token_file)


def _extra(name: str, kind: Kind, default: Any, doc: str) -> Option:
    return Option(
        path=name, key=f"connector_extra_config.{name}", flag="", env="", kind=kind, default=default, doc=doc
    )


_CORES = kinds.count("a number of cores")

EXTRA_OPTIONS: Mapping[str, tuple[Option, ...]] = MappingProxyType(
    {
        CAMP2P: (
            _extra("core_num", _CORES, 8, "AIV cores that the operators of each role use."),
            _extra("attn_core_num", _CORES, None, "The same for Attention only."),
            _extra("ffn_core_num", _CORES, None, "The same for FFN only."),
            _extra(
                "quant_mode",
                kinds.between("a mode", 0, 0),
                0,
                "Quantisation on the wire; only 0, which is none.",
            ),
            _extra(
                "compute_gate_on_attention",
                kinds.BOOLEAN,
                None,
                "The main key of this name in another place.",
            ),
        ),
        CAM_ASYNC: (
            _extra("dynamicQuant", kinds.between("a mode", 0, 1), 0, "1 quantises what is dispatched."),
            _extra(
                "attn_ranks_per_dp",
                kinds.count("a number of ranks"),
                1,
                "Attention ranks in one DP replica (PCP).",
            ),
            _extra(
                "async_moe_ubatching", kinds.BOOLEAN, False, "Cut the MoE part of a step in two. Not DBO."
            ),
            _extra("async_moe_num_ubatches", kinds.between("a number of slices", 2, 2), 2, "Slices; only 2."),
            _extra("async_moe_split", kinds.choice("request"), "request", "Where to cut: between requests."),
        ),
    }
)


def _walk(cls: type[Any], prefix: str) -> list[Option]:
    found: list[Option] = []
    item: Field[Any]
    for item in fields(cls):
        if "group" in item.metadata:
            found += _walk(item.metadata["group"], f"{prefix}{item.name}.")
            continue
        path = f"{prefix}{item.name}"
        key = prefix + (item.metadata["key"] or item.name)
        default = item.default if item.default is not MISSING else {}
        words = key.replace(".", "_")
        found.append(
            Option(
                path=path,
                key=key,
                flag="--afd-" + words.replace("_", "-"),
                env="AFD_" + words.upper(),
                kind=item.metadata["kind"],
                default=default,
                doc=item.metadata["doc"],
                aliases=item.metadata["aliases"],
            )
        )
    return found


@cache
def options() -> tuple[Option, ...]:
    """Every setting, in the order of the documentation."""
    return tuple(_walk(AFDConfig, ""))


def build(values: Mapping[str, Any]) -> AFDConfig:
    """An :class:`AFDConfig` from a complete mapping of paths to values already read by their kinds."""

    def construct(cls: type[Any], prefix: str) -> Any:
        arguments = {}
        for item in fields(cls):
            path = f"{prefix}{item.name}"
            arguments[item.name] = (
                construct(item.metadata["group"], path + ".") if "group" in item.metadata else values[path]
            )
        return cls(**arguments)

    config: AFDConfig = construct(AFDConfig, "")
    return config


_TOKEN_MIN, _TOKEN_MAX = 16, 4096


def read_token(path: str) -> bytes:
    """The token in the file at ``path``, without surrounding white space. Never shown in a message.

    The group may read the file (that is how Kubernetes mounts a secret for a pod's ``fsGroup``), others may
    not, and nobody but the owner may write it. Raises :class:`ConfigError`.
    """
    try:
        # O_NONBLOCK: opening a FIFO must not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ConfigError(f"token file {path}: {error.strerror or error}") from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(f"token file {path}: not a regular file")
        mode = stat.S_IMODE(found.st_mode)
        if mode & 0o027:
            raise ConfigError(
                f"token file {path}: mode {mode:04o} lets others read or change it; run: chmod 600 {path}"
            )
        if found.st_uid not in (0, os.geteuid()):
            raise ConfigError(
                f"token file {path}: owned by uid {found.st_uid}, so that user could change it; "
                f"it must belong to this user (uid {os.geteuid()}) or to root"
            )
        token = os.read(descriptor, _TOKEN_MAX + 2).strip()
    except OSError as error:
        raise ConfigError(f"token file {path}: {error.strerror or error}") from None
    finally:
        os.close(descriptor)
    if not _TOKEN_MIN <= len(token) <= _TOKEN_MAX:
        raise ConfigError(
            f"token file {path}: {len(token)} bytes; a token has {_TOKEN_MIN} to {_TOKEN_MAX} "
            "(make one with: openssl rand -hex 32)"
        )
    return token
