# SPDX-License-Identifier: Apache-2.0
"""Attention's replicas on two hosts: ``python -m tests.system.replicas_on_two_hosts``.

The hosts and the cable are those of two_hosts. ``near`` has FFN, the API server and A0; ``far`` has A1, in an agent
that is headless. Prints what both found as JSON, on the last line.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

from afd.testing.questions import one_at_a_time, sampled
from afd.testing.stack import Group, Layout, RoleProcess, SharedLauncher, status
from afd.topology import Role, Topology
from tests.system.conftest import VLLM_ARGS, layout
from tests.system.rig import Client, decoding, differences
from tests.system.two_hosts import (
    NEAR,
    PORTS,
    READY_S,
    begin_far,
    begin_near,
    left,
    native_answers,
    other_host,
    run,
    tell,
)

RPC_PORT = 9320
RPC = (
    *("--data-parallel-size-local", "1"),
    *("--data-parallel-address", NEAR, "--data-parallel-rpc-port", str(RPC_PORT)),
)


def chosen(directory: Path) -> Layout:
    """2A1F, whose rendezvous is at the near end of the cable, with a token. A replica may need as long as the other
    one for its last step."""
    token = ("--afd-auth-token-file", str(directory / "token"))
    return layout(
        topology=Topology(2, 1),
        vllm_args=(*VLLM_ARGS, "--shutdown-timeout", "20"),
        afd_args=("--afd-host", NEAR, *token),
    )


# ---- the far host --------------------------------------------------------------------------------------------


def far(deed: str, directory: Path) -> None:
    """A1. Ends when it is told to, or by what becomes of the group; prints one line of JSON."""
    begin_far()
    role = RoleProcess(
        Role.ATTENTION,
        chosen(directory),
        directory / "far",
        PORTS,
        launcher=None,
        arguments=(*RPC, "--headless", "--data-parallel-start-rank", "1"),
    )
    try:
        sys.stdin.readline()  # the near host has its answers
        found: dict[str, Any] = asyncio.run(status(role.agent_url))
        found = {name: found[name] for name in ("ranks", "state", "steps", "transport")}
        print("looked", flush=True)
        if deed == "cut":
            sys.stdin.readline()
            run("ip", "link", "set", "far", "down")
            print("cut", flush=True)
        cut = time.monotonic()
        found["code"] = role.wait(90)
        found["seconds"] = time.monotonic() - cut
        found["error"] = role.error()
    finally:
        role.close()
    print(json.dumps({**found, "left": left()}), flush=True)


# ---- the near host -------------------------------------------------------------------------------------------


def near(deed: str, directory: Path) -> None:
    """FFN, the API server and A0; and native vLLM, which has one replica."""
    begin_near(directory)
    mine, place = chosen(directory), directory / "near"
    launcher = SharedLauncher(place, mine.runner)
    try:
        launcher.wait()
        questions = [*one_at_a_time()[:4], *sampled()[:2]]
        native = asyncio.run(native_answers(mine, place, launcher.path, questions))
        with other_host("tests.system.replicas_on_two_hosts", "far", deed, str(directory)) as other:
            tell(other)
            arguments = {Role.ATTENTION: RPC}
            with Group(mine, place, launcher.path, ports=PORTS, arguments=arguments) as group:
                group.start()
                asyncio.run(group.ready(READY_S))
                found: dict[str, Any] = {"tokens": sum(len(answer.tokens) for answer in native)}
                found["wrong"] = [
                    f"{replica}: {wrong}"
                    for replica in (0, 1)
                    for wrong in differences(group.attention.api_url, questions, native, replica=replica)
                ]
                tell(other)
                assert other.stdout is not None
                assert other.stdout.readline() == "looked\n"
                if deed == "cut":
                    Client(group.attention.api_url).start()
                    decoding(group.attention)
                    tell(other)
                    assert other.stdout.readline() == "cut\n"
                else:
                    group.attention.signal(signal.SIGTERM)
                at = time.monotonic()
                for role in (Role.ATTENTION, Role.FFN):
                    process = group.roles[role]
                    found[str(role)] = {"code": process.wait(60), "seconds": time.monotonic() - at}
                    found[str(role)]["error"] = process.error()
            said, _ = other.communicate(timeout=60)
            assert other.returncode == 0
    finally:
        launcher.close()
    print(json.dumps({**found, "left": left(), "far": json.loads(said.splitlines()[-1])}))


if __name__ == "__main__":
    {"near": near, "far": far}[sys.argv[1]](sys.argv[2], Path(sys.argv[3]))
