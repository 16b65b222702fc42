# SPDX-License-Identifier: Apache-2.0
"""The page docs/image-matrix.md: every image with its pins, what a container needs from a host, how it is started."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from afd.images import cell as matrix
from afd.images.rows import CPU, Images, Soc
from afd.pins import Pins

SHM = "16g"
STOP_S = 60


def render(pins: Pins, version: str) -> str:
    """The page's text."""
    images = pins.images
    lines = [
        "# Images",
        "",
        "What there is to build, and what a container of each image needs. [images.md](images.md) says how to build.",
        "**Nothing here has run on an NPU.** Device nodes and mounts are from what others have written, named below; a",
        "driver floor is unverified until somebody has shown one.",
        "",
        *_table(
            ("image", "tag", "base"),
            [(f"`{c.name}`", f"`{matrix.tag(version, c)}`", f"`{c.base}`") for c in matrix.cells(images)],
        ),
        "",
        "## What each is made of",
        "",
        *_table(("", CPU, *images.socs), list(_pins(pins))),
        "",
        *_needs(images),
        *_running(images, version),
    ]
    return "\n".join(lines) + "\n"


def docker_run(soc: Soc, image: str, cards: tuple[int, ...] = (0, 1)) -> list[str]:
    """The command that starts one container with ``cards``, an option a line."""
    nodes = [f"/dev/davinci{number}" for number in cards]
    return [
        "docker run --rm --name afd",
        f"--shm-size={SHM} --stop-timeout {STOP_S}",
        *soc.run_options,
        " ".join(f"--device {node}" for node in nodes),
        *(f"--device {node}" for node in soc.device_nodes),
        *(f"-v {path}:{path}:ro" for path in soc.mounts),
        "-v /models:/models:ro",
        f"{image} doctor",
    ]


def runtime_run(image: str, cards: tuple[int, ...] = (0, 1)) -> list[str]:
    """The same under the Ascend Docker Runtime, which adds nodes and mounts by itself."""
    return [
        "docker run --rm --name afd --runtime=ascend",
        f"-e ASCEND_VISIBLE_DEVICES={','.join(map(str, cards))}",
        f"--shm-size={SHM} --stop-timeout {STOP_S}",
        "-v /models:/models:ro",
        f"{image} doctor",
    ]


def _pins(pins: Pins) -> Iterator[tuple[str, ...]]:
    socs = pins.images.socs.values()
    cpu = pins.platforms[CPU]

    def row(what: str, of_cpu: str, of_soc: list[str]) -> tuple[str, ...]:
        return (what, of_cpu, *of_soc)

    yield row("for", pins.images.cpu.title, [s.title for s in socs])
    yield row("also called", "", [", ".join(s.aliases) for s in socs])
    yield row("`SOC_VERSION`", "", [f"`{s.soc_version}`" for s in socs])
    yield row("CANN", "", [s.cann.version for s in socs])
    yield row("Python", pins.images.cpu.python, [s.cann.python for s in socs])
    yield row("torch", cpu.torch, [s.cann.torch for s in socs])
    yield row("torch-npu", "", [s.cann.torch_npu for s in socs])
    yield row("Triton Ascend", "", [s.cann.triton_ascend for s in socs])
    yield row(
        "vLLM",
        f"`{cpu.distribution}` {pins.vllm_version}",
        [f"{pins.vllm_version} (`{pins.vllm_commit[:9]}`)" for _ in socs],
    )
    yield row("vLLM-Ascend", "", [f"`{pins.ascend_commit[:9]}`" for _ in socs])
    yield row("a2e and e2a", "", [f"{s.a2e}: {s.a2e_reason}" for s in socs])
    cam = pins.images.cam
    yield row(
        "CAM",
        "",
        [f"with your files, {cam.os} {cam.arch} only" if s.name == cam.soc else "none" for s in socs],
    )
    yield row("licenses", ", ".join(pins.images.cpu.licenses), [", ".join(s.licenses) for s in socs])


def _needs(images: Images) -> Iterator[str]:
    yield from ("## What a host brings", "")
    rows = [
        (
            soc.name,
            f"`/dev/davinci0` … `/dev/davinci{soc.cards - 1}`",
            ", ".join(f"`{node}`" for node in soc.device_nodes),
            "<br>".join(f"`{path}`" for path in soc.mounts),
            soc.driver_min,
            soc.evidence,
        )
        for soc in images.socs.values()
    ]
    yield from _table(
        ("SOC", "cards", "device nodes", "mounts, at the same path", "driver", "according to"), rows
    )
    yield ""


def _running(images: Images, version: str) -> Iterator[str]:
    yield from (
        "## Starting a container",
        "",
        "Two cards, one for each role. `doctor` says what is missing; put another command in its place afterwards.",
        "Read-only mounts and the size of shared memory are our choice, the rest is what others have written. The",
        "nodes of cards usually belong to a group of the host: a user that is not root needs `--group-add` with its",
        "number.",
        "",
    )
    for cell in matrix.cells(images):
        if cell.row is None:
            continue
        if (cell.os, cell.arch) != (cell.row.oses[0], cell.row.architectures[0]):
            continue
        image = matrix.tag(version, cell)
        yield from (f"### {cell.row.title}", "", "```sh", *_continued(docker_run(cell.row, image)), "```", "")
        yield from (
            "With the Ascend Docker Runtime:",
            "",
            "```sh",
            *_continued(runtime_run(image)),
            "```",
            "",
        )


def _continued(parts: list[str]) -> list[str]:
    return " \\\n  ".join(parts).splitlines()


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows)]
