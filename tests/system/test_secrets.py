# SPDX-License-Identifier: Apache-2.0
"""Keys and tokens of a real group are in no log, status, metric or command line, also when it breaks."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from afd.testing.stack import Group
from afd.topology import Role
from tests.system.conftest import VLLM_ARGS, layout
from tests.system.rig import Traces, deed, ends, start

KEY, HUB, RUN = "sk-0123456789abcdef", "hf_0123456789abcdef", "run-0123456789abcdef0123456789abcdef"


def get(url: str, key: str | None = None) -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=5) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.parametrize("several", [False, True], ids=["one key", "two keys"])
def test_no_secret_is_shown_anywhere(groups: Callable[..., Group], tmp_path: Path, several: bool) -> None:
    token = tmp_path / "token"
    token.write_text(RUN)
    token.chmod(0o600)
    keys = (KEY, "sk-another-one") if several else (KEY,)
    flags = ("--api-key", *keys, "--hf-token", HUB)
    group = groups(
        layout(vllm_args=VLLM_ARGS, afd_args=("--afd-auth-token-file", str(token))),
        arguments={Role.ATTENTION: flags, Role.FFN: ("--hf-token", HUB)},
        environment={"VLLM_LOGGING_LEVEL": "DEBUG"},
    )
    start(group)
    assert get(f"{group.attention.api_url}/v1/models")[0] == 401
    assert get(f"{group.attention.api_url}/v1/models", KEY)[0] == 200
    traces = Traces.of(group)
    shown = {
        f"command line of {name}": " ".join(process.cmdline()) for name, process in traces.processes.items()
    }
    if several:  # there is no other way to tell vLLM of them
        shown.pop("command line of attention agent")
    for role, process in group.roles.items():
        for path in ("/status", "/metrics", "/readyz", "/livez"):
            shown[f"{role} {path}"] = get(process.agent_url + path)[1]
    found = ends(group, deed(traces.pids["Worker"]))
    assert found.codes == {Role.FFN: 70, Role.ATTENTION: 71}
    for role, process in group.roles.items():
        shown[f"log of {role}"] = process.text()
    assert "non-default args" in shown["log of attention"]  # vLLM has told its arguments
    leaks = [where for where, text in shown.items() if any(word in text for word in (*keys, HUB, RUN))]
    assert leaks == []
    assert json.loads(shown["attention /status"])["state"] == "ready"
