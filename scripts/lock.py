# SPDX-License-Identifier: Apache-2.0
"""Writes requirements/ from afd/pins.toml and pyproject.toml. Run it in the project's environment after editing
either: ``.venv/bin/python scripts/lock.py`` (``--upgrade`` also moves everything that is not pinned).

    boot.txt   uv alone, with hashes: what pip installs first
    cpu.in     the direct requirements of the CPU platform
    cpu.over   what overrides upstream's own metadata there
    cpu.txt    the lock: every package for every supported Python, with hashes
    cpu-image.txt  what of it the CPU image installs: one Python, nothing for development
    npu.*      the same for NPU images, which have one Python; without what images build from source (vLLM,
               vLLM-Ascend, this project) and without Triton Ascend, which no common index has

A test (tests/rules) compares the inputs and the versions in the locks with the pins, without a network.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from afd import pins

REQUIREMENTS = Path(__file__).resolve().parent.parent / "requirements"
HEADER = "# Written by scripts/lock.py from afd/pins.toml. Do not edit.\n"


# torch's own metadata on x86 asks for these; the builds of torch that work beside an NPU do not.
NPU_EXCLUDED = (
    "intel-openmp", "torchaudio", "torchcodec", "torchvision", "triton",
    *(f"nvidia-{name}-cu12" for name in (
        "cublas", "cuda-cupti", "cuda-nvrtc", "cuda-runtime", "cudnn", "cufft", "cufile", "curand", "cusolver",
        "cusparse", "nccl", "nvjitlink", "nvshmem", "nvtx",
    )),
    "nvidia-cusparselt-cu12", "cuda-bindings",
)  # fmt: skip


def inputs(pinned: pins.Pins) -> dict[str, str]:
    """File name -> text of the resolver's inputs."""
    cpu = pinned.platforms["cpu"]
    direct = [f"{cpu.distribution}=={pinned.vllm_version}", f"torch=={cpu.torch}", f"uv=={pinned.uv}"]
    # vLLM's CPU build asks for torch with a local version that only upstream's own index has; the plain version
    # of the same release works. An excluded package keeps a line in the lock, with a marker that is never true.
    override = [f"torch=={cpu.torch}", *map(_never, cpu.excluded)]
    direct.append(f"supervisor=={pinned.supervisor}")
    # One lock for all SOCs, because all name one row of CANN; a second row wants a lock of its own.
    (cann,) = {soc.cann.version: soc.cann for soc in pinned.images.socs.values()}.values()
    npu = [
        # Its metadata stands for what vLLM needs on any platform; the image builds vLLM itself.
        f"{cpu.distribution}=={pinned.vllm_version}",
        f"torch=={cann.torch}",
        f"torch-npu=={cann.torch_npu}",
        f"transformers=={cann.transformers}",
        f"mooncake-transfer-engine-npu=={cann.mooncake}",
        f"supervisor=={pinned.supervisor}",
        "setuptools-rust",  # vLLM's setup.py imports it, whatever it builds for
        *pinned.ascend_requires,
    ]
    return {
        "cpu.in": _lines(direct),
        "cpu.over": _lines(override),
        "npu.in": _lines(npu),
        "npu.over": _lines([f"torch=={cann.torch}", *map(_never, NPU_EXCLUDED)]),
    }


def main() -> None:
    pinned = pins.load()
    for name, text in inputs(pinned).items():
        (REQUIREMENTS / name).write_text(text, encoding="utf-8")
    everywhere = ["--python-version", pinned.python.minimum]
    (npu_python,) = {row.python for row in pinned.images.canns.values()}
    with tempfile.TemporaryDirectory() as directory:
        boot = Path(directory) / "boot.in"
        boot.write_text(f"uv=={pinned.uv}\n", encoding="utf-8")
        for sources, options, output in (
            ([str(boot)], everywhere, "boot.txt"),
            (
                ["pyproject.toml", "requirements/cpu.in"],
                [*everywhere, "--group", "pyproject.toml:dev", "--override", "requirements/cpu.over"],
                "cpu.txt",
            ),
            (
                ["pyproject.toml", "requirements/cpu.in"],
                [
                    "--python-version", pinned.images.cpu.python, "--override", "requirements/cpu.over",
                    "--constraint", "requirements/cpu.txt", "--no-emit-package", "uv",
                ],
                "cpu-image.txt",
            ),
            (
                ["pyproject.toml", "requirements/npu.in"],
                [
                    "--python-version", npu_python, "--override", "requirements/npu.over",
                    "--no-emit-package", pinned.platforms["cpu"].distribution,
                ],
                "npu.txt",
            ),
        ):  # fmt: skip
            compile_lock(sources, options, output)


def compile_lock(sources: list[str], options: list[str], output: str) -> None:
    """Resolve ``sources`` and write the lock."""
    command = [
        str(Path(sys.executable).with_name("uv")), "pip", "compile", "--quiet", "--universal", "--generate-hashes",
        "--no-emit-index-url", "--no-emit-find-links", "--no-annotate", "--no-header",
        *sys.argv[1:], *sources, *options, "--output-file", f"requirements/{output}",
    ]  # fmt: skip
    subprocess.run(command, cwd=REQUIREMENTS.parent, check=True)
    lock = REQUIREMENTS / output
    lock.write_text(HEADER + lock.read_text(encoding="utf-8"), encoding="utf-8")


def _never(name: str) -> str:
    return f"{name}; sys_platform == 'never'"


def _lines(lines: list[str]) -> str:
    return HEADER + "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    main()
