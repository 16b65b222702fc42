# SPDX-License-Identifier: Apache-2.0
"""The text of ``docker/docker-bake.hcl``: every cell as a target of ``docker buildx bake``, from the same command."""

from __future__ import annotations

import json
from collections.abc import Mapping

from afd.images import cell as matrix
from afd.images.command import Checkout, Options, arguments, contexts
from afd.pins import Pins

# What is not the same for every checkout or person is a variable, which bake takes from the environment.
VARIABLES = ("VERSION", "REVISION", "DIRTY", "CREATED", "SOURCE_DATE_EPOCH", "TORCH_INDEX", "SOURCE_URL")
_REGISTRY = "REGISTRY"


def render(pins: Pins, known: Mapping[str, str]) -> str:
    """The whole file. ``known`` are the digests of base images."""
    lines = [
        "# SPDX-License-Identifier: Apache-2.0",
        "# Written by scripts/render_images.py from afd/pins.toml and docker/digests.json. Do not edit.",
        "# Run `make sources SOC=...` first; docs/images.md says how to use this file.",
        "",
        *[f'variable "{name}" {{ default = "" }}' for name in (*VARIABLES, _REGISTRY)],
        "",
    ]
    groups: dict[str, list[str]] = {}
    for cell in matrix.cells(pins.images):
        name = cell.name.replace(".", "_")
        groups.setdefault("all", []).append(name)
        groups.setdefault(cell.soc, []).append(name)
        lines += _target(name, cell, pins, known)
    for group, members in groups.items():
        lines += [f'group "{group}" {{', f"  targets = {json.dumps(members)}", "}", ""]
    return "\n".join(lines).rstrip() + "\n"


def _target(name: str, cell: matrix.Cell, pins: Pins, known: Mapping[str, str]) -> list[str]:
    checkout, options = Checkout("", "", False, 0), Options()
    values = {
        key: f"${{{key}}}" if key in VARIABLES else value
        for key, value in arguments(pins, cell, checkout, known, options).items()
    }
    reference = matrix.tag("${VERSION}", cell)
    prefix = f'${{{_REGISTRY} == "" ? "" : "${{{_REGISTRY}}}/"}}'
    named = contexts(pins, cell, options)
    return [
        f'target "{name}" {{',
        f'  dockerfile = "docker/{"npu" if cell.row else "cpu"}.Dockerfile"',
        '  context    = "."',
        f'  platforms  = ["linux/{cell.arch}"]',
        f'  tags       = ["{prefix}{reference}"]',
        *_block("contexts", named),
        *_block("args", values),
        "}",
        "",
    ]


def _block(name: str, values: Mapping[str, str]) -> list[str]:
    if not values:
        return []
    width = max(map(len, values)) + 2
    rows = [f"    {json.dumps(key):<{width}} = {json.dumps(value)}" for key, value in values.items()]
    return [f"  {name} = {{", *rows, "  }"]
