# SPDX-License-Identifier: Apache-2.0
"""From flags, environment and JSON to one :class:`AFDConfig`, remembering where each value came from."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from afd.config.kinds import nearest, show
from afd.config.schema import CAM_ASYNC, CAMP2P, EXTRA_OPTIONS, AFDConfig, Option, build, options
from afd.errors import ConfigError
from afd.topology import Role

#: Names in the environment that start with AFD_ and are not settings: how AFD's own processes find each
#: other.
RESERVED_ENV = ("AFD_AGENT_SOCKET", "AFD_LAUNCHER", "AFD_INFLIGHT", "AFD_CACHE_DIR")
#: Those that the entry point of a container reads (docs/containers.md).
CONTAINER_ENV = (
    "AFD_ATTENTION_DEVICES",
    "AFD_FFN_DEVICES",
    "AFD_GOLDEN",
    "AFD_POD_COUNT",
    "AFD_POD_INDEX",
    "AFD_RECORDS",
    "AFD_RUN_DIR",
)
_RESERVED_PREFIX = "AFD_RANK_"
# What Kubernetes adds to every pod for a Service whose name begins with "afd" (enableServiceLinks).
_SERVICE_LINK = re.compile(
    r"AFD(_[A-Z0-9_]+)?_(SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)|PORT_[0-9]+_(TCP|UDP|SCTP)(_[A-Z]+)?)"
)
_SERVICE_URL = re.compile(r"(tcp|udp|sctp)://")


@dataclass(frozen=True)
class Resolved:
    """A configuration, and for the path of every option its origin: "flag --afd-x", "env AFD_X", "json",
    "argument" or "default".
    """

    config: AFDConfig
    origins: Mapping[str, str]


@dataclass(frozen=True)
class _Given:
    value: object
    origin: str
    where: str


def resolve(
    flags: Mapping[str, Any],
    env: Mapping[str, str],
    json_config: Mapping[str, Any],
    role: Role | None = None,
) -> Resolved:
    """Merge the sources and validate the result.

    ``flags`` maps flag names to their text ("--afd-port": "1"; the text of "--no-afd-async" does not matter),
    ``env`` is the process environment, ``json_config`` the object under ``additional_config["afd"]``. A flag
    beats a variable, a variable beats JSON, JSON beats the default. An empty variable counts as not set.
    ``role`` is the argument of ``afd serve``: another source may repeat it, but not contradict it. Raises
    :class:`ConfigError`, whose message begins with the source at fault.
    """
    given = {**_from_json(json_config), **_from_env(env), **_from_flags(flags)}
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for option in options():
        source = given.get(option.path)
        values[option.path] = option.default if source is None else _read(option, source)
        origins[option.path] = "default" if source is None else source.origin
    _settle_extra(values, origins, given)
    if "async_dp" not in given and values["connector"] == CAM_ASYNC:
        values["async_dp"], origins["async_dp"] = True, origins["connector"]
    if role is not None:
        if values["role"] not in (None, role.value):
            raise ConfigError(f"{given['role'].where}: {values['role']}, but this is `afd serve {role}`")
        values["role"], origins["role"] = role.value, "argument"
    values["role"] = None if values["role"] is None else Role(values["role"])
    _check(values, origins)
    config = build(values)
    try:
        config.topology.validate()
    except ConfigError as error:
        sources = " and ".join(
            dict.fromkeys(origins[path] for path in ("num_attention_ranks", "num_ffn_ranks"))
        )
        raise ConfigError(f"{sources}: {error}") from None
    return Resolved(config, MappingProxyType(origins))


def to_json(config: AFDConfig) -> dict[str, Any]:
    """``config`` as the object for ``additional_config["afd"]``; :func:`resolve` turns it back into an equal
    one.
    """
    found: dict[str, Any] = {}
    for option in options():
        value = value_of(config, option)
        if value is None:
            continue
        if isinstance(value, Mapping):
            value = dict(value)
        place = found
        *groups, leaf = option.key.split(".")
        for group in groups:
            place = place.setdefault(group, {})
        place[leaf] = str(value) if isinstance(value, Role) else value
    return found


def value_of(config: AFDConfig, option: Option) -> Any:
    """The value that ``config`` has for ``option``."""
    # Not dataclasses.asdict: that deep-copies, and a read-only mapping cannot be copied.
    here: Any = config
    for name in option.path.split("."):
        here = {item.name: vars(here)[item.name] for item in dataclasses.fields(here)}[name]
    return here


def _read(option: Option, given: _Given) -> Any:
    try:
        return option.kind.read(given.value)
    except ValueError as error:
        hint = ""
        if (
            isinstance(given.value, str)
            and given.origin.startswith("env")
            and _SERVICE_URL.match(given.value)
        ):
            hint = (
                "; Kubernetes sets this variable for a Service named like it: "
                "set enableServiceLinks: false in the pod, or rename the Service"
            )
        raise ConfigError(f"{given.where}: {error}{hint}") from None


def _from_flags(flags: Mapping[str, Any]) -> dict[str, _Given]:
    by_flag = {option.flag: option for option in options()}
    negative = {option.no_flag: option for option in options() if option.no_flag}
    found: dict[str, _Given] = {}
    for flag, value in flags.items():
        if flag not in by_flag and flag not in negative:
            raise ConfigError(f"flag {flag}: there is no such flag{nearest(flag, (*by_flag, *negative))}")
        option = by_flag[flag] if flag in by_flag else negative[flag]
        if option.path in found:
            raise ConfigError(f"{found[option.path].where} and {flag} contradict each other; give only one")
        found[option.path] = _Given(value if flag in by_flag else "false", f"flag {flag}", f"flag {flag}")
    return found


def _from_env(env: Mapping[str, str]) -> dict[str, _Given]:
    by_env = {option.env: option for option in options()}
    found: dict[str, _Given] = {}
    for name in sorted(env):
        value = env[name]
        if name in by_env:
            if value != "":
                found[by_env[name].path] = _Given(value, f"env {name}", f"env {name}")
        elif name.startswith("AFD_") and not _not_ours(name, value):
            raise ConfigError(f"env {name}: there is no such setting{nearest(name, tuple(by_env))}")
    return found


def _not_ours(name: str, value: str) -> bool:
    if name in (*RESERVED_ENV, *CONTAINER_ENV) or name.startswith(_RESERVED_PREFIX):
        return True
    return bool(_SERVICE_LINK.fullmatch(name)) or (name.endswith("_PORT") and bool(_SERVICE_URL.match(value)))


def _from_json(json_config: Mapping[str, Any]) -> dict[str, _Given]:
    by_key: dict[str, Option] = {}
    for option in options():
        for key in (option.key, *option.aliases):
            by_key[key] = option
    groups = {option.key.split(".")[0] for option in options() if "." in option.key}
    found: dict[str, _Given] = {}
    used: dict[str, str] = {}
    for key, value in _flatten(json_config, groups):
        if key not in by_key:
            raise ConfigError(f"json afd.{key}: there is no such key{_nearest_key(key, tuple(by_key))}")
        option = by_key[key]
        if option.path in used:
            raise ConfigError(
                f"json afd: {used[option.path]!r} and {key!r} are two names of one setting; give only one"
            )
        used[option.path] = key
        if value is not None:
            found[option.path] = _Given(value, "json", f"json afd.{key}")
    return found


def _flatten(json_config: Mapping[str, Any], groups: set[str]) -> Iterator[tuple[str, object]]:
    if not isinstance(json_config, Mapping):
        raise ConfigError(f"json afd: {show(json_config)} is not a JSON object")
    for key, value in json_config.items():
        if not isinstance(key, str):
            raise ConfigError(f"json afd: the key {key!r} is not text")
        if key not in groups:
            yield key, value
        elif not isinstance(value, Mapping):
            raise ConfigError(f"json afd.{key}: {show(value)} is not a JSON object")
        else:
            yield from ((f"{key}.{inner}", leaf) for inner, leaf in value.items())


def _nearest_key(key: str, known: tuple[str, ...]) -> str:
    leaf = key.rpartition(".")[2]
    for name in known:
        if name.rpartition(".")[2] == leaf:
            return f"; did you mean {name!r}?"
    for connector, extras in EXTRA_OPTIONS.items():
        if any(option.path == leaf for option in extras):
            return f"; it belongs in 'connector_extra_config' ({connector})"
    return nearest(key, known)


def _settle_extra(values: dict[str, Any], origins: dict[str, str], given: Mapping[str, _Given]) -> None:
    """Check the connector's own keys, and let its ``compute_gate_on_attention`` speak for the main one."""
    where = given["connector_extra_config"].where if "connector_extra_config" in given else "default"
    connector: str = values["connector"]
    known = {option.path: option for option in EXTRA_OPTIONS[connector]}
    extra: dict[str, Any] = {}
    for key, value in values["connector_extra_config"].items():
        if key not in known:
            owners = [
                name for name, extras in EXTRA_OPTIONS.items() if any(option.path == key for option in extras)
            ]
            hint = f"; it belongs to {owners[0]}" if owners else nearest(key, tuple(known))
            raise ConfigError(f"{where}: {connector} has no key {key!r}{hint}")
        if value is not None:
            extra[key] = _read(known[key], _Given(value, where, f"{where}.{key}"))
    values["connector_extra_config"] = MappingProxyType(extra)
    if "compute_gate_on_attention" in extra:
        gate: bool = extra["compute_gate_on_attention"]
        main = "compute_gate_on_attention"
        if main in given and values[main] != gate:
            raise ConfigError(
                f"{given[main].where} is {values[main]} but {where}.{main} is {gate}; "
                "they are one setting, give it once"
            )
        if main not in given:
            values[main], origins[main] = gate, origins["connector_extra_config"]


