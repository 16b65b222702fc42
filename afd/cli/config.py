# SPDX-License-Identifier: Apache-2.0
"""``afd config show``: every setting, where it came from, and what follows from it."""

from __future__ import annotations

import json
from typing import Any

import click

from afd.cli.options import CommandGroup, afd_options, resolve
from afd.config import AFDConfig, Resolved, options, to_json, value_of
from afd.support import Combination, problem
from afd.topology import Rank, Role, Topology


@click.group("config", cls=CommandGroup)
def command() -> None:
    """Show settings, where they come from, and the topology."""


@command.command("show", short_help="Print every setting, and where its value came from.")
@click.option(
    "--additional-config", metavar="JSON", help='vLLM\'s flag of this name; AFD reads the key "afd" in it.'
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@afd_options()
@click.pass_context
def show(ctx: click.Context, additional_config: str | None, as_json: bool) -> None:
    """Print every setting with its origin, as `afd serve` would see it with these flags in this environment.

    A flag beats a variable, a variable beats JSON, JSON beats the default.
    """
    resolved = resolve(ctx, additional_config)
    click.echo(json.dumps(as_data(resolved), indent=2) if as_json else as_text(resolved))


def as_data(resolved: Resolved) -> dict[str, Any]:
    """The report for programs."""
    config = resolved.config
    topology = config.topology
    return {
        "settings": {
            option.path: {
                "value": _plain(value_of(config, option)),
                "origin": resolved.origins[option.path],
                "key": option.key,
                "flag": option.flag,
                "env": option.env,
            }
            for option in options()
        },
        "connector_extra_config": config.extra(),
        "topology": {
            "name": str(topology),
            "order": str(topology.order),
            "root": str(topology.root),
            "world": [{"rank": str(rank), "with": _partners(topology, rank)} for rank in topology.ranks],
        },
        "unsupported": _unsupported(config) or None,
        "json": to_json(config),
    }


def as_text(resolved: Resolved) -> str:
    """The report for people."""
    config = resolved.config
    topology = config.topology
    rows = [("setting", "value", "from")]
    for option in options():
        value = _plain(value_of(config, option))
        text = "-" if value is None else value if isinstance(value, str) else json.dumps(value)
        rows.append((option.key, text, resolved.origins[option.path]))
    lines = _table(rows)
    lines += ["", f"topology {topology}: {topology.world_size} ranks, {topology.order.roles[0]} first"]
    lines.append(f"{topology.root} listens on {config.host} port {config.port}")
    world = [("world rank", "rank", "works with")]
    world += [
        (str(number), str(rank), ", ".join(_partners(topology, rank)))
        for number, rank in enumerate(topology.ranks)
    ]
    lines += ["", *_table(world)]
    unsupported = _unsupported(config)
    if unsupported:
        lines += ["", f"this would be refused: {unsupported}"]
    return "\n".join(lines)


def _partners(topology: Topology, rank: Rank) -> list[str]:
    if rank.role is Role.FFN:
        return [str(Rank(Role.ATTENTION, index)) for index in topology.attention_of(rank.index)]
    return [str(Rank(Role.FFN, topology.ffn_of(rank.index)))]


def _unsupported(config: AFDConfig) -> str:
    """Why these settings would be refused, as far as that does not depend on the model; empty when they would
    not.
    """
    return problem(
        Combination(
            connector=config.connector,
            transport=config.transport,
            num_ubatches=config.ubatch.num_ubatches,
            gate="attention" if config.compute_gate_on_attention else "ffn",
            num_attention=config.num_attention_ranks,
            num_ffn=config.num_ffn_ranks,
            on_loss=config.on_loss,
        )
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Role):
        return str(value)
    return value if value is None or isinstance(value, (str, int, float)) else dict(value)


def _table(rows: list[tuple[str, str, str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return [f"{first:<{widths[0]}}  {second:<{widths[1]}}  {third}".rstrip() for first, second, third in rows]
