# SPDX-License-Identifier: Apache-2.0
"""POST /drain on either agent: unready at once, nothing new is taken, what is in flight is finished, both end with 0.

vLLM closes its port when it starts to drain, so who connects then is refused; who is connected already gets 503.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from dataclasses import replace
from typing import Any

import pytest

from afd.topology import Role
from tests.system.conftest import VLLM_ARGS, Groups, layout
from tests.system.rig import PLAIN, STREAMED, Client, Traces, decoding, ends, start, until

LATE = {"model": "afd", "prompt": "x", "max_tokens": 4}
TOLD = pytest.mark.parametrize("told", list(Role), ids=str)


def http(url: str, body: object = None, method: str = "POST", timeout_s: float = 10.0) -> tuple[int, Any]:
    """Status and JSON of an answer; status 0 when nobody answers."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)
    except OSError as error:
        return 0, repr(error)


@pytest.mark.pairwise
@TOLD
def test_a_drain_finishes_what_is_in_flight_takes_nothing_new_and_ends_both_roles_with_0(
    groups: Groups, told: Role
) -> None:
    group = groups(layout(vllm_args=(*VLLM_ARGS, "--shutdown-timeout", "30")))
    start(group)
    questions = [replace(STREAMED, max_tokens=200), replace(PLAIN, max_tokens=200)]
    client = Client(group.attention.api_url, questions).start()
    decoding(group.attention, 4)
    traces = Traces.of(group)
    at = time.monotonic()
    code, body = http(f"{group.roles[told].agent_url}/drain")
    assert (code, body["state"]) == (202, "draining") and body["budget_s"] >= 30
    # Nobody is hurried by asking again.
    assert http(f"{group.roles[told].agent_url}/drain")[0] == 202
    for role in (told, *(role for role in Role if role is not told)):
        ready = f"{group.roles[role].agent_url}/readyz"
        unready = until(lambda ready=ready: http(ready, method="GET")[0] == 503, 2, f"{role} is unready")
        print(f"{role} is unready {unready - at:.2f} s after the drain of {told}")
    while group.attention.exit_code is None:  # nobody hangs, at no time
        asked = time.monotonic()
        late = http(f"{group.attention.api_url}/v1/completions", LATE)
        assert late[0] in (0, 503) and time.monotonic() - asked < 2, late
        time.sleep(0.1)
    found = ends(group, at, timeout_s=60)
    print(f"POST /drain to {told}: {found}")
    assert found.codes == {Role.FFN: 0, Role.ATTENTION: 0}
    assert [len(answer.tokens) for answer in client.answers(5)] == [200, 200]
    assert found.seconds[Role.FFN] >= found.seconds[Role.ATTENTION] - 0.2  # Attention first
    assert traces.left() == []


@TOLD
def test_a_drain_that_takes_longer_than_its_budget_is_cut_off_and_is_no_success(
    groups: Groups, told: Role
) -> None:
    group = groups(layout(vllm_args=(*VLLM_ARGS, "--shutdown-timeout", "1")))
    start(group)
    client = Client(group.attention.api_url).start()
    decoding(group.attention)
    at = time.monotonic()
    assert http(f"{group.roles[told].agent_url}/drain")[0] == 202
    found = ends(group, at, timeout_s=30)
    print(f"POST /drain to {told}: {found}; {group.attention.error()}")
    assert found.codes == {Role.FFN: 70, Role.ATTENTION: 71}
    client.join(5)


def test_a_drain_is_a_drain_also_while_a_role_waits_for_its_peer(groups: Groups) -> None:
    group = groups(layout(afd_args=("--afd-on-loss", "rejoin")))
    start(group)
    group.attention.process.kill()
    until(lambda: http(f"{group.ffn.agent_url}/status", method="GET")[1]["restarts"] == 1, 5, "the loss")
    assert http(f"{group.ffn.agent_url}/drain")[0] == 202
    assert group.ffn.wait(10) == 0
