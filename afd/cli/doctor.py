# SPDX-License-Identifier: Apache-2.0
"""``afd doctor``: can this machine, container or image run AFD, and if not, what to do."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from afd import config
from afd.cli.options import afd_options, flags, port
from afd.cli.version import afd_version
from afd.config import AFDConfig
from afd.doctor import report, table
from afd.doctor.subject import Subject
from afd.errors import ConfigError

# Those of afd.observe.server and afd.agent.plan, whose imports would double the time of this command.
AGENT_HOST, AGENT_PORT, API_PORT = "0.0.0.0", 9300, 8000
_HERE = Path("/")


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--list", "as_list", is_flag=True, help="Print what would be checked, and check nothing.")
@click.option(
    "--only",
    metavar="CHECK",
    multiple=True,
    help="An id, a name, or a group (offline, host, device). May be repeated.",
)
@click.option("--strict", is_flag=True, help="Exit with 1 when a check warns.")
@click.option(
    "--root",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=_HERE,
    help="Look at the files below DIR instead of those of this machine, such as at an image that is unpacked there.",
)
@click.option(
    "--env-file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Take the environment from FILE, a line NAME=VALUE each. Default: that of this process; with --root, none.",
)
@click.option(
    "--uid",
    metavar="NUMBER",
    type=click.IntRange(min=0),
    help="The user that runs the roles. [default: this one]",
)
@click.option("--model", metavar="DIR", default="", help="Check that the files of this model can be read.")
@click.option(
    "--agent-host",
    metavar="HOST",
    default=AGENT_HOST,
    show_default=True,
    help="Address of the agent port to check.",
)
@click.option(
    "--agent-port",
    metavar="PORT",
    type=port,
    default=AGENT_PORT,
    show_default=True,
    help="Agent port to check.",
)
@click.option(
    "--api-port", metavar="PORT", type=port, default=API_PORT, show_default=True, help="API port to check."
)
@afd_options()
@click.pass_context
def command(
    ctx: click.Context,
    as_json: bool,
    as_list: bool,
    only: tuple[str, ...],
    strict: bool,
    root: Path,
    env_file: Path | None,
    uid: int | None,
    model: str,
    agent_host: str,
    agent_port: int,
    api_port: int,
) -> int:
    """Check whether this machine, container or image can run AFD.

    Packages and the image against the pins, libraries, operators, device nodes, driver, ports, shared memory,
    limits, directories; NPUs by small programs. Nothing is started here and nothing is imported: what has to load
    a library does that in a child with a deadline.

    Exits with 0 when nothing failed, with 2 otherwise. Warnings do not count, unless --strict makes them exit
    with 1.
    """
    checks = table.chosen(only)
    if as_list:
        for line in report.as_list(checks):
            click.echo(line)
        return report.NOTHING_FAILED
    subject = _subject(ctx, root, env_file, uid, model, (agent_host, agent_port), api_port)
    results = list(table.examine(subject, checks, slow=bool(only)))
    if as_json:
        click.echo(json.dumps(report.as_data(results, afd_version()), indent=2))
    else:
        for line in report.as_lines(results):
            click.echo(line)
    return report.exit_code(results, strict)


def _subject(
    ctx: click.Context,
    root: Path,
    env_file: Path | None,
    uid: int | None,
    model: str,
    agent: tuple[str, int],
    api_port: int,
) -> Subject:
    root = root.resolve()
    running = root == _HERE
    env = _read(env_file) if env_file is not None else dict(os.environ) if running else {}
    subject = Subject(
        root=root,
        env=env,
        loads=running,
        config=_config(ctx, env),
        agent_host=agent[0],
        agent_port=agent[1],
        api_port=api_port,
        model=model,
    )
    return subject if uid is None else subject.as_user(uid)


def _config(ctx: click.Context, env: dict[str, str]) -> AFDConfig | ConfigError:
    try:
        found = config.resolve(flags(ctx), env, {}, None).config
        found.token()
        return found
    except ConfigError as error:
        return error


def _read(path: Path) -> dict[str, str]:
    """The file that `docker run --env-file` takes, with a value on every line."""
    found = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, separator, value = line.partition("=")
        if not separator or not name.strip():
            raise ConfigError(f"{path}:{number}: {line!r} is not NAME=VALUE")
        found[name.strip()] = value
    return found
