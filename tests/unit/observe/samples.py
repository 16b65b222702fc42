# SPDX-License-Identifier: Apache-2.0
"""A status to show."""

from __future__ import annotations

from typing import Any

import msgspec

from afd.observe.status import Peer, Status

READY = Status(
    version="0",
    role="ffn",
    rank="F0",
    ranks=("F0",),
    state="ready",
    since="2026-01-02T03:04:05.000+00:00",
    topology={"num_attention": 1, "num_ffn": 1, "order": "ffn_first"},
    connector="CAMP2pAFDConnector",
    transport="shm",
    runner="v2",
    model="builtin:tiny",
    epoch="abc",
    peers=(Peer(role="attention", rank="A0", host="h", state="ready", last_seen_s=0.25),),
)


def status(**changes: Any) -> Status:
    return msgspec.structs.replace(READY, **changes)
