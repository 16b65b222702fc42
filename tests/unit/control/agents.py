# SPDX-License-Identifier: Apache-2.0
"""Agents on loopback with short deadlines."""

from __future__ import annotations

import socket
from typing import Any

import msgspec

from afd.config import AFDConfig, Timeouts
from afd.control.messages import PROTOCOL, Fingerprint, Hello, Host, Layout
from afd.topology import Role


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        number: int = probe.getsockname()[1]
        return number


def hello_of(role: str, *ranks: int, attention: int = 1, ffn: int = 1, **changes: Any) -> Hello:
    base = Hello(
        role=role,
        ranks=ranks or (0,),
        versions={"protocol": str(PROTOCOL), "afd": "1", "vllm": "2", "torch": "3"},
        model=Fingerprint(
            architecture="DeepseekV2ForCausalLM",
            hidden_size=64,
            layers=3,
            experts=8,
            top_k=2,
            dtype="float32",
            quantisation="none",
            config_digest="d1",
        ),
        layout=Layout(num_attention=attention, num_ffn=ffn, order="ffn_first"),
        connector="CAMP2pAFDConnector",
        transport="auto",
        gate="ffn",
        ids=False,
        ubatch={"num_ubatches": 1, "decode_token_threshold": 32, "prefill_token_threshold": 512},
        platform="cpu",
        runner="v2",
        host=Host(name=f"host-{role}", memory="m", pid=4242),
        heartbeat_s=0.2,
        config_revision="r1",
    )
    return msgspec.structs.replace(base, **changes)


def config_of(
    port: int, *, attention: int = 1, ffn: int = 1, rendezvous_s: float = 10.0, **changes: Any
) -> AFDConfig:
    return AFDConfig(
        role=Role.FFN,
        port=port,
        num_attention_ranks=attention,
        num_ffn_ranks=ffn,
        timeouts=Timeouts(rendezvous_s=rendezvous_s, step_s=5.0, heartbeat_s=0.2, grace_s=1.0),
        **changes,
    )
