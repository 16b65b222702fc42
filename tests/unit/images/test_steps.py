# SPDX-License-Identifier: Apache-2.0
"""docker/steps: the scripts of the build that can run here, with programs that write down what they are given."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

STEPS = Path(__file__).resolve().parents[3] / "docker/steps"
LOCK = (
    "left==1.0 \\\n    --hash=sha256:01 \\\n    --hash=sha256:02\n"
    "torch==4.0 \\\n    --hash=sha256:03 \\\n    --hash=sha256:04\n"
    "torch-npu==5.0 \\\n    --hash=sha256:05\n"
)


def run(script: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    base = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
    return subprocess.run(
        ["bash", str(STEPS / script), *words],
        env={**base, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def python3(tmp_path: Path) -> Path:
    """A folder for PATH with a python3 that writes down its words and what its requirement file said."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "python3"
    log = tmp_path / "log"
    program.write_text(
        f"#!{sys.executable} -S\nimport json, os, sys\nwords = sys.argv[1:]\n"
        "text = open(words[-1]).read() if words[-2] == '--requirement' else ''\n"
        f"open({str(log)!r}, 'a').write(json.dumps([words, text]) + '\\n')\n"
        "if words[:2] == ['-m', 'venv']:\n"
        "    os.makedirs(words[-1] + '/bin')\n    os.symlink(__file__, words[-1] + '/bin/pip')\n"
    )
    program.chmod(0o755)
    return folder


def log(python3: Path) -> list[tuple[list[str], str]]:
    return [tuple(json.loads(line)) for line in (python3.parent / "log").read_text().splitlines()]


