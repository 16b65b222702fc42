# SPDX-License-Identifier: Apache-2.0
"""The shared token: read from a file that nobody else can read, and never shown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from afd.config import AFDConfig, Auth
from afd.errors import ConfigError

TOKEN = b"0123456789abcdef0123456789abcdef"


def token_of(path: Path) -> bytes | None:
    return AFDConfig(auth=Auth(str(path))).token()


def written(path: Path, content: bytes = TOKEN, mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_without_a_file_there_is_no_token() -> None:
    assert AFDConfig().token() is None


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o440])
def test_a_closed_file_gives_its_content_without_white_space(tmp_path: Path, mode: int) -> None:
    assert token_of(written(tmp_path / "t", TOKEN + b"\n", mode)) == TOKEN


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o620, 0o666])
def test_an_open_file_is_refused_with_the_command_that_closes_it(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ConfigError, match=f"mode {mode:04o} .*chmod 600"):
        token_of(written(tmp_path / "t", mode=mode))


@pytest.mark.parametrize("content", [b"", b"   \n", b"short", b"x" * 5000])
def test_a_token_of_the_wrong_length_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ConfigError, match="16 to 4096"):
        token_of(written(tmp_path / "t", content))


def test_a_missing_file_and_things_that_are_not_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        token_of(tmp_path / "absent")
    with pytest.raises(ConfigError, match="not a regular file"):
        token_of(tmp_path)
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(ConfigError, match="not a regular file"):
        token_of(tmp_path / "fifo")


def test_no_message_contains_the_token(tmp_path: Path) -> None:
    for content, mode in ((b"secret-but-open-to-all", 0o644), (b"tooshort-secret", 0o600)):
        with pytest.raises(ConfigError) as caught:
            token_of(written(tmp_path / "t", content, mode))
        assert "secret" not in str(caught.value)
    assert "0123" not in repr(AFDConfig(auth=Auth(str(tmp_path / "t"))))
