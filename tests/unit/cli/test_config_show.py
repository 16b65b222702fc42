# SPDX-License-Identifier: Apache-2.0
"""``afd config show``: all settings, their origins, and the derived topology."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from afd.cli.main import run
from afd.cli.options import refuse_unknown
from afd.config import options, resolve
from afd.errors import ConfigError


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for option in options():
        monkeypatch.delenv(option.env, raising=False)


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(["config", "show", "--json", *arguments]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_every_setting_has_its_value_and_origin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AFD_HOST", "10.0.0.7")
    found = shown(
        capsys, "--afd-port", "9400", "--additional-config", '{"afd": {"transport": "shm", "port": 1}}'
    )
    settings = found["settings"]
    assert set(settings) == {option.path for option in options()}
    assert (settings["port"]["value"], settings["port"]["origin"]) == (9400, "flag --afd-port")
    assert (settings["host"]["value"], settings["host"]["origin"]) == ("10.0.0.7", "env AFD_HOST")
    assert (settings["transport"]["value"], settings["transport"]["origin"]) == ("shm", "json")
    assert settings["on_loss"]["origin"] == "default"


@pytest.mark.parametrize("option", options(), ids=lambda option: option.path)
def test_every_flag_reaches_its_setting(option: Any, capsys: pytest.CaptureFixture[str]) -> None:
    special = {
        "role": "ffn", "host": "h", "port": "1", "connector_extra_config": "{}", "transport": "shm",
        "ubatch.num_ubatches": "2", "timeouts.heartbeat_s": "0.25", "auth.token_file": "/t", "on_loss": "rejoin",
        "connector": "CAMP2pAFDConnector", "num_attention_ranks": "3",
    }  # fmt: skip
    if option.no_flag:
        found = shown(capsys, option.no_flag)
        assert found["settings"][option.path]["origin"] == f"flag {option.no_flag}"
    else:
        found = shown(capsys, option.flag, special.get(option.path, "1" if "ranks" in option.path else "99"))
        assert found["settings"][option.path]["origin"] == f"flag {option.flag}"


def test_a_yes_flag_and_a_no_flag_are_read(capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(capsys, "--afd-compute-gate-on-attention")
    assert found["settings"]["compute_gate_on_attention"]["value"] is True
    found = shown(capsys, "--afd-compute-gate-on-attention", "--no-afd-compute-gate-on-attention")
    assert found["settings"]["compute_gate_on_attention"]["value"] is False


def test_the_topology_follows_from_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(capsys, "--afd-num-attention-ranks", "4", "--afd-num-ffn-ranks", "2")
    assert found["topology"]["root"] == "F0"
    assert found["topology"]["world"][1] == {"rank": "F1", "with": ["A2", "A3"]}
    assert found["topology"]["world"][4] == {"rank": "A2", "with": ["F1"]}
    assert "layout" not in (found["unsupported"] or "")


def test_the_json_it_prints_gives_the_same_configuration_again(capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(capsys, "--afd-port", "9400", "--afd-timeouts-step-s", "7.5")
    again = resolve({}, {}, found["json"]).config
    assert (again.port, again.timeouts.step_s) == (9400, 7.5)


def test_the_table_says_the_same_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "show", "--afd-port", "9400", "--afd-ubatch-num-ubatches", "2"]) == 0
    text = capsys.readouterr().out
    assert any(line.split() == ["port", "9400", "flag", "--afd-port"] for line in text.splitlines())
    assert "topology 1A1F: 2 ranks, ffn first" in text
    assert "F0 listens on 127.0.0.1 port 9400" in text
    assert "this would be refused: ubatches 2 is not supported" in text


def test_a_token_is_never_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("very-secret-token-of-32-characters")
    path.chmod(0o600)
    for arguments in (["config", "show"], ["config", "show", "--json"], ["doctor", "--json"]):
        run([*arguments, "--afd-auth-token-file", str(path)])
        out = capsys.readouterr()
        assert "very-secret" not in out.out + out.err


@pytest.mark.parametrize("flag", ["--afd-prot", "--afd-prot=1", "--afd_port", "--no-afd-asinc"])
def test_a_misspelt_flag_of_afd_is_not_passed_on_to_vllm(flag: str) -> None:
    with pytest.raises(ConfigError, match="there is no such flag; did you mean"):
        refuse_unknown(["--max-model-len", "512", flag])


def test_flags_of_vllm_are_passed_on() -> None:
    refuse_unknown(["--max-model-len", "512", "-tp", "2", "--", "--afd-prot"])
