# SPDX-License-Identifier: Apache-2.0
"""Transport shm keeps the contract of every link, with the C helper, without it, and with one side each."""

from __future__ import annotations

from functools import partial

import pytest

from afd.connectors.base import Connector
from afd.connectors.camp2p import CAMP2pAFDConnector
from afd.connectors.shm.transport import Helper, ShmTransport
from afd.testing import conformance
from afd.topology import Role

PAIRS: dict[str, tuple[Helper, Helper]] = {
    "c": ("c", "c"),
    "python": ("python", "python"),
    "python attention, c ffn": ("python", "c"),
    "c attention, python ffn": ("c", "python"),
}


def make(attention: Helper, ffn: Helper, role: Role) -> Connector:
    return CAMP2pAFDConnector(ShmTransport(attention if role is Role.ATTENTION else ffn))


@pytest.mark.parametrize("name", conformance.SCENARIOS)
@pytest.mark.parametrize("pair", PAIRS)
def test_shm_keeps_the_contract(pair: str, name: str) -> None:
    conformance.run(name, partial(make, *PAIRS[pair]))
