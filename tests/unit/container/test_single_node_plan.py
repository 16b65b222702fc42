# SPDX-License-Identifier: Apache-2.0
"""What single-node gives to each role out of one command line."""

from __future__ import annotations

import pytest

from afd.container import single_node
from afd.errors import ConfigError, UnsupportedError
from afd.topology import Role

MODEL = "builtin:tiny-deepseek-v2"


def test_both_roles_get_the_arguments_and_ports_of_their_own() -> None:
    pair = single_node.plan([MODEL, "--dtype", "float32", "--port", "8001"], {})
    assert pair.attention.argv == (MODEL, "--dtype", "float32", "--port", "8001")
    assert pair.ffn.argv == (*pair.attention.argv, "--agent-port", "9301")
    assert (pair.attention.agent_port, pair.ffn.agent_port) == (9300, 9301)
    assert single_node.plan([MODEL, "--agent-port", "9400"], {}).ffn.agent_port == 9401


def test_how_attention_is_spread_is_for_attention_and_decides_its_ranks() -> None:
    pair = single_node.plan([MODEL, "-tp", "2", "--data-parallel-size=2"], {})
    assert pair.ffn.argv == (MODEL, "--afd-num-attention-ranks", "4", "--agent-port", "9301")
    assert pair.attention.config.num_attention_ranks == pair.ffn.config.num_attention_ranks == 4
    told = single_node.plan([MODEL, "-tp", "2", "--afd-num-attention-ranks", "2"], {})
    assert told.attention.argv.count("--afd-num-attention-ranks") == 1


def test_keys_and_tokens_leave_the_command_line_for_the_environment() -> None:
    pair = single_node.plan([MODEL, "--api-key", "sk-secret", "--hf-token=hf-secret"], {})
    assert pair.variables == {"VLLM_API_KEY": "sk-secret", "HF_TOKEN": "hf-secret"}
    assert "secret" not in " ".join((*pair.attention.argv, *pair.ffn.argv)) + str(pair)
    assert pair.hide.hide("key sk-secret, token hf-secret") == "key ***, token ***"


@pytest.mark.parametrize(
    "words",
    [
        ("--api-key", "sk-one", "sk-two"),
        ("--api-key=sk-one", "--port", "1", "--api_key"),
        ("--hf-token", "sk-one", "--hf-token"),
    ],
)
def test_secrets_that_would_stay_on_command_lines_are_refused_and_not_quoted(words: tuple[str, ...]) -> None:
    with pytest.raises(UnsupportedError, match=r"give one value, once, or (VLLM_API_KEY|HF_TOKEN)") as caught:
        single_node.plan([MODEL, *words], {})
    assert "sk-" not in str(caught.value)


def test_of_several_keys_the_last_one_counts_and_none_stays() -> None:
    pair = single_node.plan([MODEL, "--api-key", "sk-one", "--api-key", "sk-two"], {})
    assert pair.variables == {"VLLM_API_KEY": "sk-two"}
    assert "sk-" not in " ".join((*pair.attention.argv, *pair.ffn.argv))
    assert "sk-" not in pair.hide.hide("sk-one sk-two")


def test_ffn_may_have_its_files_elsewhere() -> None:
    pair = single_node.plan([MODEL, "--dtype", "float32", "--ffn-model", "/other"], {})
    assert (pair.attention.model, pair.ffn.model) == (MODEL, "/other")
    assert single_node.plan([MODEL, "--ffn-model=/other"], {}).ffn.model == "/other"


def test_the_model_comes_first() -> None:
    with pytest.raises(ConfigError, match=r"MODEL comes first.*found --dtype=float32"):
        single_node.plan(["--dtype=float32", MODEL], {})


def test_a_stop_may_take_what_a_drain_takes_and_a_little() -> None:
    short, long = (single_node.plan([MODEL, "--shutdown-timeout", n], {}).stop_s for n in ("5", "60"))
    assert (short, long) == (14, 69)


def test_devices_are_dealt_to_both_roles() -> None:
    environment = {"AFD_ATTENTION_DEVICES": "0", "AFD_FFN_DEVICES": "0-0"}
    with pytest.raises(ConfigError, match="a device has one role"):
        single_node.plan([MODEL], environment)
    assert single_node.plan([MODEL], {}).shares[Role.FFN].affinity == ()
