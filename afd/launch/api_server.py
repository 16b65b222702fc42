# SPDX-License-Identifier: Apache-2.0
"""Run vLLM's own ``serve`` in this process, its engine and workers forked from it.

Used for Attention and, without AFD's plugin and arguments, for the native reference that ``afd smoke`` compares
with: both are started in exactly the same way.
"""

from __future__ import annotations

from collections.abc import Sequence

from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.entrypoints.openai.cli_args import make_arg_parser
from vllm.plugins import load_general_plugins
from vllm.utils.argparse_utils import FlexibleArgumentParser

from afd.launch.children import forked_children


def main(argv: Sequence[str]) -> None:
    """Serve until vLLM's server ends. ``argv`` are the arguments of ``vllm serve``."""
    load_general_plugins()
    parser = make_arg_parser(FlexibleArgumentParser(prog="afd serve attention"))
    args = parser.parse_args(list(argv))
    command = ServeSubcommand()
    command.validate(args)
    with forked_children():
        command.cmd(args)
