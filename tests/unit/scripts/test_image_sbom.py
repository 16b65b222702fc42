# SPDX-License-Identifier: Apache-2.0
"""scripts/image_sbom.py: the probe's answer becomes a bill that is valid, says every license, and is the same twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from afd.errors import ConfigError, RoleFailedError
from afd.images import manifest
from scripts import image_sbom as sbom
from tests.unit.manifest_examples import EXAMPLE

ANSWER = json.dumps(
    [
        [
            ["Torch_Thing", "2.0", "BSD-3-Clause AND MIT", "", []],
            ["old", "1.0", "", "MIT", ["License :: OSI Approved :: BSD License"]],
            [
                "long",
                "1.0",
                "",
                "Permission is hereby granted\nto anybody",
                ["License :: OSI Approved :: ISC License"],
            ],
            ["silent", "1.0", "", "UNKNOWN", ["License :: OSI Approved"]],
        ],
        [
            ["deb", "libnuma1", "2.0.16-1", "amd64", "LGPL-2.1 AND public-domain"],
            ["deb", "mute", "1", "all", ""],
        ],
        ["debian", "12"],
        manifest.encode(EXAMPLE).decode(),
    ]
)
FOUND = sbom.read(f"a warning before it\n{ANSWER}\n")
LICENSES = {
    "torch-thing": "BSD-3-Clause AND MIT", "old": "MIT", "long": "ISC License", "silent": "",
    "libnuma1": "LGPL-2.1 AND public-domain", "mute": "",
}  # fmt: skip


def test_every_package_has_the_license_that_its_metadata_states() -> None:
    assert {package.name: package.license for package in FOUND.packages} == LICENSES


def test_the_list_of_licenses_says_where_one_is_not_stated() -> None:
    lines = sbom.table(FOUND).splitlines()
    assert [line.split()[-2:] for line in lines if "silent" in line] == [["not", "stated"]]
    assert any(
        line.startswith("pypi torch-thing ") and line.endswith("BSD-3-Clause AND MIT") for line in lines
    )
    assert len(lines) == len(LICENSES)


def test_the_bill_is_valid_names_every_package_and_is_the_same_twice(tmp_path: Path) -> None:
    written = [sbom.write("r.example/afd:1-cpu", "a" * 64, FOUND, tmp_path / n / "x") for n in ("one", "two")]
    assert [p.name for p in written[0]] == ["x.cdx.json", "x.licenses.txt"]
    assert [p.read_bytes() for p in written[0]] == [p.read_bytes() for p in written[1]]
    bill = json.loads(written[0][0].read_text())
    assert bill["metadata"]["timestamp"].startswith("2026-01-02T03:04:05")
    assert (bill["metadata"]["component"]["name"], bill["metadata"]["component"]["version"]) == (
        "afd",
        "1-cpu",
    )
    purls = {component["name"]: component["purl"] for component in bill["components"]}
    assert purls["torch-thing"] == "pkg:pypi/torch-thing@2.0"
    assert purls["libnuma1"] == "pkg:deb/debian/libnuma1@2.0.16-1?arch=amd64&distro=debian-12"
    licenses = {component["name"]: component.get("licenses") for component in bill["components"]}
    assert licenses["torch-thing"] == [{"expression": "BSD-3-Clause AND MIT"}]
    assert licenses["old"] == [{"license": {"id": "MIT"}}]
    assert licenses["long"] == [{"license": {"name": "ISC License"}}]
    assert licenses["silent"] is None
    (image,) = (row for row in bill["dependencies"] if row["ref"] == "image")
    assert len(image["dependsOn"]) == len(LICENSES)


def test_a_bill_that_breaks_the_schema_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sbom.JsonV1Dot6, "output_as_string", lambda *_, **__: '{"bomFormat": "CycloneDX"}')
    with pytest.raises(RoleFailedError, match="not valid"):
        sbom.write("afd:1", "a" * 64, FOUND, tmp_path / "x")
    assert not list(tmp_path.iterdir())


def engine(directory: Path, body: str) -> dict[str, str]:
    program = directory / "podman"
    program.write_text(f"#!{sys.executable} -S\nimport sys\n{body}\n")
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{directory}:{os.environ['PATH']}", "ENGINE": "podman", "SOC": "cpu"}


@pytest.mark.parametrize(
    ("body", "kind", "says"),
    [
        ("sys.exit(1)", ConfigError, "build it first: make image SOC=…"),
        (
            "if sys.argv[1] == 'run':\n    print('no python', file=sys.stderr)\n    sys.exit(127)",
            RoleFailedError,
            "ended with 127: no python",
        ),
    ],
)
def test_an_image_that_is_not_there_or_cannot_be_asked_is_told(
    body: str, kind: type[Exception], says: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=says):
        sbom.ask("podman", "afd:1", engine(tmp_path, body))


def test_make_sbom_writes_both_files_of_what_a_container_said(tmp_path: Path) -> None:
    (tmp_path / "answer").write_text(ANSWER)
    body = (
        "if sys.argv[1] == 'run':\n"
        f"    print(open({str(tmp_path / 'answer')!r}).read())\n"
        f"else:\n    print('sha256:' + 'b' * 64)"
    )
    environment = {**engine(tmp_path, body), "IMAGE": "r.example/afd-of-a-test:1"}
    root = Path(__file__).resolve().parents[3]
    written = [root / f"build/r.example-afd-of-a-test-1.{end}" for end in ("cdx.json", "licenses.txt")]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "scripts.image_sbom"],
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert "6 packages; 2 do not say their license" in done.stdout
        assert all(path.stat().st_size for path in written)
    finally:
        for path in written:
            path.unlink(missing_ok=True)


def test_buildah_is_refused_because_it_runs_no_images(tmp_path: Path) -> None:
    environment = engine(tmp_path, "")
    (tmp_path / "podman").rename(tmp_path / "buildah")
    with pytest.raises(ConfigError, match="ENGINE=podman"):
        sbom.chosen({**environment, "ENGINE": "buildah"})