def _check(values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    """Rules between settings. A wrong single value was refused when it was read."""

    def said(path: str) -> str:
        return f"{path.replace('async_dp', 'async')} {show(values[path])} ({origins[path]})"

    if values["async_dp"] != (values["connector"] == CAM_ASYNC):
        driver, advice = (
            ("step messages", "leave it out")
            if values["async_dp"]
            else ("arriving data", f"use --afd-connector {CAMP2P}")
        )
        raise ConfigError(
            f"{said('async_dp')} contradicts {said('connector')}, which is driven by {driver}; {advice}"
        )
    heartbeat: float = values["timeouts.heartbeat_s"]
    if 3 * heartbeat > 2:
        raise ConfigError(
            f"{_where(origins, 'timeouts.heartbeat_s')}: {heartbeat:g} s is too slow: a peer is lost after 3 "
            "heartbeats, and that may take at most 2 s; use 0.66 or less"
        )
    if values["timeouts.step_s"] < 3 * heartbeat:
        raise ConfigError(
            f"{_where(origins, 'timeouts.step_s')}: {values['timeouts.step_s']:g} s is less than 3 "
            f"heartbeats, so a slow step would look like a lost peer; use {3 * heartbeat:g} or more"
        )


def _where(origins: Mapping[str, str], path: str) -> str:
    origin = origins[path]
    return f"json afd.{path}" if origin == "json" else f"{origin} {path}" if origin == "default" else origin
