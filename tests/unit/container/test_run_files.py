# SPDX-License-Identifier: Apache-2.0
"""The directory that says what runs in a container: one owner, this user's own, nothing of a former life, and nothing
that is somebody else's."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from afd.container.run_files import AGENTS, VARIABLE, RunFiles
from afd.errors import ConfigError

OWN = f"afd-{os.geteuid()}"


def made(path: Path) -> RunFiles:
    return RunFiles({VARIABLE: str(path)})


def test_what_it_holds_is_for_this_user_only_and_goes_with_it(tmp_path: Path) -> None:
    files = made(tmp_path / "a" / "run")
    files.agents({"attention": ("0.0.0.0", 9300), "ffn": ("0.0.0.0", 0)})
    written = files.path / AGENTS
    assert json.loads(written.read_text()) == {"attention": ["0.0.0.0", 9300]}
    assert (files.path.stat().st_mode & 0o777, written.stat().st_mode & 0o777) == (0o700, 0o600)
    files.close()
    assert not files.path.exists()


def test_a_directory_that_is_in_use_keeps_its_mode_and_all_its_files(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    theirs = [tmp_path / name for name in ("owner", "agents.json", "ffn.json", "letter.txt")]
    for path in theirs:
        path.write_text("mine")
    (tmp_path / "below").mkdir()
    files = made(tmp_path)
    files.agents({"ffn": ("", 1)})
    files.close()
    assert [path.read_text() for path in theirs] == ["mine"] * 4
    assert (tmp_path / "below").is_dir() and tmp_path.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("owned", [True, False])
@pytest.mark.parametrize("name", ["letter.txt", "below", "ends.json/below"])
def test_what_the_entry_point_has_not_made_is_named_and_stays(owned: bool, name: str, tmp_path: Path) -> None:
    place = tmp_path / OWN
    (place / name).mkdir(parents=True)
    if owned:
        (place / "owner").touch()
    with pytest.raises(ConfigError, match=f"{name.partition('/')[0]}.*set AFD_RUN_DIR"):
        made(tmp_path)
    assert (place / name).is_dir()
    before = os.listdir("/proc/self/fd")
    with pytest.raises(ConfigError):
        made(tmp_path)
    assert os.listdir("/proc/self/fd") == before


def test_files_without_an_owner_are_not_the_entry_points(tmp_path: Path) -> None:
    (tmp_path / OWN).mkdir()
    (tmp_path / OWN / "ends.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"holds ends\.json, which no afd-entrypoint has left there"):
        made(tmp_path)
    assert (tmp_path / OWN / "ends.json").read_text() == "[]"


def test_what_came_into_it_meanwhile_stays_when_it_goes(tmp_path: Path) -> None:
    files = made(tmp_path)
    (files.path / "letter.txt").write_text("mine")
    files.agents({"ffn": ("", 1)})
    files.close()
    assert os.listdir(files.path) == ["letter.txt"]


def test_what_a_former_life_left_is_removed(tmp_path: Path) -> None:
    place = tmp_path / OWN
    place.mkdir()
    for name in ("owner", "ends.json", ".ends.json.new", "supervisor.sock.17", "supervisord.log", "stopping"):
        (place / name).touch()
    os.mkfifo(place / "ffn.out")
    files = made(tmp_path)
    assert [path.name for path in place.iterdir()] == ["owner"]
    files.close()


def test_a_second_entry_point_is_refused_while_the_first_one_lives(tmp_path: Path) -> None:
    first = made(tmp_path / "run")
    first.agents({"ffn": ("", 1)})
    with pytest.raises(ConfigError, match="another afd-entrypoint of this user runs here; set AFD_RUN_DIR"):
        made(tmp_path / "run")
    assert (first.path / AGENTS).exists()
    first.close()
    made(tmp_path / "run").close()


def test_a_place_that_is_no_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / OWN).symlink_to(tmp_path)
    for path, says in (
        (tmp_path / "file", "set AFD_RUN_DIR"),
        (tmp_path / "linked", "not a directory of uid"),
        (Path("/proc/run"), "set AFD_RUN_DIR"),
        (Path("/" + 90 * "x"), "too long for sockets"),
    ):
        with pytest.raises(ConfigError, match=says):
            made(path)
