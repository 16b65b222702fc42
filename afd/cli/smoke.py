# SPDX-License-Identifier: Apache-2.0
"""``afd smoke``: start both roles here, and prove that their tokens are those of native vLLM."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from afd import support
from afd.agent.model_files import inspect, resolve
from afd.agent.run_directory import RunDirectory
from afd.config import AFDConfig
from afd.errors import AFDError, ConfigError
from afd.families import family_of
from afd.support import Combination
from afd.testing.interrupts import Interrupts
from afd.testing.questions import MAX_MODEL_LEN, STEP_TOKENS
from afd.testing.smoke import Outcome, Smoke
from afd.testing.stack import Layout, ignored_variables
from afd.topology import Topology

_API_PORT = 8000
_WIDE = 1000
"""Columns where there is no terminal: whoever reads a file wants whole lines."""


@click.command("smoke", context_settings={"show_default": True})
@click.option("--model", default="builtin:tiny-deepseek-v2", help="Path, hub id or builtin model.")
@click.option(
    "--attention", "num_attention", default=1, type=click.IntRange(1), metavar="N", help="Attention ranks."
)
@click.option("--ffn", "num_ffn", default=1, type=click.IntRange(1), metavar="N", help="FFN ranks.")
@click.option(
    "--tp",
    default=1,
    type=click.IntRange(1),
    metavar="N",
    help="Attention ranks in one tensor-parallel group; the groups are data-parallel replicas.",
)
@click.option("--runner", default="v2", type=click.Choice(["v1", "v2"]), help="vLLM's model runner.")
@click.option(
    "--transport",
    default=AFDConfig().transport,
    type=click.Choice(["auto", "shm", "collective"]),
    help="What moves tensors between the roles.",
)
@click.option(
    "--dtype",
    default="float32",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="Number format of the model.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
@click.option("--keep", is_flag=True, help="Leave the group up afterwards, until Ctrl-C.")
@click.option(
    "--record",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write a record of the run into this directory.",
)
def command(
    model: str,
    num_attention: int,
    num_ffn: int,
    tp: int,
    runner: str,
    transport: str,
    dtype: str,
    as_json: bool,
    keep: bool,
    record: Path | None,
) -> int:
    """Start a native vLLM and both roles of AFD on this host, ask the same questions, compare the answers.

    Answers agree when their tokens are equal, or differ first where native's two likeliest tokens are closer than
    1e-4; log-probabilities must agree within 1e-4. Exit code 0 when all agree, 71 when not.

    A run decides its settings and threads itself: of the variables AFD_..., OMP_NUM_THREADS,
    VLLM_CPU_OMP_THREADS_BIND, VLLM_PLUGINS and VLLM_USE_V2_MODEL_RUNNER only AFD_CACHE_DIR counts.
    """
    layout = Layout(
        model=model,
        runner=runner,
        topology=Topology(num_attention, num_ffn),
        vllm_args=(
            *("--dtype", dtype, "--max-model-len", str(MAX_MODEL_LEN)),
            *("--max-num-batched-tokens", str(STEP_TOKENS), "--max-num-seqs", "32"),
        ),
        afd_args=("--afd-transport", transport),
        tp=tp,
    )
    if record is not None:
        _check_writable(record)
    console = Console(stderr=as_json, highlight=False)
    if not console.is_terminal:
        console.width = _WIDE
    ignored = [name for name in ignored_variables() if os.environ[name]]
    if ignored:
        _say(console, f"ignored, because a smoke run decides it itself: {', '.join(ignored)}")
    started = time.monotonic()
    with Interrupts() as interrupts:
        _check(layout, transport, dtype)
        outcome, stayed = _smoke(layout, console, interrupts, keep)
        if as_json:
            click.echo(json.dumps(_as_data(layout, outcome), indent=2))
        elif not stayed:
            console.print(_table(layout, outcome))
        elif outcome.passed:
            _say(console, "stopped: both roles ended with code 0 and left nothing behind")
        for problem in _problems(outcome):
            _say(console, "problem: ", problem, style="red")
        if record is not None:
            from afd.testing.smoke_record import write_record

            _say(console, f"record: {write_record(layout, outcome, started, record)}")
    return 0 if outcome.passed else 71


def _check(layout: Layout, transport: str, dtype: str) -> None:
    """Raises ConfigError for what the support matrix refuses, before anything is started."""
    layout.topology.validate()
    if layout.topology.num_attention % layout.tp:
        raise ConfigError(
            f"{layout.topology.num_attention} Attention ranks do not divide into tensor-parallel groups of "
            f"{layout.tp}; use a multiple of {layout.tp} for --attention"
        )
    found = inspect(resolve(layout.model))
    support.check(
        Combination(
            transport=transport,
            runner=layout.runner,
            family=family_of(found.architecture).name,
            quantisation=found.quantisation,
            dtype=dtype,
            num_attention=layout.topology.num_attention,
            num_ffn=layout.topology.num_ffn,
            tp=layout.tp,
        )
    )


def _smoke(layout: Layout, console: Console, interrupts: Interrupts, keep: bool) -> tuple[Outcome, bool]:
    """One run, and whether its group was kept up. Its logs are kept when it fails."""
    logs = RunDirectory.for_logs()
    keep_logs = False
    api_port = _api_port() if keep else 0
    try:
        with Smoke(layout, logs.path, _teller(console), interrupts, api_port=api_port) as smoke:
            try:
                interrupts.run(_run(smoke))
            except AFDError:
                keep_logs = True
                _say(console, smoke.words())
                raise
            stayed = keep and smoke.outcome.passed
            if stayed:
                console.print(_table(layout, smoke.outcome))
                _stay(smoke, console)
                interrupts.take()
            smoke.stop()
            interrupts.check()
            keep_logs = not smoke.outcome.passed
        return smoke.outcome, stayed
    finally:
        if keep_logs:
            logs.keep()
            _say(console, f"logs are kept in {logs.path}")
        else:
            logs.close()


async def _run(smoke: Smoke) -> None:
    await smoke.start()
    await smoke.compare()


def _say(console: Console, *parts: str, style: str = "") -> None:
    """Print lines as they are: their words are no markup, and are not filled into the width. The first part may have a
    style.
    """
    console.print(Text.assemble((parts[0], style), "".join(parts[1:])), soft_wrap=True)


def _teller(console: Console) -> Any:
    begin = time.monotonic()

    def say(text: str) -> None:
        _say(console, f"{time.monotonic() - begin:5.1f} s", f"  {text}", style="dim")

    return say


def _check_writable(directory: Path) -> None:
    """Before the run, and not when it is over."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise ConfigError(
            f"--record {directory}: cannot be written: {error.strerror}; give another directory"
        ) from None


