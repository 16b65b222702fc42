# SPDX-License-Identifier: Apache-2.0
"""scripts/image_figures.py: what is said about disk, size and layers, with engines that say what was made up here."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from scripts import image_figures as figures

MIB = 1 << 20


def engine(directory: Path, name: str, answers: dict[str, str]) -> dict[str, str]:
    """An engine on a PATH of its own that answers by its first word. Returns the environment."""
    program = directory / name
    program.write_text(f"#!{sys.executable} -S\nimport sys\nprint({answers!r}[sys.argv[1]])\n")
    program.chmod(0o755)
    return {"PATH": str(directory), "TMPDIR": str(directory)}


@pytest.mark.parametrize(
    ("name", "keys"),
    [("docker", ("DockerRootDir",)), ("podman", ("store", "graphRoot")), ("buildah", ("store", "GraphRoot"))],
)
def test_the_engines_own_directory_is_watched(name: str, keys: tuple[str, ...], tmp_path: Path) -> None:
    said: object = str(tmp_path)
    for key in reversed(keys):
        said = {key: said}
    environment = engine(tmp_path, name, {"info": json.dumps(said)})
    assert figures.watched(name, environment) is not None


def test_an_engine_on_another_machine_is_not_watched(tmp_path: Path) -> None:
    environment = engine(tmp_path, "docker", {"info": json.dumps({"DockerRootDir": "/not/on/this/machine"})})
    assert figures.watched("docker", environment) is None
    assert figures.watched("podman", environment) is None  # not installed
    assert "on another machine" in figures.lines(None, None, [])[0]


def test_the_peak_is_seen_though_the_space_is_free_again_at_the_end(tmp_path: Path) -> None:
    free = iter([900 * MIB, 900 * MIB, 300 * MIB, 700 * MIB])

    class Sampled(figures.Peak):
        @staticmethod
        def _free(path: Path) -> int:
            return next(free, 700 * MIB)

    peak = Sampled(tmp_path)
    deadline = time.monotonic() + 20
    with peak:
        while peak.bytes < 600 * MIB and time.monotonic() < deadline:
            time.sleep(0.02)
    assert peak.bytes == 600 * MIB


def test_two_directories_of_one_file_system_count_once(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert len(figures.Peak(tmp_path, tmp_path / "a", tmp_path / "absent")._directories) == 1


def test_layers_come_largest_first_with_the_instruction_that_made_them(tmp_path: Path) -> None:
    rows = [
        {"size": 0, "CreatedBy": "/bin/sh -c #(nop) USER 1000"},
        {"size": 20, "CreatedBy": "/bin/sh -c #(nop) COPY dir:1 in /var"},
        {
            "size": 5000,
            "CreatedBy": "/bin/bash -eo pipefail -c --mount=type=bind,from=x bash   /steps/install.sh",
        },
        {"size": 300, "CreatedBy": ""},
    ]
    docker = "\n".join(json.dumps({"Size": str(r["size"]), "CreatedBy": r["CreatedBy"]}) for r in rows)
    expected = [(5000, "bash /steps/install.sh"), (300, "the base image"), (20, "COPY dir:1 in /var")]
    for name, text in (("podman", json.dumps(rows)), ("docker", docker)):
        environment = engine(tmp_path, name, {"history": text, "image": "5320"})
        found = figures.layers(name, "x", environment)
        assert [(layer.size, layer.made_by) for layer in found] == expected
        assert figures.size(name, "x", environment) == 5320


def test_buildah_says_a_size_and_no_layers(tmp_path: Path) -> None:
    environment = engine(tmp_path, "buildah", {"images": json.dumps([{"size": "6.31 GB"}])})
    assert figures.size("buildah", "x", environment) == 6_310_000_000
    assert figures.layers("buildah", "x", environment) == []


def test_what_is_said_has_units_a_person_reads() -> None:
    assert figures.said(6_310_000_000) == "6.31 GB"
    assert figures.said(4_200_000) == "4.2 MB"
    told = figures.lines(None, 7 * 10**9, [figures.Layer(6 * 10**9, "RUN x")] * 9)
    assert told[1:3] == ["size of the image: 7.00 GB", "  layer of 6.00 GB: RUN x"]
    assert len(told) == 2 + figures.SHOWN
