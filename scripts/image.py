# SPDX-License-Identifier: Apache-2.0
"""Builds, publishes and moves the container images: ``make image SOC=a3`` and the targets beside it.

    python3 -m scripts.image build|release|sources|push|save|load|tag|names

It reads its choices from the environment, where make puts what stands on its command line (``make image SOC=a3
OS=openeuler24.03 ENGINE=podman DRY_RUN=1``); docs/images.md lists them. It needs Python and git, not the project's
environment. Whatever a person has to correct is one line and exit code 64.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

try:
    from afd import pins
except ImportError:
    sys.exit(
        "image: needs Python 3.11 or newer, or 3.10 with the package tomli; "
        "name one with PYTHON=…, or run make setup first"
    )

from afd.errors import ConfigError
from afd.images import cell as matrix
from afd.images import command, digests
from scripts import image_figures, image_sources

ROOT = Path(__file__).resolve().parent.parent
_SWITCH = {"": False, "0": False, "1": True}


def main(arguments: list[str], given: Mapping[str, str]) -> int:
    actions = {
        "build": build, "release": release, "push": push, "save": save, "load": load, "tag": show_tag, "names": names,
        "sources": sources,
    }  # fmt: skip
    if len(arguments) != 1 or arguments[0] not in actions:
        print(f"image: say one of {', '.join(actions)}", file=sys.stderr)
        return ConfigError.exit_code
    try:
        return actions[arguments[0]](given)
    except ConfigError as error:
        print(f"image: {error}", file=sys.stderr)
        return error.exit_code


def build(given: Mapping[str, str]) -> int:
    """Print the command, prepare the sources and run it; with DRY_RUN=1 only print it."""
    pinned = pins.load()
    cell = chosen(pinned, given)
    options = choices(pinned, cell, given)
    here = checkout()
    known = digests.read(ROOT, pinned.images.bases())
    words = command.command(pinned, cell, here, known, options)
    print(shlex.join(words), flush=True)
    if "@" not in (options.base or digests.pinned(cell.base, known)):
        warn(
            f"the base {options.base or cell.base} has no digest; this builds from what the tag is today (make digests)"
        )
    if here.dirty:
        warn("the checkout has changes; the image says so")
    if switch(given, "DRY_RUN"):
        return 0
    prepare(pinned, cell, options, given)
    peak = image_figures.watched(options.engine, given)
    with peak or contextlib.nullcontext():
        done = run(words)
    if done == 0:
        built = matrix.tag(here.version, cell, options.registry)
        total = image_figures.size(options.engine, built, given)
        for line in image_figures.lines(peak, total, image_figures.layers(options.engine, built, given)):
            print(f"image: {line}")
        print(f"image: built {built}", flush=True)
    return done


def sources(given: Mapping[str, str]) -> int:
    """Prepare the sources of a cell, to carry them to a machine without a network."""
    pinned = pins.load()
    cell = chosen(pinned, given)
    options = choices(pinned, cell, {**given, "DRY_RUN": "1"})
    prepare(pinned, cell, options, given)
    for name, directory in command.contexts(pinned, cell, options).items():
        print(f"{name}: {directory}")
    return 0


def release(given: Mapping[str, str]) -> int:
    """Build and push, only from a clean commit and a base with a digest."""
    pinned = pins.load()
    cell = chosen(pinned, given)
    if not given.get("REGISTRY"):
        raise ConfigError("say where to: make release SOC=… REGISTRY=registry.example/team")
    if given.get("BASE"):
        raise ConfigError("BASE: a release is built from the base that is pinned; leave BASE out")
    if cell.base not in digests.read(ROOT, pinned.images.bases()):
        raise ConfigError(
            f"{cell.base} has no digest in {digests.FILE}; run make digests and commit the file"
        )
    if cell.row is not None and not cell.row.cann.triton_ascend_sha256[cell.arch]:
        raise ConfigError(
            f"Triton Ascend {cell.row.cann.triton_ascend} for {cell.arch} has no SHA-256 in afd/pins.toml; "
            "download its wheel, compare it with what its publisher says, and write it there"
        )
    if cell.row is not None and cell.arch == "amd64" and not cell.row.cann.torch_cpu_sha256:
        raise ConfigError(
            f"the CPU-only build of torch {cell.row.cann.torch} has no SHA-256 in afd/pins.toml"
        )
    here = checkout()
    if here.dirty or here.revision == "unknown":
        raise ConfigError("a release is built from a commit; commit or remove the changes (git status)")
    return build(given) or (0 if switch(given, "DRY_RUN") else push(given))


def push(given: Mapping[str, str]) -> int:
    registry = given.get("REGISTRY", "")
    if not registry:
        raise ConfigError("say where to: make push SOC=… REGISTRY=registry.example/team")
    cell = chosen(pins.load(), given)
    engine = engine_of(given)
    version = checkout().version
    local, remote = matrix.tag(version, cell), matrix.tag(version, cell, registry)
    return run([engine, "tag", local, remote], given) or run([engine, "push", remote], given)


def save(given: Mapping[str, str]) -> int:
    """Write the image to FILE, an archive for `make load` on a machine without a registry."""
    cell = chosen(pins.load(), given)
    reference = matrix.tag(checkout().version, cell)
    file = given.get("FILE") or f"build/{reference.replace(':', '-')}.tar"
    if not switch(given, "DRY_RUN"):
        (ROOT / file).parent.mkdir(parents=True, exist_ok=True)
    engine = engine_of(given)
    words = {
        "docker": ["docker", "save", "--output", file, reference],
        "podman": ["podman", "save", "--format", "docker-archive", "--output", file, reference],
        "buildah": ["buildah", "push", reference, f"docker-archive:{file}:{reference}"],
    }[engine]
    return run(words, given)


def load(given: Mapping[str, str]) -> int:
    file = given.get("FILE", "")
    if not file or not (ROOT / file).is_file():
        raise ConfigError(f"FILE={file}: say which archive: make load FILE=build/afd-….tar")
    engine = engine_of(given)
    words = (
        [engine, "pull", f"docker-archive:{file}"]
        if engine == "buildah"
        else [engine, "load", "--input", file]
    )
    return run(words, given)


def show_tag(given: Mapping[str, str]) -> int:
    """Print the reference of an image; charts and scripts ask here."""
    print(matrix.tag(checkout().version, chosen(pins.load(), given), given.get("REGISTRY", "")))
    return 0


def names(_: Mapping[str, str]) -> int:
    """Print every cell."""
    for cell in matrix.cells(pins.load().images):
        print(cell.name)
    return 0


def chosen(pinned: pins.Pins, given: Mapping[str, str]) -> matrix.Cell:
    return matrix.choose(pinned.images, given.get("SOC", ""), given.get("OS", ""), given.get("ARCH", ""))


def choices(pinned: pins.Pins, cell: matrix.Cell, given: Mapping[str, str]) -> command.Options:
    """What the person chose, with files that exist."""
    for name in ("CA", "PIP_CONF"):
        if given.get(name) and not Path(given[name]).is_file():
            raise ConfigError(f"{name}={given[name]}: there is no such file")
    cam = bool(given.get("CAM"))
    if cam and not matrix.cam_fits(pinned.images, cell):
        only = pinned.images.cam
        raise ConfigError(f"CAM: its files work in {only.soc}-{only.os}-{only.arch} only, not in {cell.name}")
    operators = given.get("OPERATORS", "1")
    if operators not in ("0", "1"):
        raise ConfigError(
            f"OPERATORS={operators}: 1 builds a2e and e2a where there are any, 0 leaves them out"
        )
    if cell.row is not None and cell.arch == "amd64" and not given.get("TORCH_INDEX"):
        raise ConfigError(
            "on amd64 torch-npu needs a CPU-only torch: say TORCH_INDEX=https://…, an index that has it"
        )
    return command.Options(
        engine=engine_of(given),
        base=given.get("BASE", ""),
        operators=operators == "1",
        cam=cam,
        certificates=given.get("CA", ""),
        pip_config=given.get("PIP_CONF", ""),
        torch_index=given.get("TORCH_INDEX", ""),
        triton_ascend_index=given.get("TRITON_ASCEND_INDEX", ""),
        source_url=given.get("SOURCE_URL", ""),
        extra=tuple(shlex.split(given.get("ARGS", ""))),
    )


def prepare(pinned: pins.Pins, cell: matrix.Cell, options: command.Options, given: Mapping[str, str]) -> None:
    """The named contexts of the command, on disk."""
    directory = ROOT / command.SOURCES
    (ROOT / command.NOTHING).mkdir(parents=True, exist_ok=True)
    if cell.row is None:
        return
    images = pinned.images
    wanted = [
        ("vllm", pinned.vllm_commit, images.sources["vllm"], "VLLM_SOURCE"),
        ("vllm-ascend", pinned.ascend_commit, images.sources["vllm-ascend"], "VLLM_ASCEND_SOURCE"),
    ]
    if command.builds_a2e(cell, options):
        wanted.append(("operators", images.operators.commit, images.operators.source, "OPERATORS_SOURCE"))
    for name, commit, source, variable in wanted:
        image_sources.prepare(
            image_sources.Wanted(name, commit, source.repository, source.archive_sha256, variable),
            given.get(variable, ""),
            directory,
        )
    if options.cam:
        cam = images.cam
        image_sources.check_cam(
            Path(given["CAM"]),
            cam.installer,
            cam.installer_git_blob,
            cam.wheel,
            cam.wheel_sha256,
            directory / "cam",
        )


def engine_of(given: Mapping[str, str]) -> str:
    """The engine that was asked for, else the first that is there. Without one only a dry run goes on."""
    asked = given.get("ENGINE", "")
    if asked and asked not in command.ENGINES:
        raise ConfigError(f"ENGINE={asked}: there is {', '.join(command.ENGINES)}")
    if switch(given, "DRY_RUN"):
        return asked or command.ENGINES[0]
    path = given.get("PATH")
    found = [name for name in ([asked] if asked else command.ENGINES) if shutil.which(name, path=path)]
    for name in found:
        if name != "docker" or has_buildx(given):
            return name
    if found:
        raise ConfigError(
            "docker is here without its plugin buildx, which builds need; install it, or ENGINE=podman"
        )
    wanted = asked or f"one of {', '.join(command.ENGINES)}"
    raise ConfigError(f"no container engine: install {wanted}, or print the command with DRY_RUN=1")


def has_buildx(given: Mapping[str, str]) -> bool:
    done = subprocess.run(["docker", "buildx", "version"], capture_output=True, env=dict(given))
    return done.returncode == 0


def checkout() -> command.Checkout:
    """This checkout as the image names it. An archive of the sources has no commit; its VERSION file dates it."""
    version = (ROOT / "VERSION").read_text(encoding="utf-8").strip()
    revision = git("rev-parse", "HEAD")
    if not revision:
        return command.Checkout(version, "unknown", False, int((ROOT / "VERSION").stat().st_mtime))
    dirty = bool(git("status", "--porcelain"))
    return command.Checkout(version, revision, dirty, int(git("log", "-1", "--format=%ct")))


def git(*arguments: str) -> str:
    """What git says about this checkout; "" when it is none."""
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def switch(given: Mapping[str, str], name: str) -> bool:
    value = given.get(name, "")
    if value not in _SWITCH:
        raise ConfigError(f"{name}={value}: 1 or 0")
    return _SWITCH[value]


def run(words: list[str], given: Mapping[str, str] | None = None) -> int:
    """Run a command in the checkout, or only print it in a dry run. Its exit code, 1 for every failure."""
    if given is not None:
        print(shlex.join(words), flush=True)
        if switch(given, "DRY_RUN"):
            return 0
    code = subprocess.run(words, cwd=ROOT).returncode
    if code:
        print(f"image: `{' '.join(words[:3])} …` ended with {code}; see above", file=sys.stderr)
    return min(code, 1) if code >= 0 else 128 - code


def warn(message: str) -> None:
    print(f"image: warning: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
