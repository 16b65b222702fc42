# SPDX-License-Identifier: Apache-2.0
"""Rules about docker/*.Dockerfile: what hadolint does not know of, and what Buildah of Debian 12 cannot read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from tests.rules.sources import Source

LABELS = (
    *(f"org.opencontainers.image.{name}" for name in (
        "base.digest", "base.name", "created", "description", "licenses", "revision", "source", "title", "vendor",
        "version",
    )),
    "io.afd.soc", "io.afd.os", "io.afd.arch",
)  # fmt: skip

# A number with a dot in it, or a commit or digest. Ports, times and user numbers have none.
_VERSION = re.compile(r"\b\d+\.\d+[\w.]*|\b[0-9a-f]{40}\b|sha256:[0-9a-f]{8,}")
_HERE_DOCUMENT = re.compile(r"<<-?\s*['\"]?[A-Za-z_]")
# Of BuildKit's frontend only; the others of its kind are refused with these by Buildah.
_ONLY_BUILDKIT = re.compile(
    r"(COPY|ADD)\s.*--(link|parents|exclude|checksum)\b|RUN\s.*--(security|network)=", re.S
)
_DIRECTIVE = re.compile(r"^#\s*(syntax|check)\s*=", re.I)
_PLUGINS = re.compile(r"\bVLLM_PLUGINS\b|\bASCEND_(RT_)?VISIBLE_DEVICES\b|\bASCEND_RUNTIME_")


def dockerfiles(sources: Iterable[Source]) -> tuple[Source, ...]:
    return tuple(source for source in sources if source.path.endswith(".Dockerfile"))


def instructions(source: Source) -> Iterator[tuple[int, str]]:
    """Every instruction with the number of its first line; lines that go on are joined, comments are left out."""
    started, text = 0, ""
    for number, line in enumerate(source.text.splitlines(), 1):
        if line.lstrip().startswith("#") or (not text and not line.strip()):
            continue
        started = started if text else number
        text += line.rstrip()
        if text.endswith("\\"):
            text = text[:-1] + " "
            continue
        yield started, text
        text = ""


def version_literals(sources: Iterable[Source]) -> list[str]:
    """Versions, commits and digests: they are arguments, and come from the pins."""
    return [
        f"{source.path}:{number}: {match[0]} is a version; take it from afd/pins.toml as an ARG"
        for source in dockerfiles(sources)
        for number, text in instructions(source)
        for match in _VERSION.finditer(text)
    ]


def defaults(sources: Iterable[Source]) -> list[str]:
    """Arguments with a value of their own: without one, a build by hand fails instead of making another image."""
    return [
        f"{source.path}:{number}: {text} has a default; every argument comes from the command"
        for source in dockerfiles(sources)
        for number, text in instructions(source)
        if re.match(r"ARG\s+\w+=", text)
    ]


def only_buildkit(sources: Iterable[Source]) -> list[str]:
    """Syntax that one of the two builders does not have."""
    found = []
    for source in dockerfiles(sources):
        lines = source.text.splitlines()
        found += [
            f"{source.path}:{n}: {line}: a directive"
            for n, line in enumerate(lines, 1)
            if _DIRECTIVE.match(line)
        ]
        found += [
            f"{source.path}:{number}: {text.split()[0]} with what only BuildKit has"
            for number, text in instructions(source)
            if _ONLY_BUILDKIT.match(text) or _HERE_DOCUMENT.search(text)
        ]
    return found


def shells(sources: Iterable[Source]) -> list[str]:
    """Files in which a failed pipe would go on: SHELL with pipefail stands before the first RUN."""
    found = []
    for source in dockerfiles(sources):
        names = [text for _, text in instructions(source) if text.startswith(("RUN", "SHELL"))]
        if not names or not names[0].startswith("SHELL") or "pipefail" not in names[0]:
            found.append(f"{source.path}: no SHELL with pipefail before the first RUN")
    return found


def last_stage(sources: Iterable[Source]) -> list[str]:
    """What the stage that becomes the image lacks: labels, a user that is not root, a health check, an entry point."""
    found = []
    for source in dockerfiles(sources):
        stage: list[str] = []
        for _, text in instructions(source):
            stage = [] if text.startswith("FROM ") else [*stage, text]
        labels = " ".join(text for text in stage if text.startswith("LABEL "))
        found += [f"{source.path}: no label {name}" for name in LABELS if f"{name}=" not in labels]
        users = [text.split()[1] for text in stage if text.startswith("USER ")]
        if not users or users[-1] in ("root", "0"):
            found.append(f"{source.path}: the last user must not be root")
        for name in ("HEALTHCHECK ", "ENTRYPOINT "):
            if not any(text.startswith(name) for text in stage):
                found.append(f"{source.path}: no {name.strip()}")
    return found


def environment(sources: Iterable[Source]) -> list[str]:
    """ENV that would decide for every container, or leave an empty element in a path."""
    found = []
    for source in dockerfiles(sources):
        for number, text in instructions(source):
            if not text.startswith("ENV "):
                continue
            if match := _PLUGINS.search(text):
                found.append(f"{source.path}:{number}: ENV {match[0]} is for whoever starts a container")
            for name in ("LD_LIBRARY_PATH", "ASCEND_CUSTOM_OPP_PATH"):
                if re.search(rf":\$\{{?{name}\b(?!:\+)", text.replace(f"${{{name}:+:${{{name}}}}}", "")):
                    found.append(
                        f"{source.path}:{number}: {name} would end in an empty element when it is unset"
                    )
    return found
