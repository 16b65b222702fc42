# SPDX-License-Identifier: Apache-2.0
"""Writes requirements/ from afd/pins.toml and pyproject.toml. Run it in the project's environment after editing
either: ``.venv/bin/python scripts/lock.py`` (``--upgrade`` also moves everything that is not pinned).

    boot.txt   uv alone, with hashes: what pip installs first
    cpu.in     the direct requirements of the CPU platform
    cpu.over   what overrides upstream's own metadata there
    cpu.txt    the lock: every package for every supported Python, with hashes

A test (tests/rules) compares cpu.in, cpu.over and the versions in the locks with the pins, without a network.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from afd import pins

REQUIREMENTS = Path(__file__).resolve().parent.parent / "requirements"
HEADER = "# Written by scripts/lock.py from afd/pins.toml. Do not edit.\n"


def inputs(pinned: pins.Pins) -> dict[str, str]:
    """File name -> text of the resolver's inputs."""
    cpu = pinned.platforms["cpu"]
    direct = [f"{cpu.distribution}=={pinned.vllm_version}", f"torch=={cpu.torch}", f"uv=={pinned.uv}"]
    # vLLM's CPU build asks for torch with a local version that only upstream's own index has; the plain version
    # of the same release works. An excluded package keeps a line in the lock, with a marker that is never true.
    override = [f"torch=={cpu.torch}", *(f"{name}; sys_platform == 'never'" for name in cpu.excluded)]
    return {
        "cpu.in": HEADER + "".join(f"{line}\n" for line in direct),
        "cpu.over": HEADER + "".join(f"{line}\n" for line in override),
    }


def main() -> None:
    pinned = pins.load()
    uv = Path(sys.executable).with_name("uv")
    for name, text in inputs(pinned).items():
        (REQUIREMENTS / name).write_text(text, encoding="utf-8")
    common = [
        str(uv), "pip", "compile", "--quiet", "--universal", "--python-version", pinned.python.minimum,
        "--generate-hashes", "--no-emit-index-url", "--no-emit-find-links", "--no-annotate", "--no-header",
        *sys.argv[1:],
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as directory:
        boot = Path(directory) / "boot.in"
        boot.write_text(f"uv=={pinned.uv}\n", encoding="utf-8")
        for sources, options, output in (
            ([str(boot)], [], "boot.txt"),
            (
                ["pyproject.toml", "requirements/cpu.in"],
                ["--group", "pyproject.toml:dev", "--override", "requirements/cpu.over"],
                "cpu.txt",
            ),
        ):
            subprocess.run(
                [*common, *sources, *options, "--output-file", f"requirements/{output}"],
                cwd=REQUIREMENTS.parent,
                check=True,
            )
            lock = REQUIREMENTS / output
            lock.write_text(HEADER + lock.read_text(encoding="utf-8"), encoding="utf-8")


if __name__ == "__main__":
    main()
