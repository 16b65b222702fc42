# SPDX-License-Identifier: Apache-2.0
"""Checks safetensors checkpoints without loading them: all files there, readable, complete and what they
claim.

Only headers are read, so this takes milliseconds for any size.
"""

from __future__ import annotations

import json
import os
import re
import stat
import struct
from pathlib import Path
from typing import Any, BinaryIO

from afd.errors import ConfigError

_INDEX = "model.safetensors.index.json"
_NUMBERED = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})\.safetensors")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
# The format's own limit on headers.
_LARGEST_HEADER = 100_000_000
_LFS = b"version https://git-lfs"


def check(directory: Path) -> None:
    """Raise :class:`ConfigError` unless ``directory`` holds a complete safetensors checkpoint."""
    files = {path.name: path for path in directory.iterdir()}
    shards = sorted(name for name in files if name.endswith(".safetensors"))
    index = _read_index(files[_INDEX]) if _INDEX in files else {}
    if not shards and not index:
        pickles = sorted(name for name in files if name.endswith(_PICKLES))
        if pickles:
            raise ConfigError(
                f"{directory / pickles[0]}: pickled weights are not loaded, because loading them runs code from the "
                "file; convert the model to safetensors"
            )
        raise ConfigError(f"{directory}: no *.safetensors file, so no weights")
    _check_numbering(directory, shards)
    for name in sorted(set(index.values()) - set(shards)):
        raise ConfigError(
            f"{directory / name}: {_INDEX} names this file, but it is absent; download it again"
        )
    tensors = {name: read_header(files[name]) for name in shards}
    for tensor, name in index.items():
        if tensor not in tensors[name]:
            raise ConfigError(
                f"{directory / name}: {_INDEX} says that {tensor} is in this file, but it is not"
            )


def read_header(path: Path) -> dict[str, Any]:
    """The tensors of one safetensors file: name to dtype, shape and offsets. Raises :class:`ConfigError`."""
    with open_model_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(8)
        if _LFS.startswith(start) and start:
            raise ConfigError(f"{path}: a Git LFS pointer, not weights; run: git lfs pull")
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else _LARGEST_HEADER + 1
        if length > _LARGEST_HEADER:
            raise ConfigError(f"{path}: not a safetensors file ({size} bytes); download it again")
        text = file.read(length)
        if len(text) < length:
            raise ConfigError(
                f"{path}: truncated: its header has {length} bytes, but the file ends after {size}; download it again"
            )
    try:
        header = json.loads(text)
        tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
        end = 8 + length + max((int(entry["data_offsets"][1]) for entry in tensors.values()), default=0)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        raise ConfigError(f"{path}: its header is damaged; download it again") from None
    if size < end:
        raise ConfigError(f"{path}: truncated: {size} of {end} bytes are there; download it again")
    if size > end:
        raise ConfigError(f"{path}: {size - end} bytes more than its header says; download it again")
    return tensors


def open_model_file(path: Path) -> BinaryIO:
    """Open a file of a model for reading. Raises :class:`ConfigError` that says what is in the way."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise explain(error, path) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ConfigError(f"{path}: not a regular file")
    return open(descriptor, "rb")


def explain(error: OSError, path: Path) -> ConfigError:
    """What ``error`` means for somebody who wants to load ``path``."""
    if isinstance(error, PermissionError):
        blocked = _blocked(path)
        found = blocked.stat()
        wanted = "enter this directory" if blocked.is_dir() and blocked != path else "read this"
        return ConfigError(
            f"{blocked}: a permission problem: uid {os.geteuid()} may not {wanted} (mode "
            f"{stat.S_IMODE(found.st_mode):04o}, owner uid {found.st_uid}); run: chmod a+rX {blocked}"
        )
    if isinstance(error, FileNotFoundError) and path.is_symlink():
        return ConfigError(
            f"{path}: a link to {os.readlink(path)}, which is absent; download the model again"
        )
    return ConfigError(f"{path}: {error.strerror or error}")


def _blocked(path: Path) -> Path:
    """The first directory on the way to ``path`` that may not be entered, or ``path`` itself."""
    for parent in reversed(path.absolute().parents):
        if not os.access(parent, os.X_OK):
            return parent
    return path


def _read_index(path: Path) -> dict[str, str]:
    with open_model_file(path) as file:
        try:
            found = json.loads(file.read())["weight_map"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ConfigError(f"{path}: not an index of safetensors files; download it again") from None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found.values()):
        raise ConfigError(f"{path}: not an index of safetensors files; download it again")
    for name in found.values():
        if os.path.basename(name) != name or not name.endswith(".safetensors"):
            raise ConfigError(f"{path}: names {name!r}, which is not a safetensors file of this directory")
    return found


def _check_numbering(directory: Path, shards: list[str]) -> None:
    """Files named 00001-of-00004 and so on must all be there, with or without an index."""
    for name in shards:
        match = _NUMBERED.fullmatch(name)
        if match is None:
            continue
        for number in range(1, int(match[3]) + 1):
            other = f"{match[1]}-{number:05d}-of-{match[3]}.safetensors"
            if other not in shards:
                raise ConfigError(f"{directory / other}: absent, but {name} is there; download it again")
