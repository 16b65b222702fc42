# SPDX-License-Identifier: Apache-2.0
"""The kinds of values that configuration holds, each with the one function that reads it from untyped input.

A value arrives as text (flag, environment) or as JSON. Both spellings are accepted everywhere, so that
``"port": "9310"`` from a template engine means the same as ``"port": 9310``. A reader raises ``ValueError``
with the end of a sentence, such as ``99999 is not a port (1-65535)``; the caller puts the source in front of
it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?"
_NAME = re.compile(rf"(?=.{{1,254}}$)({_LABEL}\.)*{_LABEL}\.?")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(%[A-Za-z0-9_.-]+)?")
_BOOLEANS = {
    "true": True,
    "1": True,
    "yes": True,
    "on": True,
    "false": False,
    "0": False,
    "no": False,
    "off": False,
}
_LONGEST_WORD = 128
_LONGEST_S = 7 * 24 * 3600.0


@dataclass(frozen=True)
class Kind:
    """What a value may be: ``name`` for people, ``read`` from untyped input, ``choices`` when few."""

    name: str
    read: Callable[[object], Any]
    choices: tuple[str, ...] = ()


def nearest(word: str, known: tuple[str, ...]) -> str:
    """A hint such as ``; did you mean 'port'?``, or the empty string when nothing is close."""
    folded = {name.lower().lstrip("-"): name for name in known}
    close = get_close_matches(word.lower().lstrip("-"), folded, n=1, cutoff=0.6)
    return f"; did you mean {folded[close[0]]!r}?" if close else ""


def read_json(text: str) -> Any:
    """Strict JSON: ``ValueError`` for a key given twice, for NaN and for infinity."""

    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for key, value in pairs:
            if key in seen:
                raise ValueError(f"the key {key!r} is given twice")
            seen[key] = value
        return seen

    def no_constant(name: str) -> Any:
        raise ValueError(f"{name} is not a number in JSON")

    try:
        return json.loads(text, object_pairs_hook=no_duplicates, parse_constant=no_constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise ValueError("not JSON that anyone means: nested too deeply") from None


def show(value: object) -> str:
    """``value`` as a user would recognise it, shortened, on one line."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    text = text if len(text) <= 80 else text[:77] + "..."
    return repr(text) if isinstance(value, str) and not _INTEGER.fullmatch(text) else text


def _integer(what: str, low: int, high: int | None = None) -> Callable[[object], int]:
    span = f"only {low}" if low == high else f"{low}-{high}" if high is not None else f"{low} or more"

    def read(value: object) -> int:
        number: int | None = None
        if isinstance(value, int) and not isinstance(value, bool):
            number = value
        elif isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
            number = int(value)
        if number is None or number < low or (high is not None and number > high):
            raise ValueError(f"{show(value)} is not {what} ({span})")
        return number

    return read


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else str(value) if isinstance(value, int) else ""
    if word not in _BOOLEANS:
        raise ValueError(f"{show(value)} is not a yes or no (true or false)")
    return _BOOLEANS[word]


def _seconds(value: object) -> float:
    number = math.nan
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        # An integer too large for a float is as wrong as infinity.
        number = float(value) if -1e308 < value < 1e308 else math.inf
    elif isinstance(value, str):
        with suppress(ValueError):
            number = float(value)
    if not math.isfinite(number) or not 0 < number <= _LONGEST_S:
        raise ValueError(f"{show(value)} is not a time in seconds (more than 0, at most {_LONGEST_S:.0f})")
    return number


def _host(value: object) -> str:
    text = value.strip() if isinstance(value, str) else ""
    if _NAME.fullmatch(text) or _IPV6.fullmatch(text):
        return text
    hint = " (write only the name or address: no scheme, port or brackets)" if text else ""
    raise ValueError(f"{show(value)} is not a host name or IP address{hint}")


def _path(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ValueError(f"{show(value)} is not a path")
    return value


def _word(value: object) -> str:
    text = str(value).strip() if isinstance(value, (str, int)) and not isinstance(value, bool) else ""
    if not (0 < len(text) <= _LONGEST_WORD and text.isprintable()):
        raise ValueError(f"{show(value)} is not a short text on one line")
    return text


def _mapping(value: object) -> Mapping[str, Any]:
    found = read_json(value) if isinstance(value, str) else value
    if not isinstance(found, Mapping) or not all(isinstance(key, str) for key in found):
        raise ValueError(f'{show(value)} is not a JSON object such as {{"core_num": 8}}')
    return found


def count(what: str) -> Kind:
    """A whole number of things, 1 or more."""
    return Kind("integer, 1 or more", _integer(what, 1))


def between(what: str, low: int, high: int) -> Kind:
    """A whole number from ``low`` to ``high``, both included."""
    return Kind(
        f"integer, only {low}" if low == high else f"integer, {low}-{high}", _integer(what, low, high)
    )


def at_least(what: str, low: int) -> Kind:
    """A whole number, ``low`` or more."""
    return Kind(f"integer, {low} or more", _integer(what, low))


def choice(*words: str) -> Kind:
    """Exactly one of ``words``."""

    def read(value: object) -> str:
        if isinstance(value, str) and value in words:
            return value
        hint = nearest(value, words) if isinstance(value, str) else ""
        raise ValueError(f"{show(value)} is not one of {', '.join(words)}{hint}")

    return Kind(" | ".join(words), read, words)


PORT = Kind("port, 1-65535", _integer("a port", 1, 65535))
BOOLEAN = Kind("true | false", _boolean)
SECONDS = Kind("seconds", _seconds)
HOST = Kind("host name or address", _host)
PATH = Kind("path", _path)
WORD = Kind("text", _word)
MAPPING = Kind("JSON object", _mapping)
