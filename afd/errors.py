# SPDX-License-Identifier: Apache-2.0
"""Every error AFD raises on purpose, and whose fault it is.

    AFDError
    ├── ConfigError          64  the user's input: a flag, variable, file or key is wrong
    │   └── UnsupportedError 64  every value is legal, the combination is not (yet) supported
    ├── MismatchError        65  two ranks were configured differently; found at the handshake
    ├── PeerAbsentError      69  a peer did not show up by the deadline
    ├── PeerLostError        70  a peer that was there is gone, silent or stuck
    └── RoleFailedError      71  this role broke: one of our own processes died or raised
        ├── ClosedError          we closed it ourselves and then used it
        ├── MisuseError          two parts of AFD disagree about the protocol: a bug in AFD
        └── ResourceError        the machine lacks something: shared memory, disk, a port

The number is the exit code of the agent (``design.md`` §9; values from sysexits.h where one fits).
This module imports nothing of AFD, so that every layer can raise these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


class AFDError(Exception):
    """Base of every deliberate error. The message is one readable line: found, expected, rank, what to do."""

    exit_code: int = 71


class ConfigError(AFDError):
    """A flag, environment variable, JSON key or file given by the user is wrong."""

    exit_code = 64


class UnsupportedError(ConfigError):
    """A legal value in a combination that the support matrix does not allow."""


@dataclass(frozen=True)
class Difference:
    """One field on which ranks disagree: ``values`` maps rank names ("A0", "F0") to the printed value."""

    field: str
    values: Mapping[str, str]

    def __str__(self) -> str:
        groups: dict[str, list[str]] = {}
        for rank, value in self.values.items():
            groups.setdefault(value, []).append(rank)
        return f"{self.field}: " + " but ".join(
            f"{value} on {', '.join(ranks)}" for value, ranks in groups.items()
        )


class MismatchError(AFDError):
    """Ranks disagree about a value that must be equal. ``differences`` names field, values and ranks."""

    exit_code = 65

    def __init__(self, message: str, differences: tuple[Difference, ...] = ()) -> None:
        super().__init__(message)
        self.differences = differences


class PeerAbsentError(AFDError):
    """A peer did not arrive by the deadline."""

    exit_code = 69


class PeerLostError(AFDError):
    """A peer closed its connection, fell silent or made no progress within ``step_s``. ``rank`` names it ("A0")."""

    exit_code = 70

    def __init__(self, message: str, rank: str = "") -> None:
        super().__init__(message)
        self.rank = rank


class RoleFailedError(AFDError):
    """One of this role's own processes died or raised. ``rank`` names it ("A1") when it is known."""

    exit_code = 71

    def __init__(self, message: str, rank: str = "") -> None:
        super().__init__(message)
        self.rank = rank


class ClosedError(RoleFailedError):
    """An object was used after this side had closed it."""


class MisuseError(RoleFailedError):
    """The protocol between two parts of AFD was broken (wrong epoch, step, layer or order): a bug in AFD."""


class ResourceError(RoleFailedError):
    """The machine lacks something AFD needs, such as shared memory, disk space or a port."""
