# SPDX-License-Identifier: Apache-2.0
"""Building a checkpoint as one visible step, and the cache of the built-in ones."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
import time
from dataclasses import asdict, replace
from errno import (
    EACCES,
    EDQUOT,
    EEXIST,
    ELOOP,
    ENAMETOOLONG,
    ENOENT,
    ENOSPC,
    ENOTDIR,
    ENOTEMPTY,
    EPERM,
    EROFS,
)
from pathlib import Path
from typing import Any

from afd.cache import cache_dir
from afd.config.kinds import nearest
from afd.errors import AFDError, ConfigError, ResourceError
from afd.testing.tiny import tokens, weights
from afd.testing.tiny.model import BUILTINS, DTYPES, TinyModel, config_json, tensors

PREFIX = "builtin:"
_MANIFEST = "afd_model.json"
_NOT_WRITABLE = (EACCES, ELOOP, ENAMETOOLONG, ENOENT, ENOTDIR, EPERM, EROFS)


def resolve_builtin(name: str) -> Path:
    """The directory of the checkpoint "builtin:<name>", built on first use and kept in the cache directory.

    Safe when several processes ask at once: each builds in private, the first to finish publishes, and a
    directory that can be seen is complete. Raises :class:`ConfigError` for an unknown name and for a cache directory
    that cannot be written, :class:`ResourceError` when the disk is full.
    """
    short = name.removeprefix(PREFIX)
    if short not in BUILTINS:
        known = " and ".join(PREFIX + builtin for builtin in BUILTINS)
        raise ConfigError(f"there is no built-in model {name!r}{meant(short) or f'; there are {known}'}")
    model = BUILTINS[short]
    target = cache_dir() / "models" / f"{short}-{_recipe(model)}"
    if not _complete(target):
        build(model, target)
    return target


def meant(name: str) -> str:
    """A hint such as ``; did you mean 'builtin:tiny-deepseek-v2'?``, or the empty string when no built-in is close."""
    return nearest(name, tuple(BUILTINS)).replace("'", f"'{PREFIX}", 1)


def build(model: TinyModel | str, path: Path | str, seed: int | None = None) -> Path:
    """Write the checkpoint of ``model`` (or of the built-in of that name) as the directory ``path``, and
    return it.

    A complete checkpoint at ``path`` is replaced as one. Raises :class:`ConfigError` or
    :class:`ResourceError`.
    """
    if isinstance(model, str):
        if model not in BUILTINS:
            raise ConfigError(f"there is no built-in model {model!r}{meant(model)}")
        model = BUILTINS[model]
    model = model if seed is None else replace(model, seed=seed)
    model.validate()
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target.parent)
        private = Path(tempfile.mkdtemp(prefix=".building-", dir=target.parent))
        try:
            _write_all(model, private)
            _publish(private, target)
        finally:
            shutil.rmtree(private, ignore_errors=True)
    except OSError as error:
        raise _explain(error, model, target.parent) from error
    return target


def _write_all(model: TinyModel, directory: Path) -> None:
    contents: dict[str, Any] = {
        "config.json": config_json(model),
        "generation_config.json": {"bos_token_id": tokens.BOS, "eos_token_id": tokens.EOS},
        "tokenizer.json": tokens.tokenizer_json(model.vocab_size),
        "tokenizer_config.json": tokens.tokenizer_config(model.max_position),
        "special_tokens_map.json": tokens.special_tokens_map(),
    }
    contents.update(weights.write(model, directory))
    for name, value in contents.items():
        _write_json(directory / name, value)
    sizes = {file.name: file.stat().st_size for file in sorted(directory.iterdir())}
    _write_json(directory / _MANIFEST, {"model": asdict(model), "bytes": sizes})
    for file in directory.iterdir():
        file.chmod(0o644)  # the umask must not hide weights from a role that runs as another user
    directory.chmod(0o755)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=True) + "\n", encoding="ascii")


def _recipe(model: TinyModel) -> str:
    """Changes whenever the sizes or the code that builds change, so that a cache is never stale."""
    code = b"".join(file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py")))
    return hashlib.sha256(json.dumps(asdict(model), sort_keys=True).encode() + code).hexdigest()[:12]


def _complete(path: Path) -> bool:
    """Whether every file that was published is still there with its size: cleaners of old files take some."""
    try:
        sizes = json.loads((path / _MANIFEST).read_text())["bytes"]
        return all((path / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError):
        return False


def _publish(private: Path, target: Path) -> None:
    """Move ``private`` to ``target`` in one step, replacing what is there unless another process just did."""
    for _ in range(100):
        try:
            os.rename(private, target)
            return
        except OSError as error:
            if error.errno not in (EEXIST, ENOTEMPTY):
                raise
        mine = (private / _MANIFEST).read_bytes()
        if _complete(target) and (target / _MANIFEST).read_bytes() == mine:
            return
        old = Path(tempfile.mkdtemp(prefix=".building-", dir=target.parent))
        try:
            os.rename(target, old / "old")
        except FileNotFoundError:
            pass  # another process is replacing it as well: look again
        finally:
            shutil.rmtree(old, ignore_errors=True)
    raise ResourceError(f"{target}: other processes keep replacing this checkpoint")


def _sweep(parent: Path) -> None:
    """Remove what builds that were killed left behind more than an hour ago."""
    for left in parent.glob(".building-*"):
        try:
            if time.time() - left.stat().st_mtime > 3600:
                shutil.rmtree(left, ignore_errors=True)
        except FileNotFoundError:
            continue


def _explain(error: OSError, model: TinyModel, parent: Path) -> AFDError:
    """A directory that can never be written was chosen wrongly; a full or broken disk is a matter of the machine."""
    needed = sum(math.prod(shape) for _, shape in tensors(model)) * DTYPES[model.dtype][1]
    what = error.strerror or str(error)
    if error.errno in (ENOSPC, EDQUOT):
        what = f"the disk is full ({needed / 2**20:.0f} MiB are needed)"
    kind = ConfigError if error.errno in _NOT_WRITABLE else ResourceError
    return kind(
        f"cannot write a checkpoint under {parent}: {what}; set AFD_CACHE_DIR to a directory with space that uid "
        f"{os.geteuid()} can write"
    )
