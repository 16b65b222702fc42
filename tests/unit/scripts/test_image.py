# SPDX-License-Identifier: Apache-2.0
"""scripts/image.py, run as `make image` runs it: a small checkout of its own, and engines that write down their words.

It runs without site-packages, because nothing is installed where images are built.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
NEEDED = ("afd/__init__.py", "afd/errors.py", "afd/toml_data.py", "afd/pins.py", "afd/pins.toml", "afd/images",
          "scripts/image.py", "scripts/image_sources.py", "scripts/image_figures.py", "docker/digests.json",
          "VERSION")  # fmt: skip
VERSION = (ROOT / "VERSION").read_text(encoding="utf-8").strip()
# Python 3.10 reads TOML only with a package.
PYTHON = [sys.executable, "-S"] if sys.version_info >= (3, 11) else [sys.executable]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A checkout with no more than the script needs, committed."""
    checkout = tmp_path / "checkout"
    for name in NEEDED:
        target = checkout / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, target)
    (checkout / ".gitignore").write_text("__pycache__/\nbuild/\n")
    for command in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "all")):
        subprocess.run(
            ["git", "-C", str(checkout), "-c", "user.name=a", "-c", "user.email=a@example", *command],
            check=True,
        )
    return checkout


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A PATH of its own, with git and nothing else yet."""
    path = tmp_path / "bin"
    path.mkdir()
    git = shutil.which("git")
    assert git
    (path / "git").symlink_to(git)
    return path


def engine(tools: Path, name: str, code: int = 0) -> Path:
    """An engine that writes down its words. Returns the file they are in, a line a run."""
    log = tools / f"{name}.log"
    program = tools / name
    program.write_text(
        f"#!{sys.executable} -S\nimport json, sys\n"
        f"open({str(log)!r}, 'a').write(json.dumps(sys.argv[1:]) + '\\n')\nsys.exit({code})\n"
    )
    program.chmod(0o755)
    return log


def runs(log: Path) -> list[list[str]]:
    """What the engine was told to do; not what it was asked about itself and its images."""
    found = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return [words for words in found if words[0] not in ("info", "history", "image", "images")]


def image(project: Path, tools: Path, action: str, **given: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PYTHON, "-m", "scripts.image", action],
        cwd=project,
        env={"PATH": str(tools), "HOME": str(project), **given},
        capture_output=True,
        text=True,
        timeout=60,
    )


def resolve(project: Path) -> None:
    """Give every base image a digest, and commit."""
    path = project / "docker/digests.json"
    path.write_text(json.dumps({tag: f"sha256:{'a' * 64}" for tag in json.loads(path.read_text())}))
    subprocess.run(
        [
            "git",
            "-C",
            str(project),
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@example",
            "commit",
            "-qam",
            "digests",
        ],
        check=True,
    )


def only_line(done: subprocess.CompletedProcess[str]) -> str:
    """The one line that a refusal consists of."""
    assert done.returncode == 64, done.stderr
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "say for which SOC: make image SOC=cpu|a2|a3|a5"),
        ({"SOC": "910"}, "910b means a2, 910c means a3"),
        ({"SOC": "x"}, "'x' is no SOC; there is cpu, a2, a3, a5"),
        ({"SOC": "a3", "OS": "windows"}, "for SOC=a3 there is ubuntu22.04, openeuler24.03"),
        ({"SOC": "cpu", "ENGINE": "nerdctl"}, "ENGINE=nerdctl: there is docker, podman, buildah"),
        (
            {"SOC": "cpu", "ENGINE": "podman"},
            "no container engine: install podman, or print the command with DRY_RUN=1",
        ),
        ({"SOC": "cpu"}, "no container engine: install one of docker, podman, buildah"),
        ({"SOC": "cpu", "DRY_RUN": "yes"}, "DRY_RUN=yes: 1 or 0"),
        ({"SOC": "cpu", "DRY_RUN": "1", "CA": "/no/ca.pem"}, "CA=/no/ca.pem: there is no such file"),
        ({"SOC": "a3", "DRY_RUN": "1", "OPERATORS": "no"}, "OPERATORS=no: 1 builds"),
        ({"SOC": "a3", "ARCH": "amd64", "DRY_RUN": "1"}, "say TORCH_INDEX=https://…, an index that has it"),
        ({"SOC": "a2", "ARCH": "arm64", "DRY_RUN": "1", "CAM": "x"}, "work in a3-openeuler24.03-arm64 only"),
    ],
)
def test_what_cannot_be_built_is_one_line_that_says_what_to_do(
    project: Path, tools: Path, given: dict[str, str], says: str
) -> None:
    assert says in only_line(image(project, tools, "build", **given))


def test_docker_without_its_build_plugin_is_refused_by_its_name(project: Path, tools: Path) -> None:
    engine(tools, "docker", code=1)
    assert "without its plugin buildx" in only_line(image(project, tools, "build", SOC="cpu"))


def test_a_dry_run_prints_the_command_and_needs_no_engine(project: Path, tools: Path) -> None:
    done = image(project, tools, "build", SOC="a3", ARCH="arm64", DRY_RUN="1")
    assert done.returncode == 0
    assert done.stdout.startswith("docker buildx build --load --platform linux/arm64 ")
    assert f"--tag afd:{VERSION}-a3-ubuntu22.04-arm64 ." in done.stdout
    assert not (project / "build").exists()


def test_a_base_without_a_digest_is_a_warning_that_names_the_remedy(project: Path, tools: Path) -> None:
    done = image(project, tools, "build", SOC="cpu", DRY_RUN="1")
    assert "has no digest" in done.stderr
    assert "make digests" in done.stderr
    resolve(project)
    assert image(project, tools, "build", SOC="cpu", DRY_RUN="1").stderr == ""


def test_the_engine_gets_exactly_what_was_printed(project: Path, tools: Path) -> None:
    log = engine(tools, "podman")
    dry = image(
        project, tools, "build", SOC="cpu", ARCH="amd64", ENGINE="podman", DRY_RUN="1", ARGS="--network host"
    )
    done = image(project, tools, "build", SOC="cpu", ARCH="amd64", ARGS="--network host")
    assert done.returncode == 0, done.stderr
    printed, peak, built = done.stdout.splitlines()
    assert printed == dry.stdout.strip()
    assert peak.startswith("image: peak disk use of the build: not known")
    assert built == f"image: built afd:{VERSION}-cpu-debian12-amd64"
    (words,) = runs(log)
    assert words[-3:] == ["--network", "host", "."]
    assert f"REVISION={head(project)}" in words


def head(project: Path) -> str:
    return subprocess.check_output(["git", "-C", str(project), "rev-parse", "HEAD"], text=True).strip()


def test_a_build_that_fails_is_a_failure_of_make_too(project: Path, tools: Path) -> None:
    engine(tools, "podman", code=125)
    done = image(project, tools, "build", SOC="cpu")
    assert done.returncode == 1
    assert "`podman build --format …` ended with 125" in done.stderr


def test_without_a_network_the_missing_source_and_its_variable_are_named(project: Path, tools: Path) -> None:
    log = engine(tools, "podman")
    # A proxy that is not there: what git sees on a machine without a network.
    done = image(
        project, tools, "build", SOC="a2", ARCH="arm64", https_proxy="http://127.0.0.1:1", ENGINE="podman"
    )
    assert done.returncode == 64
    line = done.stderr.splitlines()[-1]
    assert line.startswith("image: cannot fetch vllm ")
    assert "VLLM_SOURCE=DIRECTORY" in line
    assert runs(log) == []


def test_a_changed_checkout_is_built_and_says_so(project: Path, tools: Path) -> None:
    (project / "VERSION").write_text("9.9.9\n")
    done = image(project, tools, "build", SOC="cpu", DRY_RUN="1")
    assert "the checkout has changes" in done.stderr
    assert "--build-arg DIRTY=1" in done.stdout


def test_a_checkout_without_git_is_of_no_revision(project: Path, tools: Path) -> None:
    shutil.rmtree(project / ".git")
    done = image(project, tools, "build", SOC="cpu", DRY_RUN="1")
    assert "--build-arg REVISION=unknown" in done.stdout


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"SOC": "cpu"}, "make release SOC=… REGISTRY=registry.example/team"),
        ({"SOC": "cpu", "REGISTRY": "r.example", "BASE": "mine"}, "leave BASE out"),
        ({"SOC": "cpu", "REGISTRY": "r.example"}, "has no digest in docker/digests.json; run make digests"),
    ],
)
def test_a_release_is_refused_before_anything_is_built(
    project: Path, tools: Path, given: dict[str, str], says: str
) -> None:
    log = engine(tools, "podman")
    assert says in only_line(image(project, tools, "release", **given))
    assert runs(log) == []


def test_a_release_of_a_changed_checkout_or_an_unhashed_wheel_is_refused(project: Path, tools: Path) -> None:
    resolve(project)
    line = only_line(image(project, tools, "release", SOC="a3", ARCH="arm64", REGISTRY="r.example"))
    assert "Triton Ascend" in line
    assert "has no SHA-256 in afd/pins.toml" in line
    pins = project / "afd/pins.toml"
    pins.write_text(pins.read_text().replace('amd64 = ""', f'amd64 = "{"0" * 64}"'))
    line = only_line(image(project, tools, "release", SOC="a3", ARCH="amd64", REGISTRY="r.example"))
    assert "the CPU-only build of torch" in line
    (project / "VERSION").write_text("9.9.9\n")
    assert "built from a commit" in only_line(
        image(project, tools, "release", SOC="cpu", REGISTRY="r.example")
    )


def test_a_release_is_built_and_then_pushed(project: Path, tools: Path) -> None:
    resolve(project)
    log = engine(tools, "podman")
    done = image(project, tools, "release", SOC="cpu", ARCH="amd64", REGISTRY="r.example/team")
    assert done.returncode == 0, done.stderr
    local = f"afd:{VERSION}-cpu-debian12-amd64"
    build, *rest = runs(log)
    assert build[0] == "build"
    assert rest == [["tag", local, f"r.example/team/{local}"], ["push", f"r.example/team/{local}"]]


@pytest.mark.parametrize(
    ("name", "saves", "loads"),
    [
        ("docker", ["save", "--output", "x.tar"], ["load", "--input", "x.tar"]),
        ("podman", ["save", "--format", "docker-archive", "--output", "x.tar"], ["load", "--input", "x.tar"]),
        ("buildah", ["push"], ["pull", "docker-archive:x.tar"]),
    ],
)
def test_an_image_is_saved_to_an_archive_and_loaded_from_it(
    project: Path, tools: Path, name: str, saves: list[str], loads: list[str]
) -> None:
    log = engine(tools, name)
    saved = image(project, tools, "save", SOC="cpu", ARCH="amd64", ENGINE=name, FILE="x.tar")
    (project / "x.tar").touch()
    loaded = image(project, tools, "load", ENGINE=name, FILE="x.tar")
    assert (saved.returncode, loaded.returncode) == (0, 0)
    first, second = (words for words in runs(log) if words[0] != "buildx")
    assert first[: len(saves)] == saves
    assert any(f"afd:{VERSION}-cpu-debian12-amd64" in word for word in first)
    assert second == loads


@pytest.mark.parametrize(
    ("action", "says"),
    [("push", "make push SOC=… REGISTRY="), ("load", "make load FILE="), ("save", "make image SOC=")],
)
def test_moving_an_image_says_what_is_missing(project: Path, tools: Path, action: str, says: str) -> None:
    assert says in only_line(image(project, tools, action))


def test_the_tag_is_printed_for_scripts(project: Path, tools: Path) -> None:
    done = image(project, tools, "tag", SOC="910c", OS="openeuler24.03", ARCH="arm64", REGISTRY="r.example")
    assert done.stdout == f"r.example/afd:{VERSION}-a3-openeuler24.03-arm64\n"
    assert len(image(project, tools, "names").stdout.splitlines()) == 14


def test_a_word_that_is_no_action_is_refused_with_those_there_are(project: Path, tools: Path) -> None:
    assert "say one of build, release" in only_line(image(project, tools, "bild"))


def test_make_reaches_the_script_with_the_words_on_its_command_line() -> None:
    make = shutil.which("make")
    assert make
    done = subprocess.run(
        [
            make,
            "-s",
            "-C",
            str(ROOT),
            "image",
            "SOC=a3",
            "OS=openeuler24.03",
            "ARCH=arm64",
            "ENGINE=podman",
            "DRY_RUN=1",
        ],
        env={**os.environ, "MAKEFLAGS": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.startswith("podman build --format docker --platform linux/arm64 "), done.stderr
