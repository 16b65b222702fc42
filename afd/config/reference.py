# SPDX-License-Identifier: Apache-2.0
"""``docs/configuration.md``, from the table of options."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from afd.config.resolve import CONTAINER_ENV, RESERVED_ENV
from afd.config.schema import EXTRA_OPTIONS, options

_INTRODUCTION = """\
# Configuration

Each setting of AFD can be given in three ways. A flag of `afd serve` beats a variable of the environment, a variable
beats JSON, and JSON beats the default. An empty variable counts as not set. `afd config show` prints the result and
where each value came from.

* **Flags**: `afd serve ffn MODEL --afd-port 9400`. A yes-or-no setting has two flags: `--afd-async`, `--no-afd-async`.
* **Variables**: `AFD_PORT=9400`. A variable that starts with `AFD_` and is not in the table is an error, so that a
  spelling mistake is found{reserved}.
* **JSON**: the key of the table inside `afd` of vLLM's `--additional-config`, in the format of the public AFD plugin:
  `--additional-config '{{"afd": {{"port": 9400, "timeouts": {{"step_s": 30}}}}}}'`. A dot in a key is one level of
  nesting. Unknown keys are errors that name the nearest known one.

`afd smoke` (`make smoke`, `make serve`) decides all settings itself: it ignores these variables and says so.

The rank inside a role is derived from vLLM's parallel sizes, never configured. Which combinations of settings are
supported is in [support-matrix.md](support-matrix.md).

## Settings
"""

_CONNECTORS = """\
## Settings of the connectors

They go into `connector_extra_config` as one JSON object, in any of the three ways. The object of the winning source is
used as a whole. Keys of another connector are errors.
"""

_TOKEN = """\
## The shared token

With `auth.token_file`, two roles only talk to each other when both know the same token. It is a file, so that it is in
no process list and in no log; no command of AFD prints it. The file must not be readable by other users (its group may
read it), and only its owner may change it. Make one with:

    (umask 077; openssl rand -hex 32 > afd.token)
"""


def render() -> str:
    """The page, as Markdown."""
    lines = [
        _INTRODUCTION.format(
            reserved=f"; AFD uses {', '.join(f'`{name}`' for name in RESERVED_ENV)} and `AFD_RANK_*` itself, "
            f"and the entry point of a container (containers.md) {', '.join(f'`{name}`' for name in CONTAINER_ENV)}"
        )
    ]
    lines += _table(["JSON key", "flag", "variable", "value", "default", "meaning"])
    for option in options():
        aliases = "".join(f", `{alias}`" for alias in option.aliases)
        lines.append(
            _row(
                [
                    f"`{option.key}`{aliases}",
                    f"`{option.flag}`" + (f", `{option.no_flag}`" if option.no_flag else ""),
                    f"`{option.env}`",
                    option.type,
                    _default(option.default),
                    option.doc,
                ]
            )
        )
    lines += ["", _CONNECTORS]
    for connector, extras in EXTRA_OPTIONS.items():
        lines += [f"### `{connector}`", "", *_table(["key", "value", "default", "meaning"])]
        lines += [
            _row([f"`{extra.path}`", extra.type, _default(extra.default), extra.doc]) for extra in extras
        ] + [""]
    lines.append(_TOKEN.rstrip())
    return "\n".join(lines) + "\n"


def _default(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _table(names: list[str]) -> list[str]:
    return [_row(names), _row(["---"] * len(names))]


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
