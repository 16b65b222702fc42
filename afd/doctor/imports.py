# SPDX-License-Identifier: Apache-2.0
"""The child of the checks in ``loading``: ``python -m afd.doctor.imports WHAT SOC [argument …]``."""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint

from afd.doctor import child


def torch(soc: str, _: Sequence[str]) -> dict[str, object]:
    """torch, and what goes with it on ``soc``."""
    found = importlib.import_module("torch")
    if soc != "cpu":
        importlib.import_module("afd.doctor.ascend")  # it imports the device's package
    return {"torch": str(found.__version__)}


def extensions(soc: str, files: Sequence[str]) -> dict[str, object]:
    """Every symbol of ``files`` is looked up at once, not at its first use."""
    torch(soc, ())
    for file in files:
        ctypes.CDLL(file, os.RTLD_NOW)
    return {}


def entry_points(_: str, entries: Sequence[str]) -> dict[str, object]:
    """What each entry ("name=module:object") says when it is loaded, if that fails."""
    broken = {}
    for entry in entries:
        name, _, value = entry.partition("=")
        try:
            EntryPoint(name, value, "").load()
        except Exception as error:  # noqa: BLE001 (any error of theirs is the answer)
            broken[name] = f"{type(error).__name__}: {error}"
    return {"broken": broken}


PROGRAMS = {"torch": torch, "extensions": extensions, "entry-points": entry_points}


if __name__ == "__main__":
    child.answer(PROGRAMS[sys.argv[1]](sys.argv[2], sys.argv[3:]))
