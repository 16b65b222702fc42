# SPDX-License-Identifier: Apache-2.0
"""Rules about the text of files, one function each."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping

from tests.rules.imports import ASCEND_LEAVES, within
from tests.rules.sources import Source

SPDX = "SPDX-License-Identifier: Apache-2.0"
MAX_LINES = 600

_CODE = (".py", ".c", ".h", ".sh", ".toml")
_CODE_NAMES = ("Makefile", ".ci/run")

# Untyped input is read once, here, into a frozen dataclass; everywhere else attributes are accessed directly.
UNTYPED_READERS = ("afd/config/",)

# The device's package in any form but a field of that name, and the other one as a module. As a plain word it is a name
# in a list of versions.
_ASCEND = re.compile(
    r"(?<!\.)\btorch_npu\b|\bvllm_ascend\.|\b(?:import|import_module|from)\b.*\bvllm_ascend\b"
)

# Where a pinned version may be written: by a person (the first two), or by a script.
VERSIONS_WRITTEN = (
    "VERSION",
    "afd/pins.toml",
    "requirements/",
    "CHANGELOG.md",
    "docs/versions.md",
    "docs/image-matrix.md",
    "docker/docker-bake.hcl",
    "docker/digests.json",
    "tests/unit/images/snapshots/",
    "tests/records/",
)

# Split, so that this file does not break its own rules.
_REGISTRIES = re.compile(
    "|".join(
        re.escape(f"{name}.{domain}")
        for name, domain in (
            ("pypi", "org"),
            ("pythonhosted", "org"),
            ("npmjs", "org"),
            ("crates", "io"),
            ("golang", "org"),
            ("maven", "org"),
            ("deb.debian", "org"),
            ("download.pytorch", "org"),
            ("tsinghua.edu", "cn"),
            ("aliyun", "com"),
        )
    )
)
_MACHINE_PATHS = re.compile(
    r"(?<![\w./-])/(?:" + "|".join(("work", "home", "root", "Users", "opt/wheels")) + r")/"
)
_UNFINISHED = re.compile(r"\b(?:" + "|".join(("TO" + "DO", "FIX" + "ME")) + r")\b")


def is_code(source: Source) -> bool:
    return source.path.endswith(_CODE) or source.path in _CODE_NAMES


def without_license(sources: Iterable[Source]) -> list[str]:
    """Source files that do not say their license in the first three lines."""
    return [
        f"{source.path}: no line '{SPDX}' at the top"
        for source in sources
        if is_code(source) and not any(SPDX in line for line in source.text.splitlines()[:3])
    ]


def too_long(sources: Iterable[Source]) -> list[str]:
    """Files a person writes that are over the limit."""
    return [
        f"{source.path}: {lines} lines, at most {MAX_LINES}"
        for source in sources
        if (is_code(source) or source.path.endswith(".md")) and (lines := source.text.count("\n")) > MAX_LINES
    ]


def registry_hosts(sources: Iterable[Source]) -> list[str]:
    """Hosts of package registries: which registry to use is the machine's configuration, not ours."""
    return _matches(sources, _REGISTRIES, "names a package registry")


def machine_paths(sources: Iterable[Source]) -> list[str]:
    """Absolute paths of one person's machine."""
    return _matches(sources, _MACHINE_PATHS, "names a path of one machine")


def unfinished(sources: Iterable[Source]) -> list[str]:
    """Notes to self."""
    return _matches(sources, _UNFINISHED, "is unfinished")


def repeated_versions(sources: Iterable[Source], versions: Mapping[str, str]) -> list[str]:
    """Pinned versions and commits (name -> text) written where nobody would update them."""
    found = []
    for name, version in versions.items():
        # A commit is also recognised by its first nine digits; a version not as a part of a longer one.
        short = version[:9] if re.fullmatch(r"[0-9a-f]{40}", version) else version
        pattern = re.compile(rf"(?<![\d.]){re.escape(short)}(?![.]?\d)")
        others = (source for source in sources if not source.path.startswith(VERSIONS_WRITTEN))
        found += _matches(others, pattern, f"repeats the version of {name}")
    return found


def dynamic_attributes(sources: Iterable[Source]) -> list[str]:
    """Uses of getattr and hasattr outside the few places that read untyped input."""
    return [
        f"{source.path}:{node.lineno}: {node.id} outside {', '.join(UNTYPED_READERS)}"
        for source in sources
        if not source.path.startswith(UNTYPED_READERS)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Name) and node.id in ("getattr", "hasattr")
    ]


def ascend_names(sources: Iterable[Source]) -> list[str]:
    """Names of Ascend packages outside the leaves. ``afd.images`` says which of them are installed."""
    others = (source for source in sources if not within(source.module, *ASCEND_LEAVES, "afd.images"))
    return _matches(others, _ASCEND, "belongs in a leaf")


def skipped_tests(sources: Iterable[Source]) -> list[str]:
    """Tests that pass over what they cannot do here: nobody would notice that they never run. Those that need something
    special fail without it, and have a mark by which a person leaves them out.
    """
    return [
        f"{source.path}:{node.lineno}: {name} hides that a test does not run"
        for source in sources
        for node in ast.walk(source.tree)
        if isinstance(node, (ast.Attribute, ast.Name))
        and (name := node.attr if isinstance(node, ast.Attribute) else node.id)
        in ("skip", "skipif", "importorskip", "skipTest", "SkipTest", "xfail")
    ]


def short_test_names(sources: Iterable[Source]) -> list[str]:
    """Tests whose name is not a sentence, taken to be three words or more after "test"."""
    return [
        f"{source.path}:{node.lineno}: {node.name} is not a sentence about behaviour"
        for source in sources
        for node in ast.walk(source.tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.name.startswith("test_")
        and len([word for word in node.name.split("_")[1:] if word]) < 3
    ]


def _matches(sources: Iterable[Source], pattern: re.Pattern[str], what: str) -> list[str]:
    return [f"{where}: {text!r} {what}" for where, text in _find(sources, pattern)]


def _find(sources: Iterable[Source], pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    for source in sources:
        for number, line in enumerate(source.text.splitlines(), 1):
            for match in pattern.finditer(line):
                yield f"{source.path}:{number}", match[0]
