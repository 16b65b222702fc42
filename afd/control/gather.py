# SPDX-License-Identifier: Apache-2.0
"""The root's exchanges: collects one value per rank under a key, compares, and misses who does not come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from afd.control.abort import Cause
from afd.control.handshake import mismatch, names
from afd.control.messages import Offer
from afd.errors import Difference
from afd.topology import Rank


class _Gathering:
    def __init__(self, deadline_s: float, timer: asyncio.TimerHandle) -> None:
        self.deadline_s, self.timer = deadline_s, timer
        self.values: dict[str, Any] = {}
        self.must_agree = False


class Gatherings:
    """All exchanges that are not complete. ``complete`` gets key and values of one that is, ``claim`` the cause for
    which one cannot be."""

    def __init__(
        self,
        ranks: tuple[Rank, ...],
        complete: Callable[[str, Mapping[str, Any]], None],
        claim: Callable[[Cause], None],
    ) -> None:
        self._ranks, self._complete, self._claim = ranks, complete, claim
        self._open: dict[str, _Gathering] = {}
        self._left: dict[Rank, str] = {}

    def add(self, offer: Offer) -> None:
        """Take the values of some ranks. The first offer for a key starts its deadline."""
        gathering = self._open.get(offer.key)
        if gathering is None:
            timer = asyncio.get_running_loop().call_later(offer.deadline_s, self._expire, offer.key)
            gathering = self._open[offer.key] = _Gathering(offer.deadline_s, timer)
        gathering.values.update(offer.values)
        gathering.must_agree |= offer.must_agree
        if self._owing(gathering):
            self._check_left(offer.key, gathering)
            return
        del self._open[offer.key]
        gathering.timer.cancel()
        # In world order, whoever came first: the same difference is always told in the same words.
        values = {str(rank): gathering.values[str(rank)] for rank in self._ranks}
        if gathering.must_agree and (found := differing(offer.key, values)):
            self._claim(Cause("MismatchError", str(mismatch(found)), differences=found))
        else:
            self._complete(offer.key, values)

    def leave(self, ranks: tuple[Rank, ...], reason: str) -> None:
        """These ranks said goodbye: no exchange that needs them will ever be complete."""
        self._left.update(dict.fromkeys(ranks, reason))
        for key, gathering in list(self._open.items()):  # a claim empties the table
            self._check_left(key, gathering)

    def stop(self) -> None:
        """Forget all that is open."""
        for gathering in self._open.values():
            gathering.timer.cancel()
        self._open.clear()

    def _owing(self, gathering: _Gathering) -> list[Rank]:
        return [rank for rank in self._ranks if str(rank) not in gathering.values]

    def _expire(self, key: str) -> None:
        if (gathering := self._open.get(key)) is not None:
            owing = self._owing(gathering)
            text = (
                f"{names(owing)} did not offer {key!r} within {gathering.deadline_s:g} s; "
                f"{', '.join(sorted(gathering.values))} did"
            )
            self._claim(Cause("PeerLostError", text, rank=str(owing[0])))

    def _check_left(self, key: str, gathering: _Gathering) -> None:
        gone = [rank for rank in self._owing(gathering) if rank in self._left]
        if gone:
            text = f"{names(gone)} said goodbye ({self._left[gone[0]]}) but is needed for {key!r}"
            self._claim(Cause("PeerLostError", text, rank=str(gone[0])))


def differing(key: str, values: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Differences between values that must agree, by rank name; field by field when all of them are maps. A rank whose
    field is None goes along with whatever the others have."""
    if all(isinstance(value, Mapping) for value in values.values()):
        fields = sorted({str(name) for value in values.values() for name in value})
        columns = {
            f"{key}.{f}": {
                r: str(v.get(f, "none")) for r, v in values.items() if v.get(f, "none") is not None
            }
            for f in fields
        }
    else:
        columns = {key: {rank: str(value) for rank, value in values.items()}}
    return tuple(
        Difference(name, column) for name, column in columns.items() if len(set(column.values())) > 1
    )
