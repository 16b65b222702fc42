# SPDX-License-Identifier: Apache-2.0
"""``afd serve`` with a plan that was changed after it was made: ``python -m tests.system.driver CHANGES serve ROLE …``.

The support matrix lets some differences between roles never get as far as the handshake; here they do. CHANGES is
JSON: ``hello`` maps dotted fields of the hello to values, ``target`` replaces the function that the role's processes
run, ``worker`` Attention's worker class.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import click
import msgspec

from afd.agent.plan import WORKER_CLASS, RolePlan
from afd.cli import serve
from afd.control.messages import Hello
from afd.errors import AFDError
from afd.topology import Role


def changed(plan: RolePlan, changes: Mapping[str, Any]) -> RolePlan:
    """``plan`` with ``changes``."""
    hello = msgspec.to_builtins(plan.hello)
    for path, value in changes.get("hello", {}).items():
        *above, last = path.split(".")
        place = hello
        for name in above:
            place = place[name]
        place[last] = value
    worker = changes.get("worker", WORKER_CLASS)
    return replace(
        plan,
        hello=msgspec.convert(hello, Hello),
        target=changes.get("target", plan.target),
        argv=tuple(worker if argument == WORKER_CLASS else argument for argument in plan.argv),
    )


def run(changes: Mapping[str, Any], argv: Sequence[str]) -> int:
    """Serve a role with a changed plan."""

    @click.pass_context
    def callback(ctx: click.Context, /, role: str, model: str, **options: Any) -> int:
        return serve.serve(changed(serve.plan(ctx, Role(role), model, **options), changes))

    command = copy.copy(serve.command)
    command.callback = callback
    try:
        code: int = command.main(list(argv), prog_name="afd serve", standalone_mode=False)
        return code
    except AFDError as error:
        print(f"afd: error: {error}", file=sys.stderr)
        return error.exit_code


def driving(**changes: Any) -> tuple[str, ...]:
    """For :class:`afd.testing.stack.Group`: the arguments of Python that start a role with ``changes``."""
    return ("-m", "tests.system.driver", json.dumps(changes))


if __name__ == "__main__":
    sys.exit(run(json.loads(sys.argv[1]), sys.argv[3:]))
