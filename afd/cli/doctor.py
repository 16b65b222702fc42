# SPDX-License-Identifier: Apache-2.0
"""``afd doctor``: can this machine and environment run AFD, and if not, what to do."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click

from afd import pins
from afd.cli import checks, packages
from afd.cli.checks import FAIL, OK, WARN, Finding
from afd.cli.options import afd_options, port, resolve
from afd.cli.version import afd_version
from afd.config import AFDConfig
from afd.errors import ConfigError, RoleFailedError

_COLOURS = {OK: "green", WARN: "yellow", FAIL: "red"}
# Those of afd.observe.server and afd.agent.plan, whose imports would double the time of this command.
AGENT_PORT, API_PORT = 9300, 8000


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
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
def command(ctx: click.Context, as_json: bool, agent_port: int, api_port: int) -> int:
    """Check whether this machine and environment can run AFD.

    Versions against the pins, ports, shared memory, cores, limits, directories. Nothing is started and
    nothing is imported. Exits with 0 when nothing failed, with 71 otherwise; warnings do not count.
    """
    findings = list(examine(ctx, agent_port, api_port))
    failed = sum(finding.status == FAIL for finding in findings)
    if as_json:
        click.echo(json.dumps(as_data(findings), indent=2))
    else:
        for line in as_lines(findings):
            click.echo(line)
    return RoleFailedError.exit_code if failed else 0


def examine(ctx: click.Context, agent_port: int, api_port: int) -> Iterator[Finding]:
    """Run every check, in the order of the report."""
    yield checks.system()
    yield from packages.check(pins.load())
    yield checks.compiler()
    yield checks.cores()
    yield checks.memory()
    yield checks.shared_memory()
    yield checks.leftovers()
    yield checks.open_files()
    yield checks.tasks()
    yield from checks.directories()
    yield checks.user()
    yield checks.preloads()
    config = AFDConfig()
    try:
        config = resolve(ctx).config
        config.token()
        yield Finding("config", OK, f"topology {config.topology}, connector {config.connector}")
    except ConfigError as error:
        yield Finding("config", FAIL, str(error), "see: afd config show")
    yield from checks.ports(
        [
            ("rendezvous-port", config.host, config.port),
            ("agent-port", "127.0.0.1", agent_port),
            ("api-port", "0.0.0.0", api_port),
        ]
    )
    yield packages.devices()


def as_data(findings: list[Finding]) -> dict[str, object]:
    """The report for programs."""
    return {
        "version": afd_version(),
        "checks": [
            {
                "id": finding.id,
                "status": finding.status,
                "found": finding.found,
                "remedy": finding.remedy or None,
            }
            for finding in findings
        ],
        "summary": {
            status: sum(finding.status == status for finding in findings)
            for status in (OK, WARN, FAIL, checks.SKIP)
        },
    }


def as_lines(findings: list[Finding]) -> Iterator[str]:
    """The report for people: a line for each check, and below it what to do."""
    width = max(len(finding.id) for finding in findings)
    for finding in findings:
        status = click.style(f"{finding.status:<4}", fg=_COLOURS.get(finding.status))
        yield f"{status}  {finding.id:<{width}}  {finding.found}"
        if finding.remedy:
            yield f"{'':4}  {'':{width}}  -> {finding.remedy}"
    count = {status: sum(finding.status == status for finding in findings) for status in (OK, WARN, FAIL)}
    yield f"{count[OK]} ok, {count[WARN]} to look at, {count[FAIL]} failed"
