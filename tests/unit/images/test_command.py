# SPDX-License-Identifier: Apache-2.0
"""afd/images/command.py: what the build command says, for every engine. The whole text is in snapshots/."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from afd import pins
from afd.errors import ConfigError
from afd.images import cell as matrix
from afd.images import command
from afd.images.command import Checkout, Options

PINNED = pins.load()
CHECKOUT = Checkout("1.2.3", "a" * 40, False, 86400)
CAM_CELL = matrix.choose(PINNED.images, "a3", "openeuler24.03", "arm64")
A2 = matrix.choose(PINNED.images, "a2", "", "arm64")
CPU = matrix.choose(PINNED.images, "cpu", "", "amd64")


def words(cell: matrix.Cell, options: Options = Options(), known: Mapping[str, str] = {}) -> list[str]:  # noqa: B008
    return command.command(PINNED, cell, CHECKOUT, known, options)


def values(found: list[str], flag: str) -> dict[str, str]:
    """The NAME=VALUE pairs behind every ``flag``."""
    pairs = [found[i + 1] for i, word in enumerate(found) if word == flag]
    return dict(pair.split("=", 1) for pair in pairs)


@pytest.mark.parametrize(
    ("engine", "start"),
    [
        ("docker", ["docker", "buildx", "build", "--load"]),
        ("podman", ["podman", "build", "--format", "docker"]),
        ("buildah", ["buildah", "build", "--format", "docker"]),
    ],
)
def test_every_engine_gets_the_same_build_and_podman_the_format_that_keeps_everything(
    engine: str, start: list[str]
) -> None:
    found = words(A2, Options(engine=engine))
    assert found[: len(start)] == start
    assert found[len(start) :] == words(A2)[4:]


def test_a_base_with_a_digest_is_built_from_the_digest() -> None:
    digest = f"sha256:{'0' * 64}"
    found = values(words(A2, known={A2.base: digest}), "--build-arg")
    assert (found["BASE"], found["BASE_NAME"], found["BASE_DIGEST"]) == (
        f"{A2.base}@{digest}",
        A2.base,
        digest,
    )
    without = values(words(A2), "--build-arg")
    assert (without["BASE"], without["BASE_DIGEST"]) == (A2.base, "")


def test_another_base_replaces_the_pinned_one() -> None:
    found = values(
        words(CPU, Options(base="localhost/debian:mine"), {CPU.base: "sha256:" + "0" * 64}), "--build-arg"
    )
    assert (found["BASE"], found["BASE_NAME"], found["BASE_DIGEST"]) == ("localhost/debian:mine",) * 2 + ("",)


def test_operators_are_built_where_there_are_kernels_and_can_be_left_out() -> None:
    for cell, options, expected in (
        (CAM_CELL, Options(), "built"),
        (CAM_CELL, Options(operators=False), "none"),
        (A2, Options(), "none"),
    ):
        found = words(cell, options)
        assert values(found, "--build-arg")["A2E"] == expected
        assert (values(found, "--build-context")["operators-source"] == command.NOTHING) == (
            expected == "none"
        )


def test_cam_files_are_a_context_of_their_own() -> None:
    found = words(CAM_CELL, Options(cam=True))
    assert values(found, "--build-context")["cam"] == f"{command.SOURCES}/cam"
    assert values(found, "--build-arg")["CAM"] == "user"


def test_what_belongs_to_this_machine_is_a_secret_and_no_argument() -> None:
    found = words(CPU, Options(certificates="site.pem", pip_config="pip.conf"))
    assert [found[i + 1] for i, word in enumerate(found) if word == "--secret"] == [
        "id=certificates,src=site.pem",
        "id=pip,src=pip.conf",
    ]
    assert not {"site.pem", "pip.conf"} & set(values(found, "--build-arg").values())


def test_the_time_of_the_commit_is_the_time_of_the_image() -> None:
    found = values(words(CPU), "--build-arg")
    assert (found["SOURCE_DATE_EPOCH"], found["CREATED"]) == ("86400", "1970-01-02T00:00:00Z")


def test_further_arguments_go_through_before_the_context() -> None:
    assert words(CPU, Options(extra=("--network", "host", "--build-arg", "MINE=1")))[-5:] == [
        "--network", "host", "--build-arg", "MINE=1", ".",
    ]  # fmt: skip


@pytest.mark.parametrize("extra", [("--build-arg", "TORCH_NPU=9"), ("--build-arg=TORCH_NPU=9",)])
def test_a_pinned_argument_cannot_be_replaced_on_the_command_line(extra: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"TORCH_NPU comes from afd/pins\.toml"):
        words(A2, Options(extra=extra))


def test_the_cpu_image_needs_no_upstream_sources() -> None:
    assert "--build-context" not in words(CPU)
    assert "docker/cpu.Dockerfile" in words(CPU)