def _stay(smoke: Smoke, console: Console) -> None:
    url = smoke.group.attention.api_url
    console.print(f"\nAFD serves [bold]{url}[/bold]. Its agents tell how it is:")
    for role in smoke.group.roles.values():
        _say(console, f"  {role.role}: {role.agent_url}/status, log {role.log}")
    console.print("Try:\n")
    # One line, however narrow the terminal: it is there to be copied.
    body = json.dumps({"model": smoke.served, "prompt": "Attention keeps", "max_tokens": 16})
    click.echo(
        f"  curl {url}/v1/completions -H 'Content-Type: application/json' -d '{body}'\n", err=console.stderr
    )
    console.print("Ctrl-C ends it, and removes the logs unless something went wrong.")
    try:
        while all(role.exit_code is None for role in smoke.group.roles.values()):
            time.sleep(0.2)
    except KeyboardInterrupt:
        console.print("stopping")
        return
    smoke.outcome.problems.append("a role ended while it was being kept: " + smoke.group.attention.error())


def _api_port() -> int:
    """vLLM's usual port when it is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", _API_PORT))
        except OSError:
            return 0
    return _API_PORT


def _problems(outcome: Outcome) -> list[str]:
    return [f"{verdict.name}: {verdict.reason}" for verdict in outcome.comparison.failures] + outcome.problems


def _as_data(layout: Layout, outcome: Outcome) -> dict[str, Any]:
    comparison = outcome.comparison
    return {
        "passed": outcome.passed,
        "model": layout.model,
        "topology": str(layout),
        "runner": layout.runner,
        "transport": outcome.transport,
        "requests": len(comparison.verdicts),
        "tokens": comparison.tokens,
        "ties": comparison.ties,
        "max_logprob_error": comparison.max_logprob_error,
        "sent_tokens": outcome.sent_tokens,
        "ffn_layers": outcome.ffn_layers,
        "ffn_tokens": outcome.ffn_tokens,
        "seconds": outcome.seconds,
        "problems": _problems(outcome),
    }


def _table(layout: Layout, outcome: Outcome) -> Table:
    comparison = outcome.comparison
    table = Table(show_header=False, title="AFD smoke", title_justify="left")
    table.add_row("model", f"{layout.model}, {layout.vllm_args[1]}")
    table.add_row("group", f"{layout}, runner {layout.runner}, transport {outcome.transport}")
    table.add_row(
        "tokens equal to native vLLM",
        f"{comparison.tokens} tokens in {len(comparison.verdicts)} requests, {comparison.ties} ties, "
        f"{len(comparison.failures)} failures",
    )
    table.add_row("largest log-probability error", f"{comparison.max_logprob_error:.1e}")
    table.add_row(
        "tokens computed by FFN",
        f"{outcome.ffn_tokens} = {outcome.sent_tokens} × {outcome.ffn_layers} layers",
    )
    table.add_row("seconds", ", ".join(f"{name} {value:.1f}" for name, value in outcome.seconds.items()))
    table.add_row("result", "[green]PASS[/green]" if outcome.passed else "[red]FAIL[/red]")
    return table
