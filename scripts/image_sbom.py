# SPDX-License-Identifier: Apache-2.0
"""Writes what is in a built image: ``make sbom SOC=cpu`` (the words of ``make image``; or IMAGE= for any reference).

    build/afd-….cdx.json       a bill of materials, CycloneDX in JSON, checked against its schema
    build/afd-….licenses.txt   name, version and license of everything

It asks the packages themselves, in a container of the image: Python's metadata and the system's package database.
The same image gives the same bytes.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import License, LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from afd import pins
from afd.errors import AFDError, ConfigError, RoleFailedError
from afd.images import cell as matrix
from afd.images import manifest
from scripts import image

UNSTATED = "not stated"
_LONG = 100
"""A longer text in a license field is the license, not its name."""

# In the image's own Python, which has no more than that.
_PROBE = r"""
import json, pathlib, platform, shutil, subprocess
from importlib import metadata
python = []
for d in metadata.distributions():
    m = d.metadata
    python.append([m["Name"], d.version, m.get("License-Expression") or "", m.get("License") or "",
                   [c for c in m.get_all("Classifier") or [] if c.startswith("License ::")]])
system = []
if shutil.which("dpkg-query"):
    form = "${db:Status-Status}\t${Package}\t${Version}\t${Architecture}\n"
    for line in subprocess.check_output(["dpkg-query", "-W", "-f", form], text=True).splitlines():
        status, name, version, arch = line.split("\t")
        if status == "installed":
            text = pathlib.Path("/usr/share/doc", name, "copyright")
            names = [l[8:].strip() for l in text.read_text(errors="replace").splitlines() if l.startswith("License:")] \
                if text.exists() else []
            words = " AND ".join(sorted({n for n in names if n})) or (f"see {text}" if text.exists() else "")
            system.append(["deb", name, version, arch, words])
elif shutil.which("rpm"):
    form = "%{NAME}\t%{VERSION}-%{RELEASE}\t%{ARCH}\t%{LICENSE}\n"
    for line in subprocess.check_output(["rpm", "-qa", "--qf", form], text=True).splitlines():
        system.append(["rpm", *line.split("\t")])
release = platform.freedesktop_os_release()
image = pathlib.Path("/etc/afd/image.json").read_text()
print(json.dumps([python, system, [release["ID"], release.get("VERSION_ID", "")], image]))
"""


@dataclass(frozen=True, order=True)
class Package:
    """``kind`` is pypi, deb or rpm; ``license`` an SPDX expression or words, "" when the package does not say."""

    kind: str
    name: str
    version: str
    license: str
    arch: str = ""


@dataclass(frozen=True)
class Contents:
    packages: tuple[Package, ...]
    os: tuple[str, str]
    image: manifest.Manifest


def main(given: Mapping[str, str]) -> int:
    try:
        reference, engine = chosen(given)
        found = read(ask(engine, reference, given))
        target = image.ROOT / "build" / re.sub(r"[^A-Za-z0-9.]+", "-", reference)
        for path in write(reference, identity(engine, reference, given), found, target):
            print(f"sbom: {path.relative_to(image.ROOT)}")
        silent = [package.name for package in found.packages if not package.license]
        print(f"sbom: {len(found.packages)} packages; {len(silent)} do not say their license", flush=True)
    except AFDError as error:
        print(f"sbom: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def chosen(given: Mapping[str, str]) -> tuple[str, str]:
    """The image, and an engine that can run it."""
    engine = image.engine_of(given)
    if engine == "buildah":
        raise ConfigError("buildah runs no images; say ENGINE=podman, which has the same ones")
    if given.get("IMAGE"):
        return given["IMAGE"], engine
    return matrix.tag(image.checkout().version, image.chosen(pins.load(), given)), engine


def ask(engine: str, reference: str, given: Mapping[str, str]) -> str:
    """What a container of the image says about its packages. Raises ConfigError when there is no such image."""
    known = subprocess.run([engine, "image", "inspect", reference], env=dict(given), capture_output=True)
    if known.returncode:
        raise ConfigError(f"{engine} has no image {reference}; build it first: make image SOC=…")
    words = [engine, "run", "--rm", "--network", "none", "--entrypoint", "python", reference, "-c", _PROBE]
    done = subprocess.run(words, env=dict(given), capture_output=True, text=True)
    if done.returncode:
        tail = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise RoleFailedError(f"a container of {reference} ended with {done.returncode}: {tail}")
    return done.stdout


def identity(engine: str, reference: str, given: Mapping[str, str]) -> str:
    """The digest of the image's configuration, which stands for all of it."""
    words = [engine, "image", "inspect", "--format", "{{.Id}}", reference]
    done = subprocess.run(words, env=dict(given), capture_output=True, text=True, check=True)
    return done.stdout.strip().removeprefix("sha256:")


