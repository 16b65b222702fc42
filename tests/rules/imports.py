# SPDX-License-Identifier: Apache-2.0
"""Who may import whom inside ``afd``, and what may be imported from outside.

    L4  cli  plugin  doctor  container                                    doors
    L3  attention.ascend  ffn.ascend                                      leaves
    L2  attention  ffn  models  graphs  rebind  launch                    may import vLLM
    L1  connectors  ubatch  device                                        torch, no vLLM
        agent                                                             L0, and connectors.shm without torch
    L0  config topology errors pins families cache toml_data support      neither
        control plan observe images

Imports point down or stay on their level. ``agent`` is a process of its own: it may use L0 and the files of
``connectors.shm`` that need no torch; of L0 only ``testing.tiny`` imports it (the cache). ``attention`` and ``ffn``
never import each other. ``testing`` sees L0 to L2 and is imported by ``cli.smoke``, ``cli.qualify`` and
``container.smoke`` only; ``testing.tiny``, which makes the built-in models, is plain L0 code that the agent and the CLI
may use. An import inside a function or under ``TYPE_CHECKING`` counts too.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.rules.sources import Source

LAYERS = {
    "errors": 0, "config": 0, "topology": 0, "pins": 0, "families": 0, "cache": 0, "toml_data": 0,
    "number_list": 0, "support": 0,
    "control": 0, "plan": 0, "observe": 0, "agent": 0, "images": 0,
    "connectors": 1, "ubatch": 1, "device": 1,
    "attention": 2, "ffn": 2, "models": 2, "graphs": 2, "rebind": 2, "launch": 2,
    "attention.ascend": 3, "ffn.ascend": 3,
    "cli": 4, "plugin": 4, "doctor": 4, "container": 4,
    "testing": 2, "testing.tiny": 0,
}  # fmt: skip

# What each layer may import from outside, besides the standard library and what the layers below may.
SMALL = {
    "aiohttp", "click", "elftools", "huggingface_hub", "msgspec", "numpy", "packaging", "prometheus_client", "psutil",
    "rich", "safetensors", "tokenizers", "tomli",
}  # fmt: skip
OUTSIDE: dict[int, set[str]] = {
    0: set(),
    1: {"torch"},
    2: {
        "vllm",
        "transformers",
        "triton",
        "pydantic",
        "setproctitle",
    },  # the others are what vLLM itself brings
    3: {"torch_npu", "vllm_ascend"},
    4: {"supervisor"},  # what keeps both roles of one container
}
# Files below L3 that speak to the Ascend device or its operators.
ASCEND_LEAVES = (
    "afd.attention.ascend",
    "afd.ffn.ascend",
    "afd.device.ascend",
    "afd.connectors.ascend_ops",
    "afd.doctor.ascend",
)
# The agent removes what its ranks left in shared memory. The probe in test_imports.py shows that this loads no torch.
AGENT = "afd.agent"
AGENT_MAY_IMPORT = ("afd.connectors.shm",)

USERS_OF_TESTING = ("afd.cli.smoke", "afd.cli.qualify", "afd.container.smoke")
USERS_OF_TINY = ("afd.agent", "afd.cli", *USERS_OF_TESTING)


@dataclass(frozen=True)
class Edge:
    """``importer`` imports ``target`` at ``line``; both dotted module names."""

    importer: Source
    target: str
    line: int

    def __str__(self) -> str:
        return f"{self.importer.path}:{self.line}: {self.importer.module} imports {self.target}"


def within(module: str, *packages: str) -> bool:
    """Whether ``module`` is one of ``packages`` or below one."""
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def layer(module: str) -> int:
    """The layer of a module of ``afd``. Raises KeyError for one that LAYERS does not place."""
    inside = module.partition(".")[2]
    while inside:
        if inside in LAYERS:
            return LAYERS[inside]
        inside = inside.rpartition(".")[0]
    if module == "afd":
        return 0
    raise KeyError(module)


def edges(sources: Iterable[Source]) -> Iterator[Edge]:
    """Every import statement, lazy ones included. ``from a import b`` is an import of ``a.b`` when that is a module."""
    sources = tuple(sources)
    modules = {source.module for source in sources}
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield Edge(source, alias.name, node.lineno)
            elif isinstance(node, ast.ImportFrom):
                base = _absolute(source, node)
                for alias in node.names:
                    name = f"{base}.{alias.name}"
                    yield Edge(source, name if name in modules else base, node.lineno)


def _absolute(source: Source, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = source.module if source.is_package else source.module.rpartition(".")[0]
    for _ in range(node.level - 1):
        package = package.rpartition(".")[0]
    return f"{package}.{node.module}" if node.module else package


def upward(sources: Iterable[Source]) -> list[str]:
    """Imports inside ``afd`` that point up, or sideways where that is forbidden."""
    found = []
    for edge in edges(sources):
        if not within(edge.target, "afd"):
            continue
        importer, target = edge.importer.module, edge.target
        try:
            here, there = layer(importer), layer(target)
        except KeyError as error:
            found.append(f"{edge}: {error.args[0]} has no layer; place it in tests/rules/imports.py")
            continue
        if there > here and not (within(importer, AGENT) and within(target, *AGENT_MAY_IMPORT)):
            found.append(f"{edge}: L{here} may not import L{there}")
        elif here == 0 and within(target, AGENT) and not within(importer, AGENT, "afd.testing"):
            found.append(f"{edge}: no other part of L0 imports the agent")
        elif _crosses(importer, target):
            found.append(f"{edge}: attention and ffn never import each other")
        elif within(target, "afd.testing") and not _may_use_testing(importer, target):
            found.append(f"{edge}: only {', '.join(USERS_OF_TESTING)} and tests use afd.testing")
    return found


def _crosses(importer: str, target: str) -> bool:
    sides = ("afd.attention", "afd.ffn")
    return any(within(importer, a) and within(target, b) for a, b in (sides, sides[::-1]))


def _may_use_testing(importer: str, target: str) -> bool:
    users = USERS_OF_TINY if within(target, "afd.testing.tiny") else USERS_OF_TESTING
    return within(importer, "afd.testing", *users)


def foreign(sources: Iterable[Source]) -> list[str]:
    """Imports from outside that the importer's layer does not allow, or that are no declared dependency."""
    found = []
    for edge in edges(sources):
        top = edge.target.partition(".")[0]
        if top in ("afd", "__future__") or top in sys.stdlib_module_names:
            continue
        here = layer(edge.importer.module)
        allowed = SMALL.union(*(OUTSIDE[below] for below in range(here + 1)))
        if within(edge.importer.module, *ASCEND_LEAVES):
            allowed |= OUTSIDE[3]
        elif here == 4:
            allowed -= OUTSIDE[3]
        if top not in allowed:
            found.append(f"{edge}: not allowed in L{here}")
    return found


def unlisted(sources: Iterable[Source], page: Source) -> list[str]:
    """A page with a table of the layers has every package in it."""
    named = {
        name for row in page.text.splitlines() if row.startswith("|") for name in re.findall(r"`(\w+)`", row)
    }
    packages = {s.module.split(".")[1] for s in sources if s.module != "afd"}
    return [f"{page.path}: no table has a row for {name}" for name in sorted(packages - named)]


def cycles(sources: Iterable[Source]) -> list[str]:
    """Groups of modules that import each other, directly or not (Tarjan's strongly connected components)."""
    sources = tuple(sources)
    graph: dict[str, set[str]] = {source.module: set() for source in sources}
    for edge in edges(sources):
        if edge.target in graph:
            graph[edge.importer.module].add(edge.target)
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[str] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for target in sorted(graph[module]):
            if target not in index:
                visit(target)
                low[module] = min(low[module], low[target])
            elif target in stack:
                low[module] = min(low[module], index[target])
        if low[module] == index[module]:
            position = stack.index(module)
            group = stack[position:]
            del stack[position:]
            if len(group) > 1 or module in graph[module]:
                found.append("import cycle: " + ", ".join(sorted(group)))

    for module in sorted(graph):
        if module not in index:
            visit(module)
    return found
