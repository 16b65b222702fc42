# SPDX-License-Identifier: Apache-2.0
"""The exact command that builds the image of a cell, for docker, podman or buildah.

Everything that decides what is in the image comes from the pins, the checkout and the digests; whoever builds chooses
the engine and where to fetch from. Both Dockerfiles get every version as a build argument.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field

from afd.errors import ConfigError
from afd.images import digests
from afd.images.cell import Cell, tag
from afd.pins import Pins

ENGINES = ("docker", "podman", "buildah")
SOURCES = "build/sources"  # below the checkout; what scripts/image_sources.py prepares
PREFIX = "opt/afd"  # the environment in the image
NOTHING = f"{SOURCES}/nothing"  # an empty context where a cell has no such thing


@dataclass(frozen=True)
class Checkout:
    """What the image calls itself: ``revision`` is "unknown" outside git, ``epoch`` the time of its last commit."""

    version: str
    revision: str
    dirty: bool
    epoch: int

    @property
    def created(self) -> str:
        moment = datetime.datetime.fromtimestamp(self.epoch, datetime.timezone.utc)
        return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class Options:
    """Choices of the person who builds.

    ``base`` replaces the base image, ``operators`` false leaves a2e and e2a out, ``cam`` says that the CAM files are
    in their context. ``certificates`` and ``pip_config`` are files of this machine that the build may read and that
    never get into a layer. ``torch_index`` is an index with CPU-only builds of torch.
    """

    engine: str = "docker"
    base: str = ""
    registry: str = ""
    operators: bool = True
    cam: bool = False
    certificates: str = ""
    pip_config: str = ""
    torch_index: str = ""
    triton_ascend_index: str = ""
    source_url: str = ""
    extra: tuple[str, ...] = field(default=())


def arguments(
    pins: Pins, cell: Cell, checkout: Checkout, known: Mapping[str, str], options: Options
) -> dict[str, str]:
    """The build arguments, by name. ``known`` is what :func:`afd.images.digests.read` returns."""
    base = options.base or digests.pinned(cell.base, known)
    name, _, digest = base.partition("@")
    common = pins.images.common
    found = {
        "BASE": base,
        "BASE_NAME": name,
        "BASE_DIGEST": digest,
        "SOC": cell.soc,
        "OS": cell.os,
        "ARCH": cell.arch,
        "VERSION": checkout.version,
        "REVISION": checkout.revision,
        "DIRTY": "1" if checkout.dirty else "0",
        "CREATED": checkout.created,
        "SOURCE_DATE_EPOCH": str(checkout.epoch),
        "VLLM_VERSION": pins.vllm_version,
        "VLLM_COMMIT": pins.vllm_commit,
        "TORCH_INDEX": options.torch_index,
        "USER_ID": str(common.uid),
        "TITLE": f"{common.title} for {cell.row.title if cell.row else pins.images.cpu.title}",
        "VENDOR": common.vendor,
        "SOURCE_URL": options.source_url,
        "LICENSES": " AND ".join(cell.row.licenses if cell.row else pins.images.cpu.licenses),
    }
    row = cell.row
    if row is None:
        return {**found, "PYTHON": cell.python, "TORCH": pins.platforms["cpu"].torch}
    return {
        **found,
        "SOC_VERSION": row.soc_version,
        "CANN": row.cann.version,
        "TORCH": row.cann.torch,
        "TORCH_NPU": row.cann.torch_npu,
        "TRITON_ASCEND": row.cann.triton_ascend,
        "TRITON_ASCEND_INDEX": options.triton_ascend_index or row.cann.triton_ascend_index,
        "TRITON_ASCEND_SHA256": row.cann.triton_ascend_sha256[cell.arch],
        "TORCH_SHA256": row.cann.torch_cpu_sha256,
        "VLLM_ASCEND_COMMIT": pins.ascend_commit,
        "VLLM_ASCEND_VERSION": ascend_version(pins),
        "OPERATORS_COMMIT": pins.images.operators.commit,
        "A2E": "built" if builds_a2e(cell, options) else "none",
        "CAM": "user" if options.cam else "none",
        "DRIVER_MIN": row.driver_min,
        **vendor_paths(pins, cell, options),
    }


def contexts(pins: Pins, cell: Cell, options: Options) -> dict[str, str]:
    """The named build contexts: name -> directory below the checkout."""
    if cell.row is None:
        return {}
    return {
        "vllm": f"{SOURCES}/vllm-{pins.vllm_commit}",
        "vllm-ascend": f"{SOURCES}/vllm-ascend-{pins.ascend_commit}",
        "operators-source": f"{SOURCES}/operators-{pins.images.operators.commit}"
        if builds_a2e(cell, options)
        else NOTHING,
        "cam": f"{SOURCES}/cam" if options.cam else NOTHING,
    }


def secrets(options: Options) -> dict[str, str]:
    """Files that the build may read and that stay out of every layer: id -> path on this machine."""
    given = {"certificates": options.certificates, "pip": options.pip_config}
    return {name: path for name, path in given.items() if path}


def command(
    pins: Pins, cell: Cell, checkout: Checkout, known: Mapping[str, str], options: Options
) -> list[str]:
    """The whole command, to be run in the root of the checkout."""
    wanted = arguments(pins, cell, checkout, known, options)
    _refuse_overrides(options.extra, frozenset(wanted))
    start = {
        "docker": ["docker", "buildx", "build", "--load"],
        # The OCI format has no SHELL and no HEALTHCHECK; both would be dropped.
        "podman": ["podman", "build", "--format", "docker"],
        "buildah": ["buildah", "build", "--format", "docker"],
    }[options.engine]
    end = ["--tag", tag(checkout.version, cell, options.registry), *options.extra, "."]
    return [
        *start,
        *("--platform", f"linux/{cell.arch}"),
        *("--file", f"docker/{'npu' if cell.row else 'cpu'}.Dockerfile"),
        *_each("--build-context", contexts(pins, cell, options)),
        *[part for name, path in secrets(options).items() for part in ("--secret", f"id={name},src={path}")],
        *_each("--build-arg", wanted),
        *end,
    ]


def vendor_paths(pins: Pins, cell: Cell, options: Options) -> dict[str, str]:
    """The folders of operators that are in the image, for CANN and for the loader. They go into ENV: an entry point, a
    probe or `docker exec` reads no shell's start-up file.
    """
    packages = f"/{PREFIX}/lib/python{cell.python}/site-packages"
    vendors = [f"{packages}/vllm_ascend/_cann_ops_custom/vendors/{pins.ascend_vendor}"]
    if builds_a2e(cell, options):
        vendors.append(f"/{PREFIX}/operators/vendors/{pins.images.operators.vendor}")
    libraries = [f"{vendor}/op_api/lib" for vendor in vendors]
    if options.cam:
        vendors.append(cam_vendor(cell))
        libraries += [f"{cam_vendor(cell)}/op_api", f"{cam_vendor(cell)}/op_api/lib"]
    return {"OPP_PATHS": ":".join(vendors), "LIBRARY_PATHS": ":".join([*libraries, "/usr/local/lib"])}


def cam_vendor(cell: Cell) -> str:
    """Where the CAM installer puts its operators."""
    assert cell.row is not None
    return f"/usr/local/Ascend/cann-{cell.row.cann.version}/opp/vendors/CAM"


def builds_a2e(cell: Cell, options: Options) -> bool:
    """Whether the build compiles a2e and e2a."""
    return options.operators and cell.row is not None and cell.row.a2e == "built"


def ascend_version(pins: Pins) -> str:
    """What the wheel of vLLM-Ascend calls itself. Its commit has no tag, and without one it would be 0.0.0."""
    return f"{pins.vllm_version}.dev0+g{pins.ascend_commit[:9]}"


def _each(flag: str, values: Mapping[str, str]) -> list[str]:
    return [part for name, value in values.items() for part in (flag, f"{name}={value}")]


def _refuse_overrides(extra: tuple[str, ...], pinned: frozenset[str]) -> None:
    """A build argument of ours is no way to mix cells of rows."""
    words = [word.removeprefix("--build-arg=") if word.startswith("--build-arg=") else word for word in extra]
    for word in words:
        name = word.partition("=")[0]
        if name in pinned:
            raise ConfigError(
                f"ARGS: {name} comes from afd/pins.toml; edit it there (docs/images.md, how to move a pin)"
            )
