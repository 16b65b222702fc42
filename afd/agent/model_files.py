# SPDX-License-Identifier: Apache-2.0
"""From the MODEL a user names to a local directory, its fingerprint, and the certainty that its files can be
read.

The agent does this before it starts anything, because the libraries that read models later speak of "no such
file" when they mean "no permission", and notice a truncated download minutes after the start.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from afd.agent import safetensors_files
from afd.agent.safetensors_files import explain, open_model_file
from afd.agent.threads import signals_blocked
from afd.config.kinds import show
from afd.errors import AFDError, ConfigError, ResourceError

BUILTIN = "builtin:"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_SMALL_FILES = ("*.json", "*.model", "*.jinja", "*.txt", "*.tiktoken", "*.py")
_WEIGHT_FILES = ("*.safetensors",)
_NESTED_WEIGHTS = "*/*.safetensors"
"""vLLM reads those of the top only, and this is what a pattern of the hub matches below it."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_LARGEST_JSON = 256 << 20
# Differ between copies of one model without changing it.
_VOLATILE = {"_name_or_path", "transformers_version"}


@dataclass(frozen=True)
class ModelFingerprint:
    """What both roles must agree on about the model. ``num_experts`` and ``top_k`` are 0 for a dense model.

    ``config_digest`` is over the whole ``config.json`` with its overrides, without formatting and without the keys
    that tools add.
    """

    architecture: str
    hidden_size: int
    num_layers: int
    num_experts: int
    top_k: int
    dtype: str
    quantisation: str
    vocab_size: int
    config_digest: str


@dataclass(frozen=True)
class HubModel:
    """A model on the Hugging Face hub. ``cache`` is the directory to download to, the hub's own when it is None;
    ``token`` lets read a model that is not public, the user's login when it is None. ``ignored`` are patterns of
    weights that are left where they are, as vLLM's --ignore-patterns.
    """

    name: str
    revision: str | None = None
    cache: str | None = None
    token: str | None = field(default=None, repr=False)
    ignored: Sequence[str] = ()

    def download(self, *, weights: bool, deadline_s: float = 60.0) -> Path:
        """Download it, or all but its weights, and return its directory, whose name is the commit.

        ``deadline_s`` bounds the wait for the hub's first answer, not a download that is moving. Raises ConfigError,
        and ResourceError when there is no room for it.
        """
        # Here and not above: a third of a second that local models do not need.
        from huggingface_hub import snapshot_download

        def download(*patterns: str, but: Sequence[str] = ()) -> str:
            return snapshot_download(
                self.name,
                revision=self.revision,
                cache_dir=self.cache,
                token=self.token,
                allow_patterns=list(patterns),
                ignore_patterns=list(but),
                etag_timeout=10,
            )

        with self._explained():
            _within(deadline_s, f"the hub about {self.name!r}", lambda: download("config.json"))
            directory = download(*_SMALL_FILES)
            if weights:  # for themselves: a pattern of the user's is not about config.json
                directory = download(*_WEIGHT_FILES, but=(*self.ignored, _NESTED_WEIGHTS))
            return Path(directory)

    def reach(self) -> None:
        """Ask the hub about it. Raises ConfigError with the reason when that does not work: :meth:`download` is content
        with what it finds in its cache then, be that complete or not.
        """
        from huggingface_hub import HfApi

        with self._explained():
            HfApi(token=self.token).model_info(self.name, revision=self.revision, timeout=10)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except AFDError:
            raise
        except Exception as error:  # of its HTTP library, or of what a proxy answers in the hub's place
            if isinstance(error, OSError) and error.errno in (*_FULL, *_FORBIDDEN):
                raise self._not_written(error) from error
            words = next((line.strip() for line in str(error).splitlines() if line.strip()), "no words")
            known = type(error).__module__.startswith(("huggingface_hub", "builtins"))
            reason = words if known and isinstance(error, OSError) else f"{type(error).__name__}: {words}"
            raise ConfigError(
                f"model {self.name!r}: not a local directory, and not available from the hub ({reason}); give a local "
                f"directory, or check the name, the network and HF_TOKEN{_builtin_meant(self.name)}"
            ) from error

    def _not_written(self, error: OSError) -> AFDError:
        """What is wrong with the directory to download to."""
        from huggingface_hub.constants import HF_HUB_CACHE

        cache = self.cache or HF_HUB_CACHE
        what = f"model {self.name!r}: the download to {cache} failed ({error.strerror}"
        if error.errno in _FULL:
            return ResourceError(f"{what}); free space there, or set HF_HOME or --download-dir")
        where = f": {error.filename}" if error.filename else ""
        return ConfigError(
            f"{what}{where}); let uid {os.geteuid()} write there, or set HF_HOME or --download-dir to a directory of "
            "its own"
        )


def locate(
    model: str,
    revision: str | None = None,
    *,
    cache: str | None = None,
    token: str | None = None,
    ignored: Sequence[str] = (),
) -> Path | HubModel:
    """The local directory of ``model``: a path or ``builtin:<name>``; or, for any other id, the model on the hub.

    The others are more fields of :class:`HubModel`. Raises :class:`ConfigError` for what can be neither.
    """
    if model.startswith(BUILTIN):
        # Here and not above: NumPy is a tenth of a second that no other kind of model needs.
        with signals_blocked():  # its threads are not the ones to stop a role
            from afd.testing.tiny import resolve_builtin

        return resolve_builtin(model)
    path = Path(model).expanduser()
    if model and _exists(path):
        return path.absolute()
    if model.startswith(("/", "./", "../", "~")) or not _HUB_ID.fullmatch(model):
        raise ConfigError(
            f"model {show(model)}: there is no such directory; give a local directory, builtin:NAME or a hub id"
        )
    return HubModel(model, revision, cache, token, ignored)


