# SPDX-License-Identifier: Apache-2.0
"""Native vLLM that says which of AFD's modules each of its processes has loaded, when it gets SIGUSR1."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from afd.launch.api_server import main
from tests.system.variants import MODULES_DIRECTORY


def native(argv: Sequence[str]) -> None:
    """The API server; the engine and the worker inherit the handler."""
    signal.signal(signal.SIGUSR1, _say)
    main(argv)


def _say(*_: object) -> None:
    found = sorted(name for name in sys.modules if name == "afd" or name.startswith("afd."))
    path = Path(os.environ[MODULES_DIRECTORY]) / str(os.getpid())
    path.with_suffix(".new").write_text(json.dumps(found))
    path.with_suffix(".new").rename(path.with_suffix(".json"))
