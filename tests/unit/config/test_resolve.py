# SPDX-License-Identifier: Apache-2.0
"""Merging flags, environment and JSON: who wins, what is remembered, and what every mistake is told."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd import config
from afd.config import CAM_ASYNC, CAMP2P, AFDConfig, options, resolve, to_json
from afd.errors import ConfigError
from afd.topology import Role, Topology, WorldOrder


def refusal(
    flags: dict[str, str] | None = None,
    env: dict[str, str] | None = None,
    json: Any = None,
    role: Role | None = None,
) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve(flags or {}, env or {}, {} if json is None else json, role)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_without_any_source_every_value_is_the_default() -> None:
    resolved = resolve({}, {}, {})
    assert resolved.config == AFDConfig()
    assert set(resolved.origins.values()) == {"default"}
    assert set(resolved.origins) == {option.path for option in options()}


def test_a_flag_beats_a_variable_beats_json() -> None:
    flags, env, json = {"--afd-port": "1"}, {"AFD_PORT": "2"}, {"port": 3}
    assert (resolve(flags, env, json).config.port, resolve({}, env, json).config.port) == (1, 2)
    assert resolve({}, {}, json).config.port == 3
    assert resolve(flags, env, json).origins["port"] == "flag --afd-port"
    assert resolve({}, env, json).origins["port"] == "env AFD_PORT"
    assert resolve({}, {}, json).origins["port"] == "json"


def test_nested_settings_have_flags_variables_and_json_keys() -> None:
    resolved = resolve(
        {"--afd-timeouts-step-s": "30"}, {"AFD_UBATCH_NUM_UBATCHES": "2"}, {"timeouts": {"grace_s": 2}}
    )
    assert resolved.config.timeouts.step_s == 30.0
    assert resolved.config.timeouts.grace_s == 2.0
    assert resolved.config.ubatch.num_ubatches == 2
    assert resolved.origins["ubatch.num_ubatches"] == "env AFD_UBATCH_NUM_UBATCHES"


def test_recipes_of_the_public_plugin_mean_the_same_here() -> None:
    recipe = {
        "role": "attention",
        "connector": "CAMAsyncAFDConnector",
        "async": True,
        "host": "10.0.0.1",
        "port": 6239,
        "num_attention_ranks": 24,
        "num_ffn_ranks": 8,
        "compute_gate_on_attention": True,
        "connector_extra_config": {
            "dynamicQuant": 1,
            "attn_ranks_per_dp": 8,
            "async_moe_ubatching": True,
            "async_moe_num_ubatches": 2,
            "async_moe_split": "request",
        },
    }
    resolved = resolve({}, {}, recipe).config
    assert resolved.role is Role.ATTENTION
    assert resolved.topology == Topology(24, 8, WorldOrder.ATTENTION_FIRST)
    assert resolved.extra() == recipe["connector_extra_config"]


@pytest.mark.parametrize("name", ["role", "connector", "host", "port"])
def test_an_alias_works_alone_but_not_beside_its_canonical_name(name: str) -> None:
    value = {"role": "ffn", "connector": CAMP2P, "host": "h", "port": 5}[name]
    assert resolve({}, {}, {f"afd_{name}": value}) == resolve({}, {}, {name: value})
    message = refusal(json={name: value, f"afd_{name}": value})
    assert f"'{name}'" in message and f"'afd_{name}'" in message


def test_a_revision_is_any_short_text_or_number() -> None:
    assert resolve({}, {"AFD_CONFIG_REVISION": " blue-7 "}, {}).config.config_revision == "blue-7"
    assert resolve({}, {}, {"config_revision": 7}).config.config_revision == "7"
    for wrong in ("two\nlines", "x" * 129, True, ["a"]):
        assert "is not a short text on one line" in refusal(json={"config_revision": wrong})


def test_async_and_async_dp_are_one_setting() -> None:
    assert resolve({}, {}, {"async_dp": True, "connector": CAM_ASYNC}).config.async_dp
    assert "'async'" in refusal(json={"async": True, "async_dp": True, "connector": CAM_ASYNC})


def test_the_argument_of_serve_sets_the_role_and_contradictions_are_named() -> None:
    resolved = resolve({}, {"AFD_ROLE": "ffn"}, {}, Role.FFN)
    assert (resolved.config.role, resolved.origins["role"]) == (Role.FFN, "argument")
    assert refusal(json={"role": "attention"}, role=Role.FFN).startswith(
        "json afd.role: attention, but this is"
    )


@pytest.mark.parametrize(
    ("flags", "env", "json", "start"),
    [
        ({"--afd-port": "99999"}, {}, {}, "flag --afd-port: 99999 is not a port (1-65535)"),
        ({}, {"AFD_PORT": "abc"}, {}, "env AFD_PORT: 'abc' is not a port"),
        ({}, {}, {"port": 0}, "json afd.port: 0 is not a port"),
        ({}, {}, {"port": True}, "json afd.port: true is not a port"),
        ({}, {}, {"port": 9310.0}, "json afd.port: 9310.0 is not a port"),
        ({}, {}, {"port": "٣"}, "json afd.port: '٣' is not a port"),
        ({}, {}, {"port": [1]}, "json afd.port: [1] is not a port"),
        ({}, {}, {"num_ffn_ranks": -1}, "json afd.num_ffn_ranks: -1 is not a number of ranks (1 or more)"),
        ({}, {}, {"host": "http://x:1"}, "json afd.host: 'http://x:1' is not a host name or IP address"),
        ({}, {}, {"host": "a b"}, "json afd.host: 'a b' is not"),
        ({"--afd-host": ""}, {}, {}, "flag --afd-host: '' is not a host"),
        ({"--afd-host": "a..b"}, {}, {}, "flag --afd-host: 'a..b' is not a host"),
        ({"--afd-host": "a" * 64}, {}, {}, f"flag --afd-host: '{'a' * 64}' is not a host"),
        ({}, {}, {"async": "maybe"}, "json afd.async: 'maybe' is not a yes or no"),
        ({}, {}, {"connector": "P2pNcclAFDConnector"}, "json afd.connector: 'P2pNcclAFDConnector' is not one of"),
        ({}, {}, {"transport": "shmm"}, "json afd.transport: 'shmm' is not one of auto, shm, collective, cam; did"),
        ({}, {}, {"ubatch": 2}, "json afd.ubatch: 2 is not a JSON object"),
        ({}, {}, {"ubatch": {"num_ubatches": 3}}, "json afd.ubatch.num_ubatches: 3 is not a number of ubatches (1-2)"),
        ({}, {}, {"auth": {"token_file": ""}}, "json afd.auth.token_file: '' is not a path"),
        ({"--afd-connector-extra-config": "{"}, {}, {}, "flag --afd-connector-extra-config: not JSON: "),
        ({"--afd-connector-extra-config": "[1]"}, {}, {}, "flag --afd-connector-extra-config: '[1]' is not a JSON obj"),
        ({"--afd-connector-extra-config": '{"a":1,"a":2}'}, {}, {}, "flag --afd-connector-extra-config: the key 'a'"),
        ({"--afd-connector-extra-config": "[" * 100_000}, {}, {}, "flag --afd-connector-extra-config: not JSON"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_with_its_source(
    flags: dict[str, str], env: dict[str, str], json: dict[str, Any], start: str
) -> None:
    assert refusal(flags, env, json).startswith(start)


@pytest.mark.parametrize(
    "value", [0, -1, "nan", "inf", float("nan"), float("inf"), 1e9, 10**400, True, None, "1s", []]
)
@pytest.mark.parametrize("name", ["rendezvous_s", "step_s", "heartbeat_s", "grace_s"])
def test_a_deadline_is_positive_and_finite(name: str, value: object) -> None:
    if value is None:
        assert resolve({}, {}, {"timeouts": {name: None}}).origins[f"timeouts.{name}"] == "default"
    else:
        assert refusal(json={"timeouts": {name: value}}).startswith(f"json afd.timeouts.{name}: ")


def test_a_heartbeat_that_would_notice_a_loss_too_late_is_refused() -> None:
    assert resolve({}, {"AFD_TIMEOUTS_HEARTBEAT_S": "0.66"}, {}).config.timeouts.heartbeat_s == 0.66
    assert refusal(env={"AFD_TIMEOUTS_HEARTBEAT_S": "0.7"}).startswith(
        "env AFD_TIMEOUTS_HEARTBEAT_S: 0.7 s is too slow"
    )


def test_a_step_deadline_shorter_than_a_loss_is_refused() -> None:
    assert "less than 3 heartbeats" in refusal(flags={"--afd-timeouts-step-s": "1"})


def test_uneven_counts_name_both_sources() -> None:
    message = refusal({"--afd-num-ffn-ranks": "2"}, {"AFD_NUM_ATTENTION_RANKS": "3"})
    assert message.startswith("env AFD_NUM_ATTENTION_RANKS and flag --afd-num-ffn-ranks: 3A2F")


@pytest.mark.parametrize(
    ("json", "hint"),
    [
        ({"prot": 1}, "did you mean 'port'?"),
        ({"num_attn_ranks": 1}, "did you mean 'num_attention_ranks'?"),
        ({"step_s": 1}, "did you mean 'timeouts.step_s'?"),
        ({"timeouts": {"port": 1}}, "did you mean 'port'?"),
        ({"timeouts": {"stepp_s": 1}}, "did you mean 'timeouts.step_s'?"),
        ({"core_num": 1}, "belongs in 'connector_extra_config' (CAMP2pAFDConnector)"),
        ({"connector_extra_config": {"core_nums": 1}}, "did you mean 'core_num'?"),
        ({"connector_extra_config": {"dynamicQuant": 1}}, "belongs to CAMAsyncAFDConnector"),
        ({"zzzzqq": 1}, "there is no such key"),
    ],
)
def test_an_unknown_key_names_the_nearest_one(json: dict[str, Any], hint: str) -> None:
    assert hint in refusal(json=json)


def test_unknown_flags_and_variables_name_the_nearest_one() -> None:
    assert (
        refusal({"--afd-hots": "x"}) == "flag --afd-hots: there is no such flag; did you mean '--afd-host'?"
    )
    assert (
        refusal(env={"AFD_PROT": "1"}) == "env AFD_PROT: there is no such setting; did you mean 'AFD_PORT'?"
    )


def test_variables_of_others_and_of_our_processes_are_left_alone() -> None:
    env = {
        "PATH": "/bin", "AFDX": "1", "AFD_AGENT_SOCKET": "s", "AFD_RANK_INDEX": "0", "AFD_LAUNCHER": "1",
        "AFD_CACHE_DIR": "/c", "AFD_FFN_SERVICE_HOST": "10.0.0.1", "AFD_FFN_SERVICE_PORT_HTTP": "1",
        "AFD_FFN_PORT": "tcp://10.0.0.1:1", "AFD_FFN_PORT_1_TCP_ADDR": "10.0.0.1",
    }  # fmt: skip
    assert resolve({}, env, {}) == resolve({}, {}, {})


def test_a_kubernetes_service_named_afd_is_recognised_behind_its_variable() -> None:
    assert "enableServiceLinks" in refusal(env={"AFD_PORT": "tcp://10.0.0.1:9310"})


def test_an_empty_variable_is_not_set() -> None:
    assert resolve({}, {"AFD_PORT": ""}, {"port": 5}).config.port == 5


def test_connector_keys_are_read_by_kind_and_only_given_ones_are_kept() -> None:
    resolved = resolve(
        {"--afd-connector-extra-config": '{"core_num": "4", "ffn_core_num": null}'}, {}, {}
    ).config
    assert dict(resolved.connector_extra_config) == {"core_num": 4}
    assert resolved.extra()["core_num"] == 4 and resolved.extra()["quant_mode"] == 0
    assert "quant_mode: 1 is not a mode (only 0)" in refusal(
        json={"connector_extra_config": {"quant_mode": 1}}
    )


def test_the_gate_key_of_the_connector_speaks_for_the_main_one_but_never_against_it() -> None:
    extra = {"connector_extra_config": {"compute_gate_on_attention": True}}
    resolved = resolve({}, {}, extra)
    assert resolved.config.compute_gate_on_attention
    assert resolved.origins["compute_gate_on_attention"] == "json"
    assert "one setting" in refusal(json={**extra, "compute_gate_on_attention": False})
    assert "one setting" in refusal(env={"AFD_COMPUTE_GATE_ON_ATTENTION": "0"}, json=extra)


def test_async_belongs_to_its_connector() -> None:
    assert "async true (json) contradicts" in refusal(json={"async": True})
    assert f"use --afd-connector {CAMP2P}" in refusal(json={"connector": CAM_ASYNC, "async": False})
    derived = resolve({}, {}, {"connector": CAM_ASYNC})
    assert (derived.config.async_dp, derived.origins["async_dp"]) == (True, "json")
    assert resolve({}, {}, to_json(derived.config)).config == derived.config


def test_json_that_is_not_an_object_is_refused() -> None:
    assert "is not a JSON object" in refusal(json=[])
    assert "is not text" in refusal(json={1: 2})


def test_the_configuration_cannot_be_changed() -> None:
    resolved = resolve({}, {}, {"connector_extra_config": {"core_num": 4}}).config
    with pytest.raises(dataclasses.FrozenInstanceError):
        resolved.port = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        resolved.connector_extra_config["core_num"] = 5  # type: ignore[index]
    assert hash(resolved) == hash(resolve({}, {}, to_json(resolved)).config)


configs = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["attention", "ffn"]),
        "host": st.sampled_from(["127.0.0.1", "::1", "node-0.pods.svc.cluster.local."]),
        "port": st.integers(1, 65535),
        "num_attention_ranks": st.integers(1, 64),
        "connector_extra_config": st.fixed_dictionaries({}, optional={"core_num": st.integers(1, 48)}),
        "transport": st.sampled_from(["auto", "shm", "collective", "cam"]),
        "on_loss": st.sampled_from(["exit", "rejoin"]),
        "timeouts": st.fixed_dictionaries(
            {}, optional={"step_s": st.floats(2, 1e5), "grace_s": st.floats(0.1, 60)}
        ),
        "ubatch": st.fixed_dictionaries({}, optional={"num_ubatches": st.integers(1, 2)}),
        "auth": st.fixed_dictionaries({}, optional={"token_file": st.just("/run/token")}),
    },
)


@given(configs)
def test_a_configuration_round_trips_through_json(json: dict[str, Any]) -> None:
    resolved = resolve({}, {}, json).config
    assert resolve({}, {}, to_json(resolved)).config == resolved


def test_every_option_has_a_unique_flag_variable_and_key() -> None:
    for names in ([o.flag for o in options()], [o.env for o in options()], [o.key for o in options()]):
        assert len(set(names)) == len(names)
    assert all(option.doc.endswith(".") and option.type for option in options())


def test_no_variable_of_an_option_is_reserved() -> None:
    assert not {option.env for option in options()} & {*config.RESERVED_ENV, *config.CONTAINER_ENV}


@pytest.mark.parametrize("name", config.CONTAINER_ENV)
def test_a_variable_of_the_entry_point_is_no_unknown_setting(name: str) -> None:
    assert resolve({}, {name: "1"}, {}).config == resolve({}, {}, {}).config
