# SPDX-License-Identifier: Apache-2.0
"""The arguments of ``vllm serve``, parsed by vLLM's own parser in a process that has imported it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import NoReturn

from vllm.entrypoints.openai.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

from afd.errors import ConfigError


class _Parser(FlexibleArgumentParser):
    """vLLM's parser, which raises instead of printing its usage and leaving with code 2."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"vLLM's arguments: {message} (see --help=vllm)")


def parse(argv: Sequence[str]) -> Namespace:
    """Parse MODEL and vLLM's arguments. Raises ConfigError for what vLLM does not know.

    Flags must be written out: the agent judges them by name (:mod:`afd.agent.vllm_arguments`), and an abbreviated
    ``--speculative`` would get past it.
    """
    parser = make_arg_parser(_Parser(prog="afd serve", allow_abbrev=False))
    args: Namespace = parser.parse_args(list(argv))
    if args.model_tag is not None:
        args.model = args.model_tag
    return args
