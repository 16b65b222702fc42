# SPDX-License-Identifier: Apache-2.0
"""Which facts must agree: each field of the table refuses when it alone differs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from afd.control.handshake import AGREED, attention_tp, compare, differences, names, this_host
from afd.control.messages import Fingerprint, Host, Layout
from afd.errors import MismatchError
from afd.topology import Rank, Role
from tests.unit.control.agents import hello_of

FFN = hello_of("ffn")
SAME = hello_of("attention")


def model(**changes: Any) -> dict[str, Fingerprint]:
    return {"model": msgspec.structs.replace(SAME.model, **changes)}


def layout(**changes: Any) -> dict[str, Layout]:
    return {"layout": msgspec.structs.replace(SAME.layout, **changes)}


def version(**changes: str) -> dict[str, Mapping[str, str]]:
    return {"versions": {**SAME.versions, **changes}}


def ubatch(**changes: int) -> dict[str, Mapping[str, int]]:
    return {"ubatch": {**SAME.ubatch, **changes}}


OTHER: dict[str, dict[str, Any]] = {
    "version of protocol": version(protocol="9"),
    "version of afd": version(afd="9"),
    "version of vllm": version(vllm="9"),
    "version of vllm_ascend": version(vllm_ascend="9"),
    "model architecture": model(architecture="Qwen3MoeForCausalLM"),
    "model hidden size": model(hidden_size=128),
    "model layers": model(layers=4),
    "model experts": model(experts=16),
    "model top-k": model(top_k=4),
    "dtype": model(dtype="bfloat16"),
    "quantisation": model(quantisation="w8a8"),
    "model configuration digest": model(config_digest="d2"),
    "num_attention_ranks": layout(num_attention=2),
    "num_ffn_ranks": layout(num_ffn=2),
    "order of the roles": layout(order="attention_first"),
    "tensor-parallel size of Attention": layout(attention_tp=2),
    "connector": {"connector": "CAMAsyncAFDConnector"},
    "transport": {"transport": "collective"},
    "gate placement": {"gate": "attention"},
    "ids mode": {"ids": True},
    "ubatch.num_ubatches": ubatch(num_ubatches=2),
    "ubatch.decode_token_threshold": ubatch(decode_token_threshold=8),
    "ubatch.prefill_token_threshold": ubatch(prefill_token_threshold=8),
    "platform": {"platform": "ascend"},
    "configuration revision": {"config_revision": "r2"},
}


def test_equal_hellos_agree() -> None:
    compare([FFN, SAME])


def test_there_is_a_case_for_each_field_of_the_table() -> None:
    assert list(OTHER) == [field.name for field in AGREED]


@pytest.mark.parametrize("field", OTHER)
def test_a_difference_is_refused_with_field_values_and_ranks(field: str) -> None:
    # "auto" would fit every transport, and FFN does not say how Attention's ranks form groups.
    ffn = msgspec.structs.replace(FFN, transport="shm", **layout(attention_tp=1))
    other = msgspec.structs.replace(SAME, **{"transport": "shm", **OTHER[field]})
    read = next(agreed.read for agreed in AGREED if agreed.name == field)
    with pytest.raises(MismatchError) as info:
        compare([ffn, other])
    assert [d.field for d in info.value.differences] == [field]
    assert dict(info.value.differences[0].values) == {"F0": read(ffn), "A0": read(other)}
    assert f"{field}: {read(ffn)} on F0 but {read(other)} on A0" in str(info.value)


def test_the_digest_is_left_out_when_another_fact_of_the_model_explains_it() -> None:
    other = msgspec.structs.replace(SAME, **model(layers=9, config_digest="d2"))
    assert [d.field for d in differences([FFN, other])] == ["model layers"]


@pytest.mark.parametrize(
    "change",
    [
        {"runner": "v1"},
        {"host": Host(name="elsewhere", memory="other", pid=1)},
        {"notes": {"model": "another/path"}},
        {"heartbeat_s": 0.6},
        version(torch="9"),
    ],
)
def test_what_is_only_for_people_may_differ(change: dict[str, Any]) -> None:
    compare([FFN, msgspec.structs.replace(SAME, **change)])


def test_every_rank_is_listed_under_its_value() -> None:
    a0, a1 = hello_of("attention", 0, 1), hello_of("attention", 2, 3, gate="attention")
    with pytest.raises(MismatchError, match="gate placement: ffn on F0, A0, A1 but attention on A2, A3"):
        compare([FFN, a0, a1])


def test_auto_fits_every_transport() -> None:
    for name in ("shm", "collective", "cam"):
        compare([FFN, msgspec.structs.replace(SAME, transport=name)])


def test_the_tensor_parallel_size_is_that_of_attention_which_ffn_does_not_know() -> None:
    wide = msgspec.structs.replace(SAME, **layout(attention_tp=2))
    compare([FFN, wide])
    assert attention_tp([FFN, wide]) == 2
    narrow = msgspec.structs.replace(hello_of("attention", 1), **layout(attention_tp=1))
    with pytest.raises(MismatchError, match="tensor-parallel size of Attention: 2 on A0 but 1 on A1"):
        compare([msgspec.structs.replace(FFN, **layout(attention_tp=0)), wide, narrow])


def test_shared_memory_across_hosts_is_refused_with_their_names() -> None:
    far = msgspec.structs.replace(SAME, transport="shm", host=Host(name="b", memory="n", pid=1))
    with pytest.raises(
        MismatchError, match=r"transport shm needs shared memory .*: host-ffn on F0 but b on A0"
    ):
        compare([FFN, far])


def test_this_host_is_the_same_for_two_processes_here() -> None:
    assert this_host().memory == this_host().memory
    assert this_host().name


def test_a_long_list_of_ranks_is_cut() -> None:
    assert names([Rank(Role.ATTENTION, i) for i in range(20)]).endswith("A15 and 4 more")
