# SPDX-License-Identifier: Apache-2.0
"""``afd serve`` whose processes run another function: ``python -m tests.system.program TARGET serve ROLE MODEL …``."""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence

import click

from afd.cli import serve
from afd.errors import AFDError
from afd.topology import Role


def run(target: str, argv: Sequence[str]) -> int:
    """Serve a role with ``target`` ("package.module:function") in the place of its own function."""

    @click.pass_context
    def callback(ctx: click.Context, /, role: str, model: str, **options: object) -> int:
        planned = serve.plan(ctx, Role(role), model, target=target, **options)  # type: ignore[arg-type]
        return serve.serve(planned)

    command = copy.copy(serve.command)
    command.callback = callback
    try:
        code: int = command.main(list(argv), prog_name="afd serve", standalone_mode=False)
        return code
    except AFDError as error:
        print(f"afd: error: {error}", file=sys.stderr)
        return error.exit_code


def running(target: str) -> tuple[str, ...]:
    """For :class:`afd.testing.stack.Group`: the arguments of Python that start a role with ``target``."""
    return ("-m", "tests.system.program", target)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[3:]))
