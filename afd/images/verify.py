# SPDX-License-Identifier: Apache-2.0
"""The `verify` stage of an image's build: looks at all that can be seen without a device, then writes the manifest.

    python -m afd.images.verify --soc a3 --os openeuler24.03 --arch arm64 --lock npu.txt …

It prints every fault as a line and ends with 1, which ends the build; with 0 it has written ``/etc/afd/image.json``.
Imports happen in a process of their own with a deadline, without a device: a library of a driver that is not there must
not take this process with it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from afd import pins
from afd.errors import ConfigError
from afd.images import cell as matrix
from afd.images import command, conflicts, installed, manifest
from afd.images.installed import OPERATORS, Tree
from afd.images.rows import CPU

IMPORT_S = 600.0
_MODULES = ("torch", "transformers", "vllm", "afd", "afd.plugin", "afd.cli.main")
_NPU_MODULES = ("torch_npu", "triton", "vllm_ascend")

# In the image's Python: imports modules, loads entry points, and says what failed; last the transports that are built.
_PROBE = """
import importlib, json, sys
from importlib.metadata import EntryPoint
modules, points = json.loads(sys.argv[1])
failed = {}
def attempt(name, action):
    try:
        return action()
    except Exception as error:
        failed[name] = f"{type(error).__name__}: {error}".splitlines()[0]
for name in modules:
    attempt(name, lambda: importlib.import_module(name))
for name, value in points.items():
    attempt(name, EntryPoint(name, value, "").load)
transports = attempt("transports", lambda: importlib.import_module("afd.connectors.registry").transports())
print("\\n" + json.dumps([failed, transports or []]))
"""
_PIP_LINE = re.compile(r"^(\S+) \S+ (?:requires|has requirement) ([A-Za-z0-9._-]+)")


def main(arguments: list[str] | None = None) -> int:
    """The whole stage."""
    options = _parser().parse_args(arguments)
    try:
        faults, written = verify(options, os.environ)
    except ConfigError as error:
        print(f"verify: {error}", file=sys.stderr)
        return error.exit_code
    for fault in faults:
        print(f"verify: {fault}", file=sys.stderr)
    if written is None:
        print(f"verify: {len(faults)} faults; this is no image", file=sys.stderr)
        return 1
    path = options.root / manifest.PATH.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(manifest.encode(written))
    print(
        f"verify: {len(written.packages)} packages, transports {', '.join(written.transports)}; wrote {path}"
    )
    return 0


def verify(
    options: argparse.Namespace, environment: Mapping[str, str]
) -> tuple[list[str], manifest.Manifest | None]:
    """The faults, and the manifest when there are none."""
    pinned = pins.load()
    cell = matrix.choose(pinned.images, options.soc, options.os, options.arch)
    tree = Tree(options.root, cell)
    lock_text = options.lock.read_text(encoding="utf-8")
    lock = installed.read_lock(lock_text)
    built = _built(pinned, cell, options)
    faults = [
        *installed.packages(tree, lock, built),
        *installed.foreign(tree),
        *installed.plugins(tree),
        *installed.bytecode(tree),
        *installed.device_type(tree),
        *_operators(pinned, tree, options),
        *_environment(environment),
    ]
    if faults:
        return faults, None  # imports would only say the same less clearly
    points = {
        f"{group}: {name}": value
        for group in (installed.GENERAL, "vllm.platform_plugins", "console_scripts")
        for name, value in tree.entry_points(group).items()
        if group != "console_scripts" or name.startswith("afd")
    }
    failed, transports = imports(tree, points, environment)
    faults += [f"{name} does not load: {reason}" for name, reason in failed.items()]
    faults += pip_check(tree, environment)
    if faults:
        return faults, None
    versions = {name: d.version for name, d in tree.distributions().items()}
    return [], _manifest(pinned, cell, options, versions, _usable(cell, options, transports), lock_text)


def imports(
    tree: Tree, points: Mapping[str, str], environment: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """What does not import or load, with the reason; and the transports that AFD has."""
    modules = [*_MODULES, *(_NPU_MODULES if tree.cell.row else ())]
    words = [str(tree.python), "-c", _PROBE, json.dumps([modules, points])]
    # The device's package loads by itself with torch, and would look for a device before anything else is tried.
    environment = {**environment, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "TORCHDYNAMO_DISABLE": "1"}
    try:
        # From the root, because a process like this one looks for modules where it starts, too.
        done = subprocess.run(
            words, cwd=tree.root, env=environment, capture_output=True, text=True, timeout=IMPORT_S
        )
    except subprocess.TimeoutExpired:
        return {"the imports": f"no end after {IMPORT_S:.0f} s"}, ()
    if done.returncode:
        tail = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return {"the imports": f"the process ended with {done.returncode}: {tail}"}, ()
    failed, transports = json.loads(done.stdout.splitlines()[-1])
    return failed, tuple(transports)


def pip_check(tree: Tree, environment: Mapping[str, str]) -> Iterator[str]:
    """Contradictions in the packages' metadata that nobody has looked at."""
    reviewed = conflicts.reviewed(tree.cell.soc)
    done = subprocess.run(
        [str(tree.python), "-m", "pip", "--disable-pip-version-check", "check"],
        cwd=tree.root,
        env=dict(environment),
        capture_output=True,
        text=True,
    )
    if done.returncode not in (0, 1) or (done.returncode and not done.stdout.strip()):
        yield f"pip check ended with {done.returncode}: {done.stderr.strip()}"
        return
    lines = done.stdout.splitlines() if done.returncode else []
    for line in lines:
        found = _PIP_LINE.match(line)
        pair = (installed.normalised(found[1]), installed.normalised(found[2])) if found else None
        if pair not in reviewed:
            yield f"pip check: {line}; look into it, then add it to afd/images/{conflicts.FILE} with the reason"


