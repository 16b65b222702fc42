# SPDX-License-Identifier: Apache-2.0
"""``afd serve attention|ffn MODEL``: run one role until it is stopped or its group ends."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Sequence

import click

from afd.agent import secrets, vllm_arguments
from afd.agent.environment import RUNNER_VARIABLE
from afd.agent.output import Output, OutputHandler
from afd.agent.plan import RolePlan, plan_role
from afd.agent.priority import before_the_model
from afd.agent.role_agent import RoleAgent
from afd.agent.threads import Calls, block_signals
from afd.cli.options import afd_options, port_or_any, refuse_unknown, resolve
from afd.errors import ConfigError
from afd.observe.server import PORT
from afd.topology import Role

_EPILOG = """
Everything else goes to vLLM as it is, for example --dtype, --max-model-len, --port; --help=vllm lists it. AFD adds
what two roles on one host need, unless it is given: a KV cache of 256 MiB per rank, one API server, five seconds for
requests in flight at a stop (--shutdown-timeout), threads and cores. Nothing is compiled and there are no graphs.
"""


class _Serve(click.Command):
    """A command that leaves flags it does not know, and all that follows ``--help=``, to vLLM.

    It has no short flag of its own, not even -h: click would find it inside of vLLM's, as in -dph.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        topic = next((argument for argument in args if argument.startswith("--help=")), None)
        if topic is not None:
            ctx.exit(vllm_help(topic.removeprefix("--help=")))
        return super().parse_args(ctx, ["--help" if argument == "-h" else argument for argument in args])


@click.command(
    "serve",
    cls=_Serve,
    epilog=_EPILOG,
    context_settings={
        "ignore_unknown_options": True,
        "allow_interspersed_args": True,
        "help_option_names": ["--help"],
    },
)
@click.argument("role", type=click.Choice([str(role) for role in Role]))
@click.argument("model")
@click.argument("vllm_args", nargs=-1, type=click.UNPROCESSED, metavar="[VLLM ARGUMENTS]...")
@click.option(
    "--agent-host", metavar="HOST", default="0.0.0.0", show_default=True, help="Address of the agent port."
)
@click.option(
    "--agent-port",
    default=PORT,
    show_default=True,
    metavar="PORT",
    type=port_or_any,
    help="Port for /livez, /readyz, /status and /metrics; 0 is any free one, which the log names.",
)
@click.option(
    "--afd-runner",
    type=click.Choice(["v1", "v2"]),
    help="vLLM's model runner [VLLM_USE_V2_MODEL_RUNNER; default: v2]",
)
@afd_options(without=("role",))
@click.pass_context
def command(
    ctx: click.Context,
    role: str,
    model: str,
    vllm_args: tuple[str, ...],
    agent_host: str,
    agent_port: int,
    afd_runner: str | None,
) -> int:
    """Run one role of MODEL, attention or ffn.

    \b
    MODEL is one of
      a local directory with config.json and safetensors files
      the id of a model on the Hugging Face hub
      builtin:NAME, with random weights; NAME is tiny-deepseek-v2,
        tiny-deepseek-v3, tiny-deepseek-v2-grouped or tiny-qwen3-moe

    The two roles may start in either order, minutes apart.
    """
    refuse_unknown(vllm_args)
    if model.startswith("-"):
        raise ConfigError(f"MODEL comes right after the role, before vLLM's arguments; found {model}")
    leave_no_secret_on_the_command_line(vllm_args)
    return serve(plan(ctx, Role(role), model, vllm_args, agent_host, agent_port, afd_runner))


def plan(
    ctx: click.Context,
    role: Role,
    model: str,
    vllm_args: Sequence[str],
    agent_host: str,
    agent_port: int,
    afd_runner: str | None,
    target: str | None = None,
) -> RolePlan:
    """The role's plan from the command line and this process's environment. Raises ConfigError."""
    arguments = vllm_arguments.parse(vllm_args)
    resolved = resolve(ctx, arguments.get("--additional-config") or None, role)
    environment = dict(os.environ)
    if afd_runner is not None:
        environment[RUNNER_VARIABLE] = "1" if afd_runner == "v2" else "0"
    return plan_role(
        role,
        model,
        resolved.config,
        vllm_args,
        environment,
        agent_host=agent_host,
        agent_port=agent_port,
        target=target,
    )


def leave_no_secret_on_the_command_line(vllm_args: Sequence[str]) -> None:
    """Run this program again, as the same process, with keys and tokens in the environment.

    Everybody on the machine can read a command line.
    """
    command, variables = secrets.command_line_without(sys.orig_argv, vllm_arguments.parse(vllm_args))
    if command != sys.orig_argv:
        sys.stdout.flush(), sys.stderr.flush()
        os.execve(sys.executable, command, {**os.environ, **variables})


def serve(plan: RolePlan) -> int:
    """Run the role's agent to its end. Returns 0 after a stop; raises the AFDError that ended the role."""
    output = Output(sys.stderr, plan.secrets.hide)
    logging.basicConfig(
        level=logging.INFO,
        handlers=[OutputHandler(output)],
        format=f"%(asctime)s.%(msecs)03d afd {plan.role} %(levelname)s %(message)s",
        datefmt="%H:%M:%S",
        force=True,
    )

    before_the_model()

    async def run() -> None:
        asyncio.get_running_loop().set_default_executor(Calls())
        try:
            await RoleAgent(plan, output.line).run()
        finally:
            # The role has ended and its exit code is known. The loop gives the signals back to the system on its way
            # out, and whoever stops both roles, one after the other, would kill this one in its last moments.
            block_signals()

    try:
        asyncio.run(run())
    finally:
        output.close()
    return 0


def vllm_help(topic: str) -> int:
    """Print vLLM's own help for ``vllm serve``: in a process of its own, because only that needs vLLM."""
    flag = "--help" if topic == "vllm" else f"--help={topic}"
    program = (
        "from vllm.entrypoints.openai.cli_args import make_arg_parser\n"
        "from vllm.utils.argparse_utils import FlexibleArgumentParser\n"
        "import sys\n"
        "make_arg_parser(FlexibleArgumentParser(prog='afd serve attention MODEL')).parse_args(sys.argv[1:])\n"
    )
    environment = {
        **os.environ,
        "VLLM_LOGGING_LEVEL": "ERROR",
        "PYTHONIOENCODING": f"{sys.stdout.encoding}:backslashreplace",
    }
    return subprocess.run(
        [sys.executable, "-c", program, flag], env=environment, cwd=sys.prefix, check=False
    ).returncode
