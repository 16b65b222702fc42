# SPDX-License-Identifier: Apache-2.0
"""Which ranks an agent has, and which ways to spread them are refused."""

from __future__ import annotations

import pytest

from afd.agent.share import Share, refuse_for_ffn, share_of
from afd.agent.vllm_arguments import parse
from afd.config import AFDConfig
from afd.errors import ConfigError, UnsupportedError
from afd.topology import Rank, Role

FOUR = AFDConfig(num_attention_ranks=4, num_ffn_ranks=2)


def attention(*indices: int, headless: bool = False) -> Share:
    return Share(tuple(Rank(Role.ATTENTION, index) for index in indices), headless)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("-dp 4", attention(0, 1, 2, 3)),
        ("-tp 4", attention(0, 1, 2, 3)),
        ("-dp 4 -dpl 3", attention(0, 1, 2)),
        ("-dp 4 -dpl 1 --headless -dpr 3", attention(3, headless=True)),
        ("-dp 2 -tp 2 -dpl 1", attention(0, 1)),
        ("-dp 2 -tp 2 -dpl 1 --headless -dpr 1", attention(2, 3, headless=True)),
    ],
)
def test_an_agent_has_the_ranks_of_its_replicas(argv: str, expected: Share) -> None:
    assert share_of(Role.ATTENTION, FOUR, parse(argv.split())) == expected


def test_one_ffn_agent_has_all_ffn_ranks() -> None:
    assert share_of(Role.FFN, FOUR, parse([])).ranks == (Rank(Role.FFN, 0), Rank(Role.FFN, 1))


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ("-dp 2", "is 4, but data-parallel size 2 .* makes 2; use --afd-num-attention-ranks 2"),
        (
            "-dp 4 --headless",
            "say which these are with --data-parallel-size-local and --data-parallel-start-rank",
        ),
        ("-dp 4 --headless -dpl 1 -dpr 0", "start-rank .1 or more."),
        ("-dp 4 -dpl 1 -dpr 1", "replicas without the API server are started with --headless"),
        (
            "-dp 4 --headless -dpl 2 -dpr 3",
            "2 from replica 3 on: there are 4 .*; use --data-parallel-size-local 1",
        ),
        ("-dp 4 --headless -dpl 1 -dpr 4", "4: there are 4 replicas .*, numbered from 0; use .* 3"),
        ("-dp 4 -dpl 0", "--data-parallel-size-local: 0 is not a size"),
        ("-dp 0", "--data-parallel-size: 0 is not a size"),
    ],
)
def test_replicas_that_are_nobodys_or_have_no_server_are_refused(argv: str, says: str) -> None:
    with pytest.raises((ConfigError, UnsupportedError), match=says):
        share_of(Role.ATTENTION, FOUR, parse(argv.split()))


def test_ffn_is_not_told_how_attention_is_spread() -> None:
    with pytest.raises(
        UnsupportedError, match=r"-size 4 and --headless; leave out .*-size and --headless for ffn"
    ):
        refuse_for_ffn(parse(["-dp", "4", "--headless"]))
    refuse_for_ffn(parse(["-dp", "1", "-tp", "1"]))
