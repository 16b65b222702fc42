# SPDX-License-Identifier: Apache-2.0
"""Writes afd/agent/vllm_flags.toml from the parser of the installed vLLM. A test in tests/unit/vllm compares them.

python scripts/vllm_flags.py
"""

from __future__ import annotations

from pathlib import Path

PATH = Path(__file__).resolve().parent.parent / "afd/agent/vllm_flags.toml"
HEAD = """\
# SPDX-License-Identifier: Apache-2.0
# The flags of `vllm serve` by the values that they take. Written by scripts/vllm_flags.py; do not edit.
"""
KINDS = {"0": "none", "None": "one", "?": "optional", "+": "several"}
"""What argparse calls the number of values, and the key that it has in the file."""


def render() -> str:
    """The text of the file. Imports vLLM."""
    from vllm.entrypoints.openai.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    found: dict[str, list[str]] = {kind: [] for kind in KINDS.values()}
    for flag, action in make_arg_parser(FlexibleArgumentParser())._option_string_actions.items():
        found[KINDS[str(action.nargs)]].append(flag)
    lists = (
        f"{kind} = [\n" + "".join(f'    "{f}",\n' for f in sorted(fs)) + "]\n" for kind, fs in found.items()
    )
    return HEAD + "".join(f"\n{text}" for text in lists)


if __name__ == "__main__":
    PATH.write_text(render(), encoding="utf-8")