def resolve(model: str, *, deadline_s: float = 60.0) -> Path:
    """The local directory of ``model``, which is downloaded when it is on the hub. Raises :class:`ConfigError`."""
    found = locate(model)
    return found.download(weights=True, deadline_s=deadline_s) if isinstance(found, HubModel) else found


def inspect(
    directory: Path, *, weights: bool = True, overrides: Mapping[str, Any] | None = None
) -> ModelFingerprint:
    """Check every file of the checkpoint in ``directory`` and return its fingerprint.

    ``weights=False`` is for ``load_format=dummy``: then no weights need to be there. ``overrides`` are the keys of
    ``config.json`` that vLLM is told to replace. Raises :class:`ConfigError` with the file, what is wrong with it, and
    what to do.
    """
    config = overridden(read_config(directory), overrides or {})
    try:
        files = sorted(directory.iterdir())
    except OSError as error:
        raise explain(error, directory) from None
    for file in files:
        if file.suffix == ".json":
            _read_json(file)
        elif any(file.match(pattern) for pattern in (*_SMALL_FILES, *_WEIGHT_FILES)):
            with open_model_file(file):
                pass
    if weights:
        safetensors_files.check(directory)
    return fingerprint(config, directory)


def read_config(directory: Path) -> dict[str, Any]:
    """``config.json`` of ``directory``. Raises :class:`ConfigError`."""
    if not _exists(directory):
        raise ConfigError(f"{directory}: there is no such directory")
    if not directory.is_dir():
        raise ConfigError(
            f"{directory}: is a file; give the directory with config.json and the safetensors files"
        )
    path = directory / "config.json"
    if not _exists(path):
        raise ConfigError(f"{directory}: no config.json, so this is not the directory of a model")
    config = _read_json(path)
    if not isinstance(config, dict):
        raise ConfigError(f"{path}: a JSON object is expected, not {type(config).__name__}")
    return config


def fingerprint(config: Mapping[str, Any], where: Path) -> ModelFingerprint:
    """The fingerprint of a model with this ``config.json``, which came from ``where``. Raises
    :class:`ConfigError`.
    """
    path = where / "config.json"
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise ConfigError(f"{path}: 'architectures' must name the model's class, it is {show(names)}")
    # Models with several modalities keep the language model's sizes one level down.
    nested = config.get("text_config")
    sizes = nested if isinstance(nested, dict) and "hidden_size" not in config else config

    def number(*keys: str, absent: int | None = None) -> int:
        for key in keys:
            value = sizes.get(key)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ConfigError(f"{path}: {key!r} must be a whole number, it is {show(value)}")
            return value
        if absent is None:
            raise ConfigError(f"{path}: {keys[0]!r} is missing")
        return absent

    quantisation = config.get("quantization_config") or {}
    if not isinstance(quantisation, dict):
        raise ConfigError(f"{path}: 'quantization_config' must be an object, it is {show(quantisation)}")
    stable = {key: value for key, value in config.items() if key not in _VOLATILE}
    return ModelFingerprint(
        architecture=names[0],
        hidden_size=number("hidden_size"),
        num_layers=number("num_hidden_layers"),
        num_experts=number("n_routed_experts", "num_experts", "num_local_experts", absent=0),
        top_k=number("num_experts_per_tok", absent=0),
        dtype=str(sizes.get("dtype") or sizes.get("torch_dtype") or "unknown"),
        quantisation=str(quantisation.get("quant_method", "unknown")) if quantisation else "none",
        vocab_size=number("vocab_size"),
        config_digest=hashlib.sha256(json.dumps(stable, sort_keys=True).encode()).hexdigest()[:16],
    )


def overridden(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """vLLM's rule: an object changes the keys that it has, any other value takes the old one's place."""
    merged = dict(config)
    for key, value in overrides.items():
        before = merged.get(key)
        merged[key] = (
            overridden(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
        )
    return merged


def _exists(path: Path) -> bool:
    """Like ``Path.exists``, but a directory that may not be searched is an error and not an absence."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise explain(error, path) from None
    return True


def _read_json(path: Path) -> Any:
    with open_model_file(path) as file:
        if os.fstat(file.fileno()).st_size > _LARGEST_JSON:
            raise ConfigError(f"{path}: too large to be a JSON file of a model")
        content = file.read()
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid JSON ({error}); download the file again") from None


def _builtin_meant(model: str) -> str:
    from afd.testing.tiny import meant

    return meant(model)


def _within(deadline_s: float, what: str, call: Callable[[], str]) -> str:
    """The result of ``call``, or :class:`ConfigError` when it takes longer than ``deadline_s`` seconds."""
    results: list[str] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001 (raised again in the waiting thread)
            errors.append(error)

    # A daemon: a library that hangs must not keep the process alive after we have given up.
    thread = threading.Thread(target=run, name="afd-hub", daemon=True)
    thread.start()
    thread.join(deadline_s)
    if errors:
        raise errors[0]
    if not results:
        raise ConfigError(
            f"no answer from {what} within {deadline_s:g} s; check the network, or give a local directory"
        )
    return results[0]
