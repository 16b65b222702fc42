# SPDX-License-Identifier: Apache-2.0
"""``smoke``: single-node with the built-in model, asked what native vLLM was asked when the image was made.

It starts what a user would start, supervisord and all, and looks at how it ends: tokens equal to the golden answers,
every token computed once per layer, a stop with code 0, nothing left behind. Without golden answers it is `afd smoke`,
which asks native vLLM here and now. A control changes one thing that must make the comparison fail.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click

from afd.agent.launch_protocol import LAUNCHER_VARIABLE
from afd.agent.model_files import resolve
from afd.cli.plain import spell
from afd.errors import AFDError, ConfigError, ResourceError
from afd.testing import golden as answers
from afd.testing.compare import Comparison, Verdict, compare_all
from afd.testing.completions import Answer
from afd.testing.damage import with_zeros
from afd.testing.golden import Golden
from afd.testing.node import Node
from afd.testing.smoke import Outcome, ask_everything, count_tokens, questions
from afd.testing.smoke_record import write_record
from afd.testing.stack import Layout

GOLDEN, RECORDS = "AFD_GOLDEN", "AFD_RECORDS"
DEFAULT_GOLDEN = Path("/etc/afd/golden.json")
READY_S = 300.0
STOP_S = 40.0
NONE, EXPERT, TOKEN = "none", "expert", "token"
ZEROED = ".layers.2.mlp.experts.3."
"""What the control "expert" takes from FFN: one expert of one layer."""
DIFFERENT = 71
NOT_NOTICED = 1
"""Of a control: the comparison failed not, or not alone. What is 71 for a run without one is this, too: a role that
failed is not what a control looks for."""

Say = Callable[[str], None]


@click.command("smoke")
@click.option(
    "--golden", type=click.Path(path_type=Path), help=f"Answers of native vLLM [{GOLDEN}; {DEFAULT_GOLDEN}]."
)
@click.option(
    "--control",
    default=NONE,
    type=click.Choice([NONE, EXPERT, TOKEN]),
    help="Must end with 71, and ends with 1 for anything else that goes wrong: one expert of FFN's is zeroed, or one "
    "golden token is another.",
)
@click.option(
    "--record", type=click.Path(path_type=Path), help=f"Write a record into this directory [{RECORDS}]."
)
def command(golden: Path | None, control: str, record: Path | None) -> int:
    """Both roles with a built-in model, compared with native vLLM. Exit code 0 when all answers agree, 71 when not."""
    try:
        return start(golden, control, record)
    except (AFDError, OSError) as error:
        code = error.exit_code if isinstance(error, AFDError) else ResourceError.exit_code
        if control == NONE or code != DIFFERENT:
            raise
        _fail(error)
        return NOT_NOTICED


def start(golden: Path | None, control: str, record: Path | None) -> int:
    """Find the golden answers, and run with them; without them become `afd smoke`."""
    golden = golden or _named(GOLDEN)
    record = record or _named(RECORDS)
    if golden is None and not DEFAULT_GOLDEN.exists():
        if control != NONE:
            raise ConfigError(f"--control {control}: needs golden answers ({GOLDEN}, or {DEFAULT_GOLDEN})")
        print(f"no golden answers at {DEFAULT_GOLDEN}: native vLLM is asked here", flush=True)
        more = [] if record is None else ["--record", str(record)]
        os.execve(sys.executable, [sys.executable, "-m", "afd.cli.main", "smoke", *more], dict(os.environ))
    return run(answers.load(golden or DEFAULT_GOLDEN), control, record)


def run(golden: Golden, control: str, record: Path | None) -> int:
    """The whole run. Raises AFDError when something did not start."""
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - started:5.1f} s  {text}", flush=True)

    layout = answers.layout(golden.model, golden.runner, golden.dtype)
    outcome = Outcome()
    with tempfile.TemporaryDirectory(prefix="afd-smoke-node-") as directory:
        _ask(golden, layout, control, Path(directory), outcome, say)
    compared = outcome.comparison
    for problem in (*(f"{v.name}: {v.reason}" for v in compared.failures), *outcome.problems):
        print(f"problem: {problem}")
    print(
        f"{len(compared.verdicts)} answers, {compared.tokens} tokens, {compared.ties} ties, "
        f"{len(compared.failures)} failures, largest log-probability error {compared.max_logprob_error:.1e}; "
        f"{outcome.ffn_tokens} tokens computed by FFN = {outcome.sent_tokens} × {outcome.ffn_layers} layers"
    )
    if record is not None:
        suffix = "single-node" if control == NONE else f"single-node-control-{control}"
        told = outcome if control == NONE else noticed(outcome, control)
        print(f"record: {write_record(layout, told, started, record, kind='image', suffix=suffix)}")
    code = exit_code(outcome, control)
    ending = (
        ("PASS" if code == 0 else "FAIL")
        if control == NONE
        else f"control {'' if code == DIFFERENT else 'not '}noticed"
    )
    print(f"{ending} in {time.monotonic() - started:.0f} s")
    return code


def exit_code(outcome: Outcome, control: str) -> int:
    """What this process ends with."""
    if control == NONE:
        return 0 if outcome.passed else DIFFERENT
    return DIFFERENT if noticed(outcome, control).passed else NOT_NOTICED


def noticed(outcome: Outcome, control: str) -> Outcome:
    """A control's own result: it passes when the comparison failed, and nothing else did."""
    failed = bool(outcome.comparison.failures)
    verdict = Verdict(
        f"control {control}",
        failed,
        False,
        0,
        0,
        math.nan,
        0.0,
        "" if failed else "the comparison with native vLLM did not notice it",
    )
    return Outcome(
        comparison=Comparison((verdict,)),
        problems=outcome.problems,
        transport=outcome.transport,
        left_segments=outcome.left_segments,
        left_processes=outcome.left_processes,
    )


