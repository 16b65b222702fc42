# SPDX-License-Identifier: Apache-2.0
"""How much disk the build of an image takes at most, how large the image is, and which of its layers are.

An engine keeps what it builds on some file system; how much its free space falls while it builds is what a person must
have. Other programs that write meanwhile count too, so the figure is an upper bound. scripts/image.py prints all of it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

SHOWN = 5
_SAMPLE_S = 0.5
# Where each engine says that it keeps its files; the words after them give JSON.
_STORES = {
    "docker": (("docker", "info", "--format", "{{json .}}"), ("DockerRootDir",)),
    "podman": (("podman", "info", "--format", "json"), ("store", "graphRoot")),
    "buildah": (("buildah", "info"), ("store", "GraphRoot")),
}
_NOISE = re.compile(r"^(/bin/(ba)?sh -\S+( pipefail)?( -c)? )?(#\(nop\) )?|^\|\d+ .*?(?=/bin/)")


@dataclass(frozen=True)
class Layer:
    """``size`` in bytes; ``made_by`` is the instruction, shortened."""

    size: int
    made_by: str


class Peak:
    """The least free space of the file systems that a build writes to, while this is entered."""

    def __init__(self, *directories: Path) -> None:
        # One for each file system: counted twice it would be twice as much.
        self._directories = list(
            {os.stat(path).st_dev: path for path in directories if path.exists()}.values()
        )
        self._before = [self._free(path) for path in self._directories]
        self._least = list(self._before)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="disk", daemon=True)

    @property
    def bytes(self) -> int:
        return sum(before - least for before, least in zip(self._before, self._least, strict=True))

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self._least = [
                min(least, self._free(path))
                for least, path in zip(self._least, self._directories, strict=True)
            ]
            if self._ended.wait(_SAMPLE_S):
                return

    @staticmethod
    def _free(path: Path) -> int:
        return shutil.disk_usage(path).free


def watched(engine: str, environment: Mapping[str, str]) -> Peak | None:
    """A watch over what ``engine`` writes to; None when that is not on this machine."""
    words, keys = _STORES[engine]
    try:
        found = json.loads(_output(words, environment))
        for key in keys:
            found = found[key]
    except (OSError, subprocess.CalledProcessError, ValueError, KeyError, TypeError):
        return None
    if not isinstance(found, str) or not Path(found).is_dir():
        return None
    temporary = Path(environment.get("TMPDIR") or "/var/tmp")
    return Peak(Path(found), temporary, Path(tempfile.gettempdir()))


def size(engine: str, reference: str, environment: Mapping[str, str]) -> int | None:
    """Bytes of an image, unpacked; None when ``engine`` does not say."""
    words = {
        "docker": ("docker", "image", "inspect", "--format", "{{.Size}}", reference),
        "podman": ("podman", "image", "inspect", "--format", "{{.Size}}", reference),
        "buildah": ("buildah", "images", "--json", reference),
    }[engine]
    try:
        text = _output(words, environment)
        return int(text) if engine != "buildah" else _bytes(json.loads(text)[0]["size"])
    except (OSError, subprocess.CalledProcessError, ValueError, KeyError, IndexError):
        return None


def layers(engine: str, reference: str, environment: Mapping[str, str]) -> list[Layer]:
    """The layers of an image that have something in them, the largest first. buildah does not list them."""
    if engine == "buildah":
        return []
    form = "json" if engine == "podman" else "{{json .}}"
    words = (engine, "history", "--human=false", "--no-trunc", "--format", form, reference)
    try:
        text = _output(words, environment)
        rows = json.loads(text) if engine == "podman" else [json.loads(line) for line in text.splitlines()]
        found = [
            Layer(int(row.get("size", row.get("Size"))), instruction(row.get("CreatedBy") or ""))
            for row in rows
        ]
    except (OSError, subprocess.CalledProcessError, ValueError, TypeError):
        return []
    return sorted((layer for layer in found if layer.size), key=lambda layer: -layer.size)


def instruction(made_by: str) -> str:
    """What made a layer, without the shell and the arguments that stand before it, on one line."""
    text = " ".join(_NOISE.sub("", made_by).split())
    text = _NOISE.sub("", text)
    text = re.sub(r"--mount=\S+ ", "", text).strip() or "the base image"
    return text if len(text) <= 90 else text[:87] + "..."


def said(count: int) -> str:
    """Bytes as a person reads them: decimal, as engines do."""
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def lines(peak: Peak | None, total: int | None, found: list[Layer]) -> list[str]:
    """What `make image` says at the end."""
    told = []
    if peak is None:
        told.append("peak disk use of the build: not known; the engine keeps its files on another machine")
    else:
        told.append(f"peak disk use of the build: {said(peak.bytes)} (free space fell by that at most)")
    if total is not None:
        told.append(f"size of the image: {said(total)}")
    told += [f"  layer of {said(layer.size)}: {layer.made_by}" for layer in found[:SHOWN]]
    return told


def _bytes(text: str) -> int:
    """Such as "6.3 GB"."""
    number, unit = text.split()
    return int(float(number) * {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}[unit.upper()])


def _output(words: tuple[str, ...], environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        words, env=dict(environment), check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    return done.stdout
