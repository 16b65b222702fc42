# SPDX-License-Identifier: Apache-2.0
"""Where AFD keeps what it can make again: ``AFD_CACHE_DIR``, or ``~/.cache/afd``."""

from __future__ import annotations

import os
from pathlib import Path

from afd.errors import ConfigError


def cache_dir() -> Path:
    """The cache directory, which may not exist yet.

    Raises :class:`ConfigError` when there is no home directory to put it in.
    """
    chosen = os.environ.get("AFD_CACHE_DIR", "")
    if chosen:
        return Path(chosen).absolute()
    try:
        return Path.home() / ".cache" / "afd"
    except RuntimeError:
        raise ConfigError(
            f"no home directory is known for uid {os.geteuid()}; set AFD_CACHE_DIR to a writable directory"
        ) from None
