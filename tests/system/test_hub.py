# SPDX-License-Identifier: Apache-2.0
"""A model that both roles download, as a user of the hub starts it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from afd.agent.model_files import resolve
from afd.testing.completions import Answer, Question
from afd.testing.stack import Group
from afd.topology import Role
from tests.system.conftest import MODEL, layout
from tests.system.rig import differences, start
from tests.unit.agent.hub import hub


def test_a_model_of_the_hub_gives_native_tokens_and_is_kept_where_the_user_says(
    groups: Callable[..., Group],
    proofs: Callable[[str], tuple[list[Question], list[Answer]]],
    tmp_path: Path,
) -> None:
    kept = tmp_path / "kept"
    arguments = ("--download-dir", str(kept), "--hf-token", "secret")
    with hub("org/small", resolve(MODEL), token="secret") as served:
        group = groups(
            layout(model="org/small"),
            arguments=dict.fromkeys(Role, arguments),
            environment={"HF_ENDPOINT": served.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"},
        )
        start(group)
        assert differences(group.attention.api_url, *proofs("v2")) == []
        assert group.stop() == {Role.FFN: 0, Role.ATTENTION: 0}
    assert served.served.count("model.safetensors") == 1
    assert (kept / "models--org--small").is_dir() and not (tmp_path / "home").exists()