def _built(pinned: pins.Pins, cell: matrix.Cell, options: argparse.Namespace) -> dict[str, str]:
    """Name -> version of what does not come from the lock."""
    found = {"vllm-afd": options.version}
    row = cell.row
    if row is None:
        return {**found, "vllm": f"{pinned.vllm_version}+cpu"}
    found |= {
        "vllm": pinned.vllm_version,
        "vllm-ascend": command.ascend_version(pinned),
        "triton-ascend": row.cann.triton_ascend,
    }
    if options.cam == "user":
        name, version = pinned.images.cam.wheel.split("-")[:2]
        found[installed.normalised(name)] = version
    return found


def _operators(pinned: pins.Pins, tree: Tree, options: argparse.Namespace) -> Iterator[str]:
    if tree.cell.row is None:
        return
    ours = Path(
        tree.site.relative_to(tree.root), "vllm_ascend/_cann_ops_custom/vendors", pinned.ascend_vendor
    )
    yield from installed.operators(tree, ours, ())
    source = pinned.images.operators
    if options.a2e == "built":
        yield from installed.operators(tree, Path(OPERATORS, "vendors", source.vendor), source.symbols)
        if not list((tree.root / OPERATORS / "lib").glob("_C_ascend*.so")):
            yield f"/{OPERATORS}/lib has no _C_ascend*.so, which makes the operators known to torch"
    if options.cam == "user" and not (tree.root / command.cam_vendor(tree.cell).lstrip("/")).is_dir():
        yield f"{command.cam_vendor(tree.cell)} is not there; the CAM installer put its files elsewhere"


def _environment(environment: Mapping[str, str]) -> Iterator[str]:
    """What the image's ENV must not say, because it would decide for every container."""
    for name in (
        "ASCEND_VISIBLE_DEVICES",
        "ASCEND_RT_VISIBLE_DEVICES",
        "ASCEND_RUNTIME_OPTIONS",
        "ASCEND_RUNTIME_MOUNTS",
    ):
        if name in environment:
            yield f"ENV sets {name}; that is for whoever starts a container"
    if "VLLM_PLUGINS" in environment:
        yield "ENV sets VLLM_PLUGINS, which hides every plugin it does not name; leave it unset"
    for name in ("LD_LIBRARY_PATH", "ASCEND_CUSTOM_OPP_PATH"):
        if name in environment and "" in environment[name].split(":"):
            yield f"ENV: {name} has an empty element, which means the current directory"


def _usable(cell: matrix.Cell, options: argparse.Namespace, built: tuple[str, ...]) -> tuple[str, ...]:
    """The transports that work in this image, the default first."""
    operators = "cam" in built and (options.a2e == "built" or options.cam == "user")
    wanted = ["shm", "collective"] if cell.row is None else [*(["cam"] if operators else []), "collective"]
    return tuple(name for name in wanted if name in built)


def _manifest(
    pinned: pins.Pins,
    cell: matrix.Cell,
    options: argparse.Namespace,
    versions: dict[str, str],
    transports: tuple[str, ...],
    lock_text: str,
) -> manifest.Manifest:
    row = cell.row
    a2e = "built" if options.a2e == "built" else "none"
    return manifest.Manifest(
        schema=1,
        afd=manifest.AFD(version=options.version, revision=options.revision, dirty=options.dirty == "1"),
        soc=cell.soc,  # type: ignore[arg-type]  # one of the names, checked when the file is written
        soc_version=row.soc_version if row else None,
        os=cell.os,
        arch=cell.arch,  # type: ignore[arg-type]  # the same
        base=manifest.Base(tag=options.base_name, digest=options.base_digest or None),
        python=cell.python,
        packages=dict(sorted(versions.items())),
        cann=row.cann.version if row else None,
        torch=row.cann.torch if row else pinned.platforms[CPU].torch,
        torch_npu=row.cann.torch_npu if row else None,
        triton_ascend=row.cann.triton_ascend if row else None,
        vllm=manifest.VLLM(
            distribution="vllm" if row else pinned.platforms[CPU].distribution,
            version=pinned.vllm_version,
            commit=pinned.vllm_commit,
        ),
        vllm_ascend=pinned.ascend_commit if row else None,
        operators=manifest.Operators(
            a2e=a2e,  # type: ignore[arg-type]  # the same
            cam="user" if options.cam == "user" else "none",
            commit=pinned.images.operators.commit if a2e == "built" else None,
        ),
        transports=transports,
        lock_sha256=hashlib.sha256(lock_text.encode()).hexdigest(),
        driver_min=row.driver_min if row else None,
        device_nodes=row.device_nodes if row else (),
        mounts=row.mounts if row else (),
        created=options.created,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="afd.images.verify", description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path("/"), help="the image's files are below this [/]")
    for name in ("soc", "os", "arch", "version", "revision", "created", "base-name"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--base-digest", default="")
    parser.add_argument("--dirty", choices=("0", "1"), default="0")
    parser.add_argument("--a2e", choices=("built", "none"), default="none")
    parser.add_argument("--cam", choices=("user", "none"), default="none")
    parser.add_argument("--lock", type=Path, required=True, help="the lock that was installed")
    return parser


if __name__ == "__main__":
    sys.exit(main())
