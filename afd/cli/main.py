# SPDX-License-Identifier: Apache-2.0
"""The door: parses the command line, runs one subcommand, and turns every failure into one line and an exit
code.

Nothing here, and nothing a subcommand does before it starts a model, imports torch or vLLM.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

import click

from afd.cli.options import CommandGroup
from afd.cli.plain import spell
from afd.cli.version import afd_version
from afd.config.kinds import nearest
from afd.errors import AFDError, ConfigError, RoleFailedError

_USAGE = ConfigError.exit_code
_BROKEN = RoleFailedError.exit_code
_INTERRUPTED = 130
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class _Subcommand:
    """Where a subcommand is defined (as ``command``) and what the list of commands says about it."""

    module: str
    summary: str


SUBCOMMANDS = {
    "serve": _Subcommand("afd.cli.serve", "Run one role of a model: attention or ffn."),
    "smoke": _Subcommand("afd.cli.smoke", "Start both roles here and compare their tokens with native vLLM."),
    "doctor": _Subcommand("afd.cli.doctor", "Check whether this machine and environment can run AFD."),
    "config": _Subcommand("afd.cli.config", "Show settings, where they come from, and the topology."),
}


class _Lazy(CommandGroup):
    """A group that lists its subcommands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUBCOMMANDS:
            return None
        module = SUBCOMMANDS[cmd_name].module
        try:
            found = importlib.import_module(module).command
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
            raise ConfigError(f"this build of AFD has no `afd {cmd_name}`") from None
        if not isinstance(found, click.Command):
            raise TypeError(f"{module}.command is not a click command")
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in SUBCOMMANDS and not args[0].startswith("-"):
            raise click.UsageError(f"no such command {args[0]!r}{nearest(args[0], tuple(SUBCOMMANDS))}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in SUBCOMMANDS.items()])


# The mark keeps click from filling the lines.
_EPILOG = """\b
Exit codes:
    0  done, or stopped after everything in flight was answered
    1  doctor --strict: a check warned
    2  doctor: a check failed
   64  usage or configuration
   65  the roles were configured differently
   69  a peer did not come in time
   70  a peer was lost
   71  this role failed; smoke found a difference
  130  interrupted before there was anything to stop
"""


@click.group(cls=_Lazy, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(afd_version(), prog_name="afd", message="%(prog)s %(version)s")
def afd() -> None:
    """Attention-FFN disaggregation: one MoE model on two groups of devices."""


def run(argv: Sequence[str] | None = None) -> int:
    """Run ``afd`` with ``argv`` (default: of this process) and return its exit code. Never raises."""
    spell()
    try:
        result = afd.main(args=None if argv is None else list(argv), prog_name="afd", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except AFDError as error:
        return _fail(str(error), error.exit_code)
    except click.UsageError as error:
        where = f"{error.ctx.command_path} " if error.ctx is not None else "afd "
        return _fail(f"{error.format_message().rstrip('.')} (see: {where}--help)", _USAGE)
    except click.ClickException as error:
        return _fail(error.format_message(), _USAGE)
    except click.Abort:
        return _fail("interrupted", _INTERRUPTED)
    except BrokenPipeError:
        _silence(sys.stdout)  # the reader of our output is gone (`afd config show | head`)
        return 0
    except OSError as error:
        if error.errno not in _FULL:
            return _unexpected(error)
        where = error.filename or "the output, or a directory that AFD writes to"
        return _fail(f"{os.strerror(error.errno)}: {where}", _BROKEN)
    except Exception as error:  # noqa: BLE001 (the last resort: a bug must not look like one of our exit codes)
        return _unexpected(error)


def _unexpected(error: Exception) -> int:
    with contextlib.suppress(OSError):
        traceback.print_exc()
    return _fail(f"unexpected {type(error).__name__}: {error}; this is a bug in AFD", _BROKEN)


def _fail(message: str, code: int) -> int:
    """Say it if anybody can hear it; the exit code is the same either way."""
    with contextlib.suppress(OSError):
        click.echo(f"afd: error: {' '.join(message.split())}", err=True)
    return code


def _silence(stream: TextIO) -> None:
    """Let nothing that ``stream`` still holds fail at exit, where the interpreter would change the exit code to 120."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def main() -> None:
    """The console script."""
    code = run()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            _silence(stream)
    sys.exit(code)


if __name__ == "__main__":
    main()
