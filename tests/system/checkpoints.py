# SPDX-License-Identifier: Apache-2.0
"""Changed copies of checkpoints."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path


def with_another_name(source: Path, target: Path, known: str, unknown: str) -> Path:
    """Copy a checkpoint of one file with ``unknown`` for ``known`` (of the same length) in its tensors' names."""
    shutil.copytree(source, target)
    path = target / "model.safetensors"
    content = path.read_bytes()
    start = 8 + struct.unpack("<Q", content[:8])[0]
    header = content[8:start].replace(known.encode(), unknown.encode())
    assert len(header) == start - 8 and header != content[8:start]
    path.write_bytes(content[:8] + header + content[start:])
    return target
