# SPDX-License-Identifier: Apache-2.0
"""The directory that says what runs in a container: one owner, this user's own, nothing of a former life."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from afd.container.run_files import AGENTS, VARIABLE, RunFiles
from afd.errors import ConfigError


def made(path: Path) -> RunFiles:
    return RunFiles({VARIABLE: str(path)})


def test_what_it_holds_is_for_this_user_only_and_goes_with_it(tmp_path: Path) -> None:
    files = made(tmp_path / "a" / "run")
    files.agents({"attention": 9300, "ffn": 0})
    written = files.path / AGENTS
    assert json.loads(written.read_text()) == {"attention": 9300}
    assert (files.path.stat().st_mode & 0o777, written.stat().st_mode & 0o777) == (0o700, 0o600)
    files.close()
    assert not files.path.exists()


def test_what_a_former_life_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "ends.json").write_text("[]")
    os.mkfifo(tmp_path / "ffn.out")
    files = made(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["owner"]
    files.close()


def test_a_second_entry_point_is_refused_while_the_first_one_lives(tmp_path: Path) -> None:
    first = made(tmp_path / "run")
    with pytest.raises(ConfigError, match="another afd-entrypoint of this user runs here; set AFD_RUN_DIR"):
        made(tmp_path / "run")
    first.close()
    made(tmp_path / "run").close()


def test_a_place_that_is_no_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path)
    for path, says in (
        (tmp_path / "file", "set AFD_RUN_DIR"),
        (tmp_path / "link", "not a directory of uid"),
        (Path("/proc/run"), "set AFD_RUN_DIR"),
        (Path("/" + 90 * "x"), "too long for sockets"),
    ):
        with pytest.raises(ConfigError, match=says):
            made(path)