def read(answer: str) -> Contents:
    """The probe's answer, in order."""
    python, system, os_release, text = json.loads(answer.splitlines()[-1])
    packages = [
        Package("pypi", re.sub(r"[-_.]+", "-", name).lower(), version, stated(expression, words, classifiers))
        for name, version, expression, words, classifiers in python
    ]
    packages += [
        Package(kind, name, version, words, arch) for kind, name, version, arch, words in map(_row, system)
    ]
    return Contents(tuple(sorted(set(packages))), tuple(os_release), manifest.decode(text.encode()))


def _row(row: Sequence[str]) -> tuple[str, str, str, str, str]:
    kind, name, version, arch, words = row
    return kind, name, version, arch, words


def stated(expression: str, words: str, classifiers: Iterable[str]) -> str:
    """The license that Python metadata names; the newest of its three fields wins."""
    if expression:
        return expression
    if words and len(words) <= _LONG and "\n" not in words.strip() and words.strip().upper() != "UNKNOWN":
        return words.strip()
    names = [line.rpartition(" :: ")[2] for line in classifiers]
    return ", ".join(sorted({name for name in names if name != "OSI Approved"}))


def bill(reference: str, digest: str, found: Contents) -> Bom:
    """The bill of materials. Nothing in it is of today or of this machine."""
    factory = LicenseFactory()
    name, _, tag = reference.rpartition("/")[2].partition(":")
    bom = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_OID, digest), version=1)
    bom.metadata.timestamp = datetime.datetime.strptime(found.image.created, "%Y-%m-%dT%H:%M:%S%z")
    bom.metadata.component = Component(
        type=ComponentType.CONTAINER,
        name=name,
        version=tag,
        bom_ref="image",
        purl=PackageURL("oci", None, name, f"sha256:{digest}", {"arch": found.image.arch, "tag": tag}),
        properties=[
            Property(name="io.afd.soc", value=found.image.soc),
            Property(name="io.afd.revision", value=found.image.afd.revision),
            Property(name="io.afd.vllm.revision", value=found.image.vllm.commit),
            Property(name="io.afd.lock-sha256", value=found.image.lock_sha256),
        ],
    )
    for package in found.packages:
        bom.components.add(
            Component(
                type=ComponentType.LIBRARY,
                name=package.name,
                version=package.version,
                bom_ref=f"{package.kind}/{package.name}@{package.version}/{package.arch}".rstrip("/"),
                purl=_purl(package, found.os),
                licenses=[_license(factory, package.license)] if package.license else [],
            )
        )
    bom.register_dependency(bom.metadata.component, bom.components)
    return bom


def _purl(package: Package, release: tuple[str, str]) -> PackageURL:
    if package.kind == "pypi":
        return PackageURL("pypi", None, package.name, package.version)
    distro = "-".join(filter(None, release))
    return PackageURL(
        package.kind,
        release[0].lower(),
        package.name,
        package.version,
        {"arch": package.arch, "distro": distro},
    )


def _license(factory: LicenseFactory, words: str) -> License | LicenseExpression:
    """An SPDX identifier or expression where ``words`` are one, else the words."""
    return factory.make_from_string(words)


def table(found: Contents) -> str:
    """Name, version, license: a line a package."""
    rows = [(f"{p.kind} {p.name}", p.version, p.license or UNSTATED) for p in found.packages]
    wide = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return "".join(f"{name:{wide[0]}}  {version:{wide[1]}}  {words}\n" for name, version, words in rows)


def write(reference: str, digest: str, found: Contents, target: Path) -> list[Path]:
    """Both files. Raises RoleFailedError when the bill breaks CycloneDX's schema."""
    text = JsonV1Dot6(bill(reference, digest, found)).output_as_string(indent=2) + "\n"
    fault = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if fault is not None:
        raise RoleFailedError(f"the bill of materials is not valid: {fault}")
    target.parent.mkdir(parents=True, exist_ok=True)
    paths = [target.with_name(f"{target.name}.{end}") for end in ("cdx.json", "licenses.txt")]
    paths[0].write_text(text, encoding="utf-8")
    paths[1].write_text(table(found), encoding="utf-8")
    return paths


if __name__ == "__main__":
    sys.exit(main(os.environ))
