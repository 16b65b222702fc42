# SPDX-License-Identifier: Apache-2.0
"""AFD's settings as flags of a click command, made from the one table of :mod:`afd.config`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from afd import config
from afd.config import Option, Resolved, kinds
from afd.errors import ConfigError
from afd.topology import Role

_F = TypeVar("_F", bound=Callable[..., Any])
_FLAGS = "afd.flags"


class CommandGroup(click.Group):
    """A group that, without a command, shows its help before it says that one is missing."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args:
            click.echo(f"{ctx.get_help()}\n", err=True)
            raise click.UsageError("a command is missing", ctx)
        return super().parse_args(ctx, args)


def port(text: str) -> int:
    """The type of a click option that is a port, read as AFD's settings read theirs."""
    try:
        number: int = kinds.PORT.read(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return number


def port_or_any(text: str) -> int:
    """The same, where 0 stands for any free port."""
    return 0 if str(text) == "0" else port(text)


def afd_options(*, without: tuple[str, ...] = ()) -> Callable[[_F], _F]:
    """Decorator that gives a command every ``--afd-…`` flag, except the settings at the paths ``without``.

    The command's function gets no arguments for them: :func:`flags` has what was given. Values are text, read
    and judged by :func:`afd.config.resolve`, so that a wrong flag and a wrong variable are told the same way.
    """

    def decorate(function: _F) -> _F:
        for option in reversed(config.options()):
            if option.path not in without:
                function = _flag(option)(function)
        return function

    return decorate


def flags(ctx: click.Context) -> dict[str, str]:
    """The ``--afd-…`` flags that were given: name to text, as :func:`afd.config.resolve` takes them."""
    return dict(ctx.meta.get(_FLAGS, {}))


def resolve(ctx: click.Context, additional_config: str | None = None, role: Role | None = None) -> Resolved:
    """The configuration from the flags of ``ctx``, this process's environment and ``--additional-config``.

    Raises :class:`ConfigError`.
    """
    return config.resolve(flags(ctx), os.environ, afd_json(additional_config), role)


def afd_json(additional_config: str | None) -> Mapping[str, Any]:
    """The object under ``afd`` in the text of vLLM's ``--additional-config``; empty when there is none.

    Raises :class:`ConfigError` when the text is not a JSON object.
    """
    if additional_config is None:
        return {}
    try:
        found = config.read_json(additional_config)
    except ValueError as error:
        raise ConfigError(f"flag --additional-config: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError("flag --additional-config: not a JSON object")
    afd: Mapping[str, Any] = found.get("afd", {})
    return afd


def refuse_unknown(arguments: Sequence[str]) -> None:
    """Raise :class:`ConfigError` when a flag that is meant for AFD is among arguments that are for vLLM.

    A command that passes unknown flags on would otherwise hand a misspelt ``--afd-…`` to vLLM.
    """
    known = tuple(name for option in config.options() for name in (option.flag, option.no_flag) if name)
    for argument in arguments:
        if argument == "--":
            return
        name = argument.partition("=")[0]
        if name.startswith(("--afd-", "--no-afd-", "--afd_", "--no-afd_")):
            raise ConfigError(f"flag {name}: there is no such flag{config.nearest(name, known)}")


def _flag(option: Option) -> Callable[[_F], _F]:
    def collect(ctx: click.Context, _: click.Parameter, value: Any) -> None:
        if value is not None:
            name = option.no_flag if value is False else option.flag
            ctx.meta.setdefault(_FLAGS, {})[name] = "true" if value is True else value

    default = "not set" if option.default is None else _shown(option.default)
    about = f"{option.doc.replace('`', '')} [{option.env}; default: {default}]"
    common: dict[str, Any] = {"callback": collect, "expose_value": False, "default": None, "help": about}
    parameter = "afd__" + option.path.replace(".", "__")
    if option.no_flag:
        return click.option(f"{option.flag}/{option.no_flag}", parameter, is_flag=True, **common)
    metavar = (
        "[" + "|".join(option.choices) + "]" if option.choices else re.split(r"[, ]", option.type)[0].upper()
    )
    return click.option(option.flag, parameter, type=str, metavar=metavar, **common)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
