# SPDX-License-Identifier: Apache-2.0
"""The tables of ``afd/pins.toml`` about container images, read strictly and compared with each other.

A SOC is a row of data: what its image is built on, which operators there are for it, what its containers need from the
host. A row names one release of CANN, and with it one torch, torch-npu and Triton Ascend, so that cells of two rows
cannot meet in one image.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from afd.errors import ConfigError
from afd.toml_data import Table

CPU = "cpu"
UNVERIFIED = "unverified"
TABLES = ("image", "source", "operators", "cam", "cann", "soc", "cpu")

# What each spelling of SOC_VERSION must begin with for the build scripts of upstream to compile kernels. They take any
# other spelling as well, and then end with success and compile nothing.
KERNEL_PREFIX = {"A2": "ascend910b", "A3": "ascend910_93", "A5": "ascend950"}

_ANY = re.compile(r"[^\n]+")
_VERSION = re.compile(r"\d+(\.\d+)+([a-z0-9.+]*)")
_PYTHON = re.compile(r"3\.\d+")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHA256_OR_NONE = re.compile(r"([0-9a-f]{64})?")
_URL = re.compile(r"https://[a-z0-9.-]+(/[A-Za-z0-9._-]+)*")
_WORD = re.compile(r"[A-Za-z0-9]+([._-][A-Za-z0-9]+)*")
_IMAGE = re.compile(r"[a-z0-9.-]+(/[a-z0-9.-]+)+(:[A-Za-z0-9._-]+)?")
_ARCH = re.compile(r"amd64|arm64")
_SOC = re.compile(r"a2|a3|a5")
_OS = re.compile(r"[a-z]+[0-9.]+")
_A2E = re.compile(r"built|none")
_NODE = re.compile(r"/dev/[a-z0-9_]+")
_PATH = re.compile(r"(/[A-Za-z0-9._-]+)+")
_OPTION = re.compile(r"--[a-z-]+(=[a-z0-9-]+)?")
_DRIVER = re.compile(r"unverified|\d+(\.\d+)+[A-Za-z0-9.]*")
_FILE = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Common:
    """What every image has."""

    title: str
    vendor: str
    uid: int


@dataclass(frozen=True)
class Source:
    """An upstream repository. ``archive_sha256`` is "" when no archive is accepted in its place."""

    repository: str
    archive_sha256: str


@dataclass(frozen=True)
class OperatorSource:
    """Where a2e and e2a come from; ``kernels_for`` are the SOCs that this commit has kernels for."""

    source: Source
    commit: str
    kernels_for: tuple[str, ...]
    vendor: str
    symbols: tuple[str, ...]


@dataclass(frozen=True)
class Cam:
    """The one cell that the CAM binaries fit, and how to know the two files."""

    soc: str
    os: str
    arch: str
    installer: str
    installer_git_blob: str
    wheel: str
    wheel_sha256: str


@dataclass(frozen=True)
class Cann:
    """One release of CANN and what was built for it. Hashes of wheels are "" where unknown."""

    version: str
    registry: str
    python: str
    torch: str
    torch_npu: str
    triton_ascend: str
    triton_ascend_index: str
    triton_ascend_sha256: Mapping[str, str]
    torch_cpu_sha256: str
    transformers: str
    mooncake: str


@dataclass(frozen=True)
class Soc:
    """One NPU SOC. ``a2e`` is "built" or "none", with the reason."""

    name: str
    title: str
    aliases: tuple[str, ...]
    cann: Cann
    chip: str
    oses: tuple[str, ...]
    architectures: tuple[str, ...]
    soc_version: str
    device_type: str
    a2e: str
    a2e_reason: str
    cards: int
    device_nodes: tuple[str, ...]
    mounts: tuple[str, ...]
    run_options: tuple[str, ...]
    driver_min: str
    evidence: str
    licenses: tuple[str, ...]

    def base(self, os: str) -> str:
        """The tag of the CANN image for ``os``."""
        return f"{self.cann.registry}:{self.cann.version}-{self.chip}-{os}-py{self.cann.python}"


@dataclass(frozen=True)
class Cpu:
    """The CPU image."""

    title: str
    base: str
    os: str
    python: str
    architectures: tuple[str, ...]
    licenses: tuple[str, ...]


@dataclass(frozen=True)
class Images:
    """Everything about images. ``socs`` are the NPU rows by name."""

    common: Common
    sources: Mapping[str, Source]
    operators: OperatorSource
    cam: Cam
    canns: Mapping[str, Cann]
    socs: Mapping[str, Soc]
    cpu: Cpu

    def bases(self) -> tuple[str, ...]:
        """Every base image, without repetition: what has a digest in docker/digests.json."""
        tags = [soc.base(os) for soc in self.socs.values() for os in soc.oses]
        return tuple(dict.fromkeys([*tags, self.cpu.base]))


def read(top: Table) -> Images:
    """Raises ConfigError that names the row and what is wrong with it."""
    canns = _canns(top)
    operators = _operators(top)
    return Images(
        common=_common(top),
        sources=MappingProxyType(
            {name: _source(row) for name, row in top.rows("source", {"repository", "archive_sha256"})}
        ),
        operators=operators,
        cam=_cam(top),
        canns=canns,
        socs=_socs(top, canns, operators),
        cpu=_cpu(top),
    )


def _common(top: Table) -> Common:
    row = top.table("image", {"title", "vendor", "uid"})
    return Common(
        title=row.text("title", _ANY),
        vendor=row.text("vendor", _ANY),
        uid=row.count("uid"),
    )


def _source(row: Table) -> Source:
    return Source(row.text("repository", _URL), row.text("archive_sha256", _SHA256_OR_NONE))


def _operators(top: Table) -> OperatorSource:
    row = top.table(
        "operators", {"repository", "archive_sha256", "commit", "kernels_for", "vendor", "symbols"}
    )
    return OperatorSource(
        source=_source(row),
        commit=row.text("commit", _COMMIT),
        kernels_for=row.texts("kernels_for", _SOC),
        vendor=row.text("vendor", _WORD),
        symbols=row.texts("symbols", _WORD),
    )


def _cam(top: Table) -> Cam:
    names = {"soc", "os", "arch", "installer", "installer_git_blob", "wheel", "wheel_sha256"}
    row = top.table("cam", names)
    return Cam(
        soc=row.text("soc", _SOC),
        os=row.text("os", _OS),
        arch=row.text("arch", _ARCH),
        installer=row.text("installer", _FILE),
        installer_git_blob=row.text("installer_git_blob", _COMMIT),
        wheel=row.text("wheel", _FILE),
        wheel_sha256=row.text("wheel_sha256", _SHA256),
    )


def _canns(top: Table) -> Mapping[str, Cann]:
    versions = ("python", "torch", "torch_npu", "triton_ascend", "transformers", "mooncake")
    canns: dict[str, Cann] = {}
    owners: dict[str, str] = {}
    for name, row in top.rows(
        "cann", {"registry", "triton_ascend_index", "triton_ascend_sha256", "torch_cpu_sha256", *versions}
    ):
        hashes = row.table("triton_ascend_sha256", {"amd64", "arm64"})
        cann = Cann(
            version=name,
            registry=row.text("registry", _IMAGE),
            triton_ascend_index=row.text("triton_ascend_index", _URL),
            torch_cpu_sha256=row.text("torch_cpu_sha256", _SHA256_OR_NONE),
            triton_ascend_sha256=MappingProxyType(
                {arch: hashes.text(arch, _SHA256_OR_NONE) for arch in ("amd64", "arm64")}
            ),
            **{key: row.text(key, _PYTHON if key == "python" else _VERSION) for key in versions},
        )
        if not re.fullmatch(rf"{re.escape(cann.torch)}(\.post\d+)?", cann.torch_npu):
            raise row.wrong(
                "torch_npu", f"{cann.torch_npu} was not built for torch {cann.torch} of the same row"
            )
        owner = owners.setdefault(cann.torch_npu, name)
        if owner != name:
            raise row.wrong(
                "torch_npu", f"{cann.torch_npu} belongs to CANN {owner}; cells of two rows are never mixed"
            )
        canns[name] = cann
    return MappingProxyType(canns)


def _socs(top: Table, canns: Mapping[str, Cann], operators: OperatorSource) -> Mapping[str, Soc]:
    lists = {"aliases", "oses", "architectures", "device_nodes", "mounts", "run_options", "licenses"}
    texts = {
        "title",
        "cann",
        "chip",
        "soc_version",
        "device_type",
        "a2e",
        "a2e_reason",
        "driver_min",
        "evidence",
    }
    socs: dict[str, Soc] = {}
    for name, row in top.rows("soc", {*lists, *texts, "cards"}):
        if not _SOC.fullmatch(name):
            raise ConfigError(f"pins.toml: [soc.{name}]: {wrong_soc(name, ())}")
        cann = row.text("cann", _VERSION)
        if cann not in canns:
            raise row.wrong("cann", f"there is no row [cann.{cann!r}], only {', '.join(canns)}")
        soc = Soc(
            name=name,
            title=row.text("title", _ANY),
            aliases=row.texts("aliases", _WORD),
            cann=canns[cann],
            chip=row.text("chip", _WORD),
            oses=row.texts("oses", _OS),
            architectures=row.texts("architectures", _ARCH),
            soc_version=row.text("soc_version", _WORD),
            device_type=row.text("device_type", _WORD),
            a2e=row.text("a2e", _A2E),
            a2e_reason=row.text("a2e_reason", _ANY),
            cards=row.count("cards"),
            device_nodes=row.texts("device_nodes", _NODE),
            mounts=row.texts("mounts", _PATH),
            run_options=row.texts("run_options", _OPTION),
            driver_min=row.text("driver_min", _DRIVER),
            evidence=row.text("evidence", _ANY),
            licenses=row.texts("licenses", _WORD),
        )
        _consistent(row, soc, operators)
        socs[name] = soc
    return MappingProxyType(socs)


def _consistent(row: Table, soc: Soc, operators: OperatorSource) -> None:
    prefix = KERNEL_PREFIX.get(soc.device_type)
    if prefix is None or soc.device_type != soc.name.upper():
        raise row.wrong("device_type", f"must be {soc.name.upper()}, not {soc.device_type}")
    if not soc.soc_version.startswith(prefix):
        raise row.wrong(
            "soc_version",
            f"{soc.soc_version} must begin with {prefix}: upstream builds no kernels for another spelling, in silence",
        )
    if soc.chip == "910":
        raise row.wrong(
            "chip", "910 is the old chip and another family of tags; 910b is meant for A2, a3 for A3"
        )
    if soc.a2e == "built" and soc.name not in operators.kernels_for:
        raise row.wrong(
            "a2e",
            f'is "built", but the commit in [operators] has kernels for {", ".join(operators.kernels_for)} only; '
            "its build would end with success and leave them out",
        )


def _cpu(top: Table) -> Cpu:
    row = top.table("cpu", {"title", "base", "os", "python", "architectures", "licenses"})
    return Cpu(
        title=row.text("title", _ANY),
        base=row.text("base", _IMAGE),
        os=row.text("os", _OS),
        python=row.text("python", _PYTHON),
        architectures=row.texts("architectures", _ARCH),
        licenses=row.texts("licenses", _WORD),
    )


def wrong_soc(name: str, known: tuple[str, ...]) -> str:
    """Why ``name`` is no SOC, and what is meant where that can be known."""
    listed = f"; there is {', '.join(known)}" if known else ""
    if re.fullmatch(r"(ascend)?910", name):
        return f"{name} is the old chip, which is not supported; 910b means a2, 910c means a3{listed}"
    if name.startswith(("ascend", "310")):
        return f"{name} is a name for chips, not for an image{listed}"
    return f"{name!r} is no SOC{listed}"
