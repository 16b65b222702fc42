# SPDX-License-Identifier: Apache-2.0
"""``/etc/afd/image.json``: what an image was built from, written inside the build and read by ``afd doctor``.

A container cannot see the labels of its image, so this file is the copy it can read. The `verify` stage of the build
writes it after it has compared every value with what is installed; from then on a difference is a fault of the image.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from afd.errors import ConfigError

PATH = "/etc/afd/image.json"
SCHEMA = 1

_Word = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
_Version = Annotated[str, msgspec.Meta(pattern=r"^\d+(\.\d+)*([a-z0-9.+]*)$")]
_Commit = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{40}$")]
_Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
_Digest = Annotated[str, msgspec.Meta(pattern=r"^sha256:[0-9a-f]{64}$")]
_Date = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z$")]
_Absolute = Annotated[str, msgspec.Meta(pattern=r"^/[^:]+$")]

# "built" from the pinned source in this image's build; "user" brought by a person as a file with a checked hash.
Provenance = Literal["built", "user", "none"]


class AFD(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``revision`` is the commit of the checkout, "unknown" when it was built from something else, such as an archive;
    ``dirty`` is whether that checkout had changes.
    """

    version: _Version
    revision: Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{40}|unknown)$")]
    dirty: bool


class Base(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The image in FROM. ``digest`` is null when it was not resolved: the build took what the tag was that day."""

    tag: _Word
    digest: _Digest | None


class VLLM(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``distribution`` is the package that carries vLLM here; ``commit`` is upstream's of that version."""

    distribution: _Word
    version: _Version
    commit: _Commit


class Operators(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``a2e`` stands for the pair a2e and e2a; ``commit`` is the source they were built from."""

    a2e: Provenance
    cam: Provenance
    commit: _Commit | None


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One image. The CPU image has null where there is no such thing there.

    ``packages`` maps every distribution that the lock installs, and the ones built from source, to the version that is
    expected. ``transports`` are those that work in this image, the default first. ``driver_min`` is "unverified" when
    nobody has established one. ``device_nodes`` are those every container needs besides its own cards; ``mounts`` are
    paths of the host that belong at the same path in the container. ``lock_sha256`` is of the lock file that was used.
    """

    schema: Literal[1]
    afd: AFD
    soc: Literal["cpu", "a2", "a3", "a5"]
    soc_version: _Word | None
    os: _Word
    arch: Literal["amd64", "arm64"]
    base: Base
    python: _Version
    packages: dict[str, _Version]
    cann: _Version | None
    torch: _Version
    torch_npu: _Version | None
    triton_ascend: _Version | None
    vllm: VLLM
    vllm_ascend: _Commit | None
    operators: Operators
    transports: Annotated[tuple[_Word, ...], msgspec.Meta(min_length=1)]
    lock_sha256: _Sha256
    driver_min: Annotated[str, msgspec.Meta(pattern=r"^(unverified|\d+(\.\d+)+[A-Za-z0-9.]*)$")] | None
    device_nodes: tuple[_Absolute, ...]
    mounts: tuple[_Absolute, ...]
    created: _Date


def decode(content: bytes, name: str = PATH) -> Manifest:
    """Raises ConfigError that says ``name`` and which key is wrong."""
    try:
        return msgspec.json.decode(content, type=Manifest)
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"{name}: {error}; this image was not built by its recipe, build it anew"
        ) from error


def encode(manifest: Manifest) -> bytes:
    """The file's text, the same bytes for the same manifest. Raises ConfigError for values outside the schema."""
    text = json.dumps(msgspec.to_builtins(manifest), indent=2, sort_keys=True) + "\n"
    decode(text.encode(), "image.json")
    return text.encode()


def read(root: Path = Path("/")) -> Manifest | None:
    """The manifest of the image whose files are below ``root``; None when this is no image of ours."""
    path = root / PATH.lstrip("/")
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    return decode(content, str(path))


def json_schema() -> dict[str, Any]:
    """The JSON schema of the file, for the documentation."""
    return msgspec.json.schema(Manifest)
