# SPDX-License-Identifier: Apache-2.0
"""Changed copies of checkpoints, for controls that must fail."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path


def with_zeros(source: Path, target: Path, part: str) -> tuple[str, ...]:
    """Copy a checkpoint, with zeros in every tensor whose name contains ``part``; returns their names.

    ``config.json`` stays as it is, so that the copy passes for the original.
    """
    shutil.copytree(source, target)
    changed = []
    for path in target.glob("*.safetensors"):
        content = bytearray(path.read_bytes())
        start = 8 + struct.unpack("<Q", content[:8])[0]
        header = json.loads(content[8:start])
        for name, entry in header.items():
            if part in name:
                first, end = entry["data_offsets"]
                content[start + first : start + end] = bytes(end - first)
                changed.append(name)
        path.chmod(0o600)
        path.write_bytes(content)
    return tuple(changed)
