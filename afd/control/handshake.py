# SPDX-License-Identifier: Apache-2.0
"""Which facts two agents must share before any model process exists, and how a difference is told."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from afd.control.messages import Hello, Host
from afd.errors import Difference, MismatchError
from afd.topology import Rank, Role

ANY = "auto"
"""A transport that fits every other one."""


@dataclass(frozen=True)
class Agreed:
    """One field of :class:`Hello` that must be equal on all ranks, under the name that people read."""

    name: str
    read: Callable[[Hello], str]
    wildcard: str | None = None


def _version(package: str) -> Agreed:
    return Agreed(f"version of {package}", lambda hello: hello.versions.get(package, "none"))


def _ubatch(key: str) -> Agreed:
    return Agreed(f"ubatch.{key}", lambda hello: str(hello.ubatch.get(key, "none")))


AGREED: tuple[Agreed, ...] = (
    _version("protocol"),
    _version("afd"),
    _version("vllm"),
    _version("vllm_ascend"),
    Agreed("model architecture", lambda hello: hello.model.architecture),
    Agreed("model hidden size", lambda hello: str(hello.model.hidden_size)),
    Agreed("model layers", lambda hello: str(hello.model.layers)),
    Agreed("model experts", lambda hello: str(hello.model.experts)),
    Agreed("model top-k", lambda hello: str(hello.model.top_k)),
    Agreed("dtype", lambda hello: hello.model.dtype),
    Agreed("quantisation", lambda hello: hello.model.quantisation),
    Agreed("model configuration digest", lambda hello: hello.model.config_digest),
    Agreed("num_attention_ranks", lambda hello: str(hello.layout.num_attention)),
    Agreed("num_ffn_ranks", lambda hello: str(hello.layout.num_ffn)),
    Agreed("order of the roles", lambda hello: hello.layout.order),
    Agreed("tensor-parallel size of Attention", lambda hello: str(hello.layout.attention_tp), wildcard="0"),
    Agreed("connector", lambda hello: hello.connector),
    Agreed("transport", lambda hello: hello.transport, wildcard=ANY),
    Agreed("gate placement", lambda hello: hello.gate),
    Agreed("ids mode", lambda hello: "with token ids" if hello.ids else "without token ids"),
    _ubatch("num_ubatches"),
    _ubatch("decode_token_threshold"),
    _ubatch("prefill_token_threshold"),
    Agreed("platform", lambda hello: hello.platform),
    Agreed("configuration revision", lambda hello: hello.config_revision or "none"),
)
"""Everything else in a hello (host, runner, other versions, notes) is for people."""

_DIGEST = "model configuration digest"


def ranks_of(hello: Hello) -> tuple[Rank, ...]:
    """The ranks that a hello speaks for. Raises :class:`ValueError` for a role that does not exist."""
    return tuple(Rank(Role(hello.role), index) for index in hello.ranks)


def names(ranks: Sequence[Rank]) -> str:
    """ "A0, A1, F0": ranks in a message, of which a long list is cut."""
    shown = ", ".join(str(rank) for rank in ranks[:16])
    return shown + (f" and {len(ranks) - 16} more" if len(ranks) > 16 else "")


def differences(hellos: Sequence[Hello]) -> tuple[Difference, ...]:
    """The fields of :data:`AGREED` that are not equal, and shared memory asked for across hosts."""
    found = []
    for field in AGREED:
        values = {str(rank): field.read(hello) for hello in hellos for rank in ranks_of(hello)}
        values = {rank: value for rank, value in values.items() if value != field.wildcard}
        if len(set(values.values())) > 1:
            found.append(Difference(field.name, values))
    if any(hello.transport == "shm" for hello in hellos) and len({h.host.memory for h in hellos}) > 1:
        hosts = {str(rank): hello.host.name for hello in hellos for rank in ranks_of(hello)}
        found.append(Difference("host (transport shm needs shared memory between all ranks)", hosts))
    # The digest differs whenever another fact of the model does; alone it is news, else it is noise.
    if any(d.field.startswith("model") and d.field != _DIGEST for d in found):
        found = [d for d in found if d.field != _DIGEST]
    return tuple(found)


def mismatch(found: tuple[Difference, ...]) -> MismatchError:
    """The error for ``found``: one line that names each field, its values and their ranks."""
    return MismatchError("the roles do not fit together: " + "; ".join(str(d) for d in found), found)


def compare(hellos: Sequence[Hello]) -> None:
    """Raise :class:`MismatchError` unless all hellos agree."""
    if found := differences(hellos):
        raise mismatch(found)


def attention_tp(hellos: Sequence[Hello]) -> int:
    """The tensor-parallel size that agreeing hellos mean, which is Attention's."""
    return max(1, *(hello.layout.attention_tp for hello in hellos))


def this_host() -> Host:
    """Identity of the host (or container) of the calling process. Containers that share a /dev/shm share memory."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        mount = os.stat("/dev/shm")
        memory = f"{boot}/{mount.st_dev:x}.{mount.st_ino:x}"
    except OSError:
        memory = f"private to {socket.gethostname()} {os.getpid()}"
    return Host(name=socket.gethostname(), memory=memory, pid=os.getpid())
