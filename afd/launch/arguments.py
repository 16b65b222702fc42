# SPDX-License-Identifier: Apache-2.0
"""The arguments of ``vllm serve``, parsed by vLLM's own parser in a process that has imported it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from textwrap import shorten
from typing import NoReturn

from pydantic import ValidationError
from vllm.entrypoints.openai.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

from afd.errors import ConfigError

REASON = 300
"""Characters of vLLM's reason that are told."""


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


@contextmanager
def judged_by_vllm() -> Iterator[None]:
    """Inside the block a configuration that vLLM refuses raises ConfigError, with vLLM's reason in one line."""
    try:
        yield
    except ValidationError as error:
        reasons = (f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_url=False))
        text = "; ".join(
            " ".join(r.removeprefix(": ").removeprefix("Value error, ").split()) for r in reasons
        )
        raise ConfigError(f"vLLM's {error.title}: {shorten(text, REASON, placeholder=' …')}") from error