def _ask(golden: Golden, layout: Layout, control: str, directory: Path, outcome: Outcome, say: Say) -> None:
    native = golden.for_comparison()
    if control == TOKEN:
        native[0].tokens[0] ^= 1
    arguments: tuple[str, ...] = ()
    if control == EXPERT:
        damaged = directory / "damaged"
        if not with_zeros(resolve(layout.model), damaged, ZEROED):
            raise ConfigError(f"{layout.model} has no weights {ZEROED}; there is no such control for it")
        arguments = ("--ffn-model", str(damaged))
    say(f"starting single-node {layout.model}")
    launcher = os.environ.get(LAUNCHER_VARIABLE)
    with Node(layout, directory / "node", launcher=launcher, arguments=arguments) as node:
        try:
            asyncio.run(_compare(node, golden, native, outcome, say))
        except AFDError:
            print("\n".join(node.text().splitlines()[-40:]))
            raise
        say("stopping it")
        code = node.stop(STOP_S)
        if code != 0:
            outcome.problems.append(f"single-node ended with {code} instead of 0: {node.verdict()}")
        processes, segments = node.left()
        outcome.left_processes, outcome.left_segments = len(processes), len(segments)
        if processes or segments:
            outcome.problems.append(f"left behind: {', '.join((*processes, *segments))}")


async def _compare(node: Node, golden: Golden, native: list[Answer], outcome: Outcome, say: Say) -> None:
    await node.ready(READY_S)
    say(f"ready; asking {len(native)} questions, whose answers native vLLM {golden.vllm} gave")
    ours = await ask_everything(node.api_url, node.layout.served, together=True)
    single, many = questions()
    outcome.comparison = compare_all([*single, *many], native, ours)
    await count_tokens(outcome, golden.model, node.agent_urls["attention"], node.agent_urls["ffn"])


def _named(variable: str) -> Path | None:
    """The path in a variable, where an empty one counts as not set."""
    return Path(os.environ[variable]) if os.environ.get(variable) else None


def main() -> int:
    """``python -m afd.container.smoke``."""
    spell()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started is ended in order
    try:
        code: int = command.main(prog_name="afd-entrypoint smoke", standalone_mode=False) or 0
        return code
    except AFDError as error:
        _fail(error)
        return error.exit_code
    except click.ClickException as error:
        print(f"afd-entrypoint: error: {error.format_message()} (see: smoke --help)", file=sys.stderr)
        return ConfigError.exit_code
    except click.Abort:
        return 130
    except OSError as error:
        _fail(error)
        return ResourceError.exit_code


def _fail(error: Exception) -> None:
    print(f"afd-entrypoint: error: {' '.join(str(error).split())}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