def locked_wheels(python3: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    lock = python3.parent / "lock.txt"
    lock.write_text(LOCK)
    return run(
        "locked-wheels.sh", str(lock), str(python3.parent / "wheels"), str(python3.parent / "build"),
        **{"TORCH": "4.0", "TORCH_SHA256": "", "TRITON_ASCEND": "6.0", "TRITON_ASCEND_SHA256": "",
           "TRITON_ASCEND_INDEX": "https://mirror", "PATH": f"{python3}:/usr/bin:/bin", **environment},
    )  # fmt: skip


def test_the_whole_lock_is_downloaded_with_its_hashes(python3: Path) -> None:
    done = locked_wheels(python3, ARCH="arm64", TRITON_ASCEND_SHA256="ab")
    assert done.returncode == 0, done.stderr
    (words, text), (more, triton), *_ = log(python3)
    assert {"--require-hashes", "--only-binary", "--no-deps"} <= set(words)
    assert text == LOCK
    assert (more[more.index("--index-url") + 1], triton) == (
        "https://mirror",
        "triton-ascend==6.0 --hash=sha256:ab\n",
    )
    assert "warning" not in done.stderr


def test_on_amd64_torch_comes_from_its_own_index_and_its_lines_leave_the_lock(python3: Path) -> None:
    done = locked_wheels(python3, ARCH="amd64", TORCH_INDEX="https://cpu-only", TORCH_SHA256="cd")
    assert done.returncode == 0, done.stderr
    (words, torch), (_, rest), *_ = log(python3)
    assert (words[words.index("--index-url") + 1], torch) == (
        "https://cpu-only",
        "torch==4.0+cpu --hash=sha256:cd\n",
    )
    assert rest.splitlines() == [line for line in LOCK.splitlines() if line not in LOCK.splitlines()[3:6]]


def test_on_amd64_without_an_index_for_torch_the_build_ends(python3: Path) -> None:
    done = locked_wheels(python3, ARCH="amd64")
    assert done.returncode != 0
    assert "an index with the CPU-only build of torch" in done.stderr


def test_a_wheel_without_a_pinned_hash_is_taken_with_a_warning(python3: Path) -> None:
    done = locked_wheels(python3, ARCH="arm64")
    assert "triton-ascend==6.0 has no SHA-256 in afd/pins.toml" in done.stderr


def test_without_secrets_a_command_runs_as_it_is(tmp_path: Path) -> None:
    done = run("with-site.sh", "bash", "-c", "env; exit 3", BUILD_SECRETS=str(tmp_path))
    assert done.returncode == 3
    assert "PIP_" not in done.stdout


def test_a_sites_certificates_and_settings_reach_the_command_and_leave_nothing(tmp_path: Path) -> None:
    (tmp_path / "certificates").write_text("SITE\n")
    (tmp_path / "pip").write_text("[global]\n")
    show = 'echo "$PIP_CONFIG_FILE"; echo "$PIP_CERT"; tail -n 1 "$SSL_CERT_FILE"; cat "$APT_CONFIG"'
    done = run("with-site.sh", "bash", "-c", show, BUILD_SECRETS=str(tmp_path))
    settings, bundle, last, apt = done.stdout.splitlines()
    assert (settings, last, apt) == (str(tmp_path / "pip"), "SITE", f'Acquire::https::CAInfo "{bundle}";')
    assert not Path(bundle).exists()


def test_an_os_without_a_list_of_packages_ends_the_build() -> None:
    done = run("packages.sh", "debian9", "runtime")
    assert done.returncode == 1
    assert "no list for OS 'debian9', stage 'runtime'" in done.stderr


def test_outside_canns_image_the_build_says_so() -> None:
    done = run("with-cann.sh", "true")
    assert done.returncode == 1
    assert "is this CANN's base image?" in done.stderr


def test_an_image_without_operators_gets_an_empty_folder_for_them(tmp_path: Path) -> None:
    done = run("operators.sh", "none", "none", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    folders = {p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*")}
    assert {"wheels", "root/opt/afd/operators"} <= folders
    assert not [p for p in (tmp_path / "out").rglob("*") if p.is_file()]


DIES = "import os, sys; 'compileall' in sys.orig_argv and os._exit(9)\n"
"""A line that each Python of an environment runs when it starts: as if something killed the one that compiles."""


def wheel(folder: Path, files: dict[str, str]) -> None:
    """Puts the wheel of a distribution called thing into a folder."""
    folder.mkdir()
    with zipfile.ZipFile(folder / "thing-1.0-py3-none-any.whl", "w") as made:
        for name, text in files.items():
            made.writestr(name, text)
        made.writestr("thing-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n")
        made.writestr(
            "thing-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        made.writestr("thing-1.0.dist-info/RECORD", "")


def test_wheels_are_installed_compiled_so_that_the_times_of_files_do_not_matter(tmp_path: Path) -> None:
    wheel(tmp_path / "wheels", {"thing.py": "VALUE = 1\n", "template.py": "{{ no Python }}\n"})
    prefix = tmp_path / "afd"
    (tmp_path / "none").mkdir()
    done = run("install.sh", sys.executable, str(prefix), str(tmp_path / "wheels"), str(tmp_path / "none"))
    assert done.returncode == 0, done.stderr
    (compiled,) = prefix.glob("lib/python3.*/site-packages/__pycache__/thing.*.pyc")
    # Bit 0: known by a hash. Bit 1, not set: and not looked at again.
    assert compiled.read_bytes()[4] == 1
    assert "template.py" in done.stdout + done.stderr  # passed over, and said


def test_a_compiler_that_does_not_come_to_its_end_ends_the_build(tmp_path: Path) -> None:
    wheel(tmp_path / "wheels", {"thing.py": "VALUE = 1\n", "dies.pth": DIES})
    done = run("install.sh", sys.executable, str(tmp_path / "afd"), str(tmp_path / "wheels"))
    assert done.returncode == 9


CPU_LOCK = (
    "left==1.0 \\\n    --hash=sha256:01 \\\n    --hash=sha256:02\n"
    "cuda-bindings==3.0 ; sys_platform == 'linux' \\\n    --hash=sha256:03\n"
    "nvidia-cudnn-cu13==9.0 ; sys_platform == 'linux' \\\n    --hash=sha256:04 \\\n    --hash=sha256:05\n"
    "torch==4.0 \\\n    --hash=sha256:06\n"
    "torchaudio==4.0 ; sys_platform == 'never' \\\n    --hash=sha256:07\n"
    "triton==5.0 ; sys_platform == 'linux' \\\n    --hash=sha256:08\n"
)


def cpu_wheels(python3: Path, **environment: str) -> list[tuple[list[str], str]]:
    """What pip is asked for, and the lock it is given."""
    lock = python3.parent / "lock.txt"
    lock.write_text(CPU_LOCK)
    done = run(
        "cpu-wheels.sh", str(lock), str(python3.parent / "wheels"), str(python3.parent / "build"),
        **{"TORCH": "4.0", "PATH": f"{python3}:/usr/bin:/bin", **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert ("no SHA-256" in done.stderr) == bool(environment.get("TORCH_INDEX"))
    return [row for row in log(python3) if row[0][0] == "wheel"]


def test_the_cpu_image_takes_the_whole_lock_with_its_hashes(python3: Path) -> None:
    ((words, text),) = cpu_wheels(python3, TORCH_INDEX="")
    assert {"--require-hashes", "--only-binary", "--no-deps"} <= set(words)
    assert "--index-url" not in words
    assert text == CPU_LOCK


def test_with_an_index_of_cpu_only_torch_what_the_other_build_needs_is_left_out(python3: Path) -> None:
    (torch, _), (words, text) = cpu_wheels(python3, TORCH_INDEX="https://cpu-only")
    assert torch[-3:] == ["--index-url", "https://cpu-only", "torch==4.0+cpu"]
    assert "--require-hashes" in words and "--index-url" not in words
    kept = [
        line.partition("==")[0] for line in text.splitlines() if "==" in line and not line.startswith(" ")
    ]
    assert kept == ["left", "torchaudio", "triton"]
    assert [line.strip(" \\") for line in text.splitlines() if line.startswith(" ")] == [
        f"--hash=sha256:{number}" for number in ("01", "02", "07", "08")
    ]


def test_a_base_with_another_python_ends_the_build() -> None:
    major, minor = sys.version_info[:2]
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    assert run("check-python.sh", f"{major}.{minor}", PATH=path).returncode == 0
    done = run("check-python.sh", f"{major}.{minor + 1}", PATH=path)
    assert done.returncode == 1
    assert f"has Python {major}.{minor}, the pins and the lock are for {major}.{minor + 1}" in done.stderr


@pytest.mark.parametrize(("there", "asked"), [("gcc libc6-dev", ""), ("gcc", "libc6-dev")])
def test_a_base_that_has_all_packages_needs_no_network(there: str, asked: str, tmp_path: Path) -> None:
    for name, script in {
        "dpkg-query": f'case " {there} " in *" ${{@: -1}} "*) echo "install ok installed";; *) exit 1;; esac',
        "apt-get": f'echo "$@" >>{tmp_path}/log; exit 3',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{script}\n")
        (tmp_path / name).chmod(0o755)
    done = run("packages.sh", "debian12", "build", PATH=f"{tmp_path}:/usr/bin:/bin")
    # The first thing it does otherwise is to ask the mirrors.
    assert (done.returncode, (tmp_path / "log").exists()) == ((3, True) if asked else (0, False)), done.stderr
