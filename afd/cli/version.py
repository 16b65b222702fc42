# SPDX-License-Identifier: Apache-2.0
"""AFD's own version: that of the installed distribution, or of the checkout when there is none."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

DISTRIBUTION = "vllm-afd"


def afd_version() -> str:
    """Such as "1.2.3"; "unknown" when neither a distribution nor a checkout is around this file."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        pass
    try:
        return (Path(__file__).parents[2] / "VERSION").read_text(encoding="utf-8").strip()
    except OSError:
        return "unknown"
