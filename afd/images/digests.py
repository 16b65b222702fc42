# SPDX-License-Identifier: Apache-2.0
"""``docker/digests.json``: what the tags of the base images were when ``make digests`` last looked.

Tags of CANN images have been pointed at something else before. With a digest a build takes exactly that image; without
one it takes what the tag is that day, says so, and is no release.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from afd.errors import ConfigError

FILE = "docker/digests.json"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def read(checkout: Path, tags: tuple[str, ...]) -> Mapping[str, str]:
    """Tag -> digest of the index, for those of ``tags`` that are resolved. Raises ConfigError for another content."""
    path = checkout / FILE
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"there is no {FILE}; run: make digests") from error
    except ValueError as error:
        raise ConfigError(f"{FILE} is not JSON: {error}; run: make digests") from error
    if not isinstance(document, dict) or set(document) != set(tags):
        raise ConfigError(f"{FILE} does not list the base images of afd/pins.toml; run: make digests")
    for tag, digest in document.items():
        if digest is not None and not (isinstance(digest, str) and _DIGEST.fullmatch(digest)):
            raise ConfigError(f"{FILE}: {tag} has {digest!r} for a digest; run: make digests")
    return MappingProxyType({tag: digest for tag, digest in document.items() if digest is not None})


def text(digests: Mapping[str, str | None]) -> str:
    """The file for ``digests``, the same bytes for the same digests."""
    return json.dumps(dict(sorted(digests.items())), indent=2) + "\n"


def pinned(tag: str, digests: Mapping[str, str]) -> str:
    """The reference to build from: ``tag@digest``, or the tag alone when it is not resolved."""
    digest = digests.get(tag)
    return f"{tag}@{digest}" if digest else tag
