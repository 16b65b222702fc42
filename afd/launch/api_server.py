# SPDX-License-Identifier: Apache-2.0
"""Run vLLM's own ``serve`` in this process, its engine and workers forked from it.

Used for Attention and, without AFD's plugin and arguments, for the native reference that ``afd smoke`` compares
with: both are started in exactly the same way.
"""

from __future__ import annotations

from collections.abc import Sequence

from vllm.config import parallel
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.plugins import load_general_plugins

from afd.launch.arguments import judged_by_vllm, parse
from afd.launch.children import forked_children
from afd.launch.free_ports import free_ports
from afd.rebind import rebind


def main(argv: Sequence[str]) -> None:
    """Serve until vLLM's server ends. ``argv`` are the arguments of ``vllm serve``. Raises ConfigError for others,
    and for what vLLM's configuration refuses."""
    load_general_plugins()
    args = parse(argv)
    command = ServeSubcommand()
    command.validate(args)
    with forked_children(), judged_by_vllm(), rebind(parallel, get_open_ports_list=free_ports):
        command.cmd(args)
