# SPDX-License-Identifier: Apache-2.0
"""Both roles are told to stop, as a terminal, a compose file or a deleted namespace does."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from afd.testing.stack import Group
from afd.topology import Role
from tests.system.rig import STREAMED, Client, decoding, start


@pytest.mark.timeout(120)
@pytest.mark.parametrize("apart_s", [0.0, 0.05, 0.3])
def test_a_signal_to_both_roles_is_a_first_signal_to_each_and_ends_both_with_zero(
    apart_s: float, groups: Callable[..., Group]
) -> None:
    group = groups()
    start(group)
    client = Client(group.attention.api_url, (replace(STREAMED, max_tokens=150),)).start()
    decoding(group.attention)
    group.ffn.signal(signal.SIGTERM)
    time.sleep(apart_s)
    group.attention.signal(signal.SIGTERM)
    codes = {role: process.wait(30) for role, process in group.roles.items()}
    assert len(client.answers(5)[0].tokens) == 150
    texts = {role: process.text() for role, process in group.roles.items()}
    for role, text in texts.items():
        assert "ending at once" not in text, text[-2000:]
        assert codes[role] == 0, f"{role}: {group.roles[role].error()}"
    assert set(codes) == {Role.ATTENTION, Role.FFN}
