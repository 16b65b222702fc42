# SPDX-License-Identifier: Apache-2.0
"""Where a run happened, for its record (:class:`afd.support.records.Record`): sources, installed stack, devices, time.
Nothing that is private to the machine goes into a record: see :func:`scrub`.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import platform
import re
import subprocess
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from afd import pins
from afd.agent.cgroup import memory_limit
from afd.agent.cores import Cores
from afd.images import manifest
from afd.images.command import PREFIX
from afd.images.manifest import Manifest
from afd.support.records import Commits, Devices, Stack

_NAMED = ("torch", "triton", "transformers", "tokenizers", "safetensors", "numpy", "msgspec", "aiohttp")


def now() -> str:
    """The present, as a record writes it."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def scrub(text: str) -> str:
    """``text`` without what is private to one machine: home, working and temporary directories, escape codes."""
    for private, public in ((os.getcwd(), "."), (str(Path.home()), "~"), (tempfile.gettempdir(), "$TMPDIR")):
        if len(private) > 1:
            text = text.replace(private, public)
    return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)[:2000]


def commits(tree: Path, root: Path = Path("/")) -> Commits:
    """Where the code of this run comes from: the Git checkout at ``tree``, or what the image whose files are below
    ``root`` says about itself when ``tree`` is a part of it; and the pins for upstream.
    """

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", str(tree), *arguments]
        try:
            run = subprocess.run(command, capture_output=True, text=True, timeout=30)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return run.stdout.strip() if run.returncode == 0 else None

    # A checkout that somebody mounted into a container is not what the image was built from.
    image = manifest.read(root) if tree.is_relative_to(root / PREFIX) else None
    if image is not None:
        return commits_of(image)
    made = [f":(exclude){path}" for path in ("tests/records", "docs/support-matrix.md", "docs/faults.md")]
    head = git("rev-parse", "HEAD")
    changes = git("status", "--porcelain", "--", ".", *made)
    pinned = pins.load()
    return Commits(
        afd=head or "unknown", dirty=changes != "", vllm=pinned.vllm_commit, vllm_ascend=pinned.ascend_commit
    )


def commits_of(image: Manifest) -> Commits:
    """What ``image`` was built from. It counts as dirty when nobody can look that up."""
    source = image.afd
    return Commits(
        afd=source.revision,
        dirty=source.dirty or source.revision == "unknown",
        vllm=image.vllm.commit,
        vllm_ascend=image.vllm_ascend or pins.load().ascend_commit,
    )


def stack() -> Stack:
    """What is installed: the version of each package that matters by name, and a digest over all of them."""
    return _stack(
        {
            re.sub(r"[-_.]+", "-", name).lower(): distribution.version
            for distribution in metadata.distributions()
            if (name := distribution.metadata["Name"])
        },
        platform.python_version(),
    )


def stack_of(image: Manifest) -> Stack:
    """The same of an image that runs on this machine, from its manifest."""
    return _stack(image.packages, image.python)


def _stack(installed: Mapping[str, str], python: str) -> Stack:
    wanted = [*_NAMED, *(row.distribution for row in pins.load().platforms.values())]
    versions = {name: installed[name] for name in sorted(set(wanted)) if name in installed}
    versions["python"] = python
    versions["kernel"] = f"{platform.system()} {platform.release()}"
    listing = "\n".join(f"{name}=={version}" for name, version in sorted(installed.items()))
    return Stack(versions=versions, digest=hashlib.sha256(listing.encode()).hexdigest()[:16])


def cpu_devices() -> Devices:
    """The processor cores that this process may use, and the memory it may use."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = memory_limit()
    return Devices(
        kind="cpu",
        count=Cores.read().usable,
        architecture=platform.machine(),
        memory_bytes=total if limit is None else min(total, limit),
    )
