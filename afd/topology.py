# SPDX-License-Identifier: Apache-2.0
"""Who is in the run and who serves whom: roles, ranks, world orders and the A→F map.

``A`` Attention ranks share ``F`` FFN ranks, with ``A >= F`` and ``A % F == 0``. FFN rank ``j`` serves the ``r
= A / F`` Attention ranks ``jr .. jr + r - 1``, so every Attention rank is served exactly once and every FFN
rank has the same load. A *world rank* numbers both roles together; which role comes first depends on the
connector (:class:`WorldOrder`). World rank 0 is the *root*: it owns the rendezvous.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from afd.errors import ConfigError, MisuseError


class Role(str, Enum):
    """One of the two groups of devices. ``str(role)`` is the word that configuration uses."""

    ATTENTION = "attention"
    FFN = "ffn"

    def __str__(self) -> str:
        return self.value

    @property
    def letter(self) -> str:
        """ "A" or "F", the first character of a rank's name."""
        return "A" if self is Role.ATTENTION else "F"

    @property
    def other(self) -> Role:
        return Role.FFN if self is Role.ATTENTION else Role.ATTENTION


_RANK = re.compile(r"([AF])(0|[1-9][0-9]*)")


@dataclass(frozen=True, order=True)
class Rank:
    """One rank inside its role. ``str(rank)`` is "A0", "F1", and so on; :meth:`parse` reads it back."""

    role: Role
    index: int

    def __post_init__(self) -> None:
        if self.index < 0:
            raise MisuseError(f"rank {self.index} of role {self.role}: a rank is never negative")

    def __str__(self) -> str:
        return f"{self.role.letter}{self.index}"

    @classmethod
    def parse(cls, text: str) -> Rank:
        """The rank named by ``text`` ("A0", "F12"). Raises :class:`ConfigError` for anything else."""
        match = _RANK.fullmatch(text)
        if match is None:
            raise ConfigError(f"{text!r} is not a rank: expected A or F and a number, such as A0 or F1")
        return cls(Role.ATTENTION if match[1] == "A" else Role.FFN, int(match[2]))


class WorldOrder(str, Enum):
    """Which role owns the low world ranks: FFN for CAMP2P, Attention for CAMAsync."""

    FFN_FIRST = "ffn_first"
    ATTENTION_FIRST = "attention_first"

    def __str__(self) -> str:
        return self.value

    @property
    def roles(self) -> tuple[Role, Role]:
        return (Role.FFN, Role.ATTENTION) if self is WorldOrder.FFN_FIRST else (Role.ATTENTION, Role.FFN)


@dataclass(frozen=True)
class Topology:
    """How many ranks each role has, and in which order they are numbered. Call :meth:`validate` on user
    input.
    """

    num_attention: int
    num_ffn: int
    order: WorldOrder = WorldOrder.FFN_FIRST

    def __str__(self) -> str:
        return f"{self.num_attention}A{self.num_ffn}F"

    def validate(self) -> None:
        """Raise :class:`ConfigError` unless both counts are at least 1 and A is a multiple of F."""
        for name, count in (("Attention", self.num_attention), ("FFN", self.num_ffn)):
            if count < 1:
                raise ConfigError(f"{count} {name} ranks: at least 1 is needed")
        if self.num_attention < self.num_ffn:
            raise ConfigError(
                f"{self}: more FFN ranks ({self.num_ffn}) than Attention ranks ({self.num_attention}); the "
                f"surplus would have nothing to serve; use at most {self.num_attention} FFN ranks"
            )
        if self.num_attention % self.num_ffn:
            below = self.num_attention // self.num_ffn * self.num_ffn
            raise ConfigError(
                f"{self}: {self.num_attention} Attention ranks do not divide evenly over {self.num_ffn} FFN "
                f"ranks; use a multiple of {self.num_ffn}, such as {below} or {below + self.num_ffn}"
            )

    @property
    def ratio(self) -> int:
        """Attention ranks per FFN rank."""
        return self.num_attention // self.num_ffn

    @property
    def world_size(self) -> int:
        return self.num_attention + self.num_ffn

    def size(self, role: Role) -> int:
        """How many ranks ``role`` has."""
        return self.num_attention if role is Role.ATTENTION else self.num_ffn

    def role_ranks(self, role: Role) -> tuple[Rank, ...]:
        """All ranks of ``role``, by index."""
        return tuple(Rank(role, index) for index in range(self.size(role)))

    @cached_property
    def ranks(self) -> tuple[Rank, ...]:
        """All ranks in world order: ``ranks[w]`` has world rank ``w``."""
        first, second = self.order.roles
        return self.role_ranks(first) + self.role_ranks(second)

    @property
    def root(self) -> Rank:
        """The rank with world rank 0, whose agent listens for all the others."""
        return Rank(self.order.roles[0], 0)

    def world_rank(self, rank: Rank) -> int:
        """The number of ``rank`` in the world. Raises :class:`MisuseError` when there is no such rank."""
        if rank.index >= self.size(rank.role):
            raise MisuseError(f"{rank} is not a rank of {self}")
        return rank.index if rank.role is self.order.roles[0] else self.size(rank.role.other) + rank.index

    def rank_at(self, world: int) -> Rank:
        """The rank with world rank ``world``. Raises :class:`MisuseError` when it is out of range."""
        if not 0 <= world < self.world_size:
            raise MisuseError(f"world rank {world} is not in {self} (0 to {self.world_size - 1})")
        return self.ranks[world]

    def ffn_of(self, attention: int) -> int:
        """The FFN rank that serves Attention rank ``attention``."""
        self.world_rank(Rank(Role.ATTENTION, attention))
        return attention // self.ratio

    def attention_of(self, ffn: int) -> range:
        """The Attention ranks that FFN rank ``ffn`` serves, ascending."""
        self.world_rank(Rank(Role.FFN, ffn))
        return range(ffn * self.ratio, (ffn + 1) * self.ratio)

    def fold(self, counts: Sequence[int]) -> tuple[int, ...]:
        """Sum per-Attention-rank counts into per-FFN-rank counts. The total is kept.

        Raises :class:`MisuseError` unless there is exactly one count for each Attention rank.
        """
        if len(counts) != self.num_attention:
            raise MisuseError(f"{len(counts)} counts for the {self.num_attention} Attention ranks of {self}")
        return tuple(sum(counts[a] for a in self.attention_of(f)) for f in range(self.num_ffn))

    def pair_key(self, attention: int, ffn: int, ubatch: int) -> str:
        """A name for the path between two ranks and one ubatch, such as "a3-f1-u0"; no two paths share one.

        Every pair has a name, served or not: an asynchronous connector joins each Attention rank to each FFN
        rank.
        """
        self.world_rank(Rank(Role.ATTENTION, attention))
        self.world_rank(Rank(Role.FFN, ffn))
        if ubatch < 0:
            raise MisuseError(f"ubatch {ubatch} between A{attention} and F{ffn}: never negative")
        return f"a{attention}-f{ffn}-u{ubatch}"


def attention_rank(dp_rank: int, tp_rank: int, tp_size: int) -> int:
    """The index inside the Attention role of one vLLM worker: data parallel major, tensor parallel minor."""
    if not 0 <= tp_rank < tp_size or dp_rank < 0:
        raise MisuseError(f"no Attention rank for dp_rank {dp_rank}, tp_rank {tp_rank} of tp_size {tp_size}")
    return dp_rank * tp_size + tp_rank
