# SPDX-License-Identifier: Apache-2.0
"""Makes or repairs ``.venv`` for the CPU platform. ``make setup`` runs it; it needs nothing but Python.

What it does, and only the parts that are needed: a virtual environment from a supported Python; uv, then every
locked package, each checked against its hash; this project and the CPU-only packages in ``packages/``, editable;
bytecode, compiled once (processes start three times faster with it). A stamp holds the hash of all inputs, so a second
run ends at once. The stamp is written last and an environment whose packages were being installed when a run was
ended is made anew, so interrupting is safe.

    python3 scripts/make_env.py        PYTHON=python3.12 to choose the interpreter

It runs on any Python 3.8 or newer, to say clearly what is wrong with an old one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
BIN = VENV / "bin"
STAMP = VENV / "afd-setup.json"
INSTALLING = VENV / "afd-installing"  # exists while packages are half there
NEEDED_BYTES = 8 << 30

PROBE = """
import json, sys, sysconfig
try:
    import ensurepip, venv
    missing = ""
except ImportError as error:
    missing = error.name
print(json.dumps([list(sys.version_info[:3]), sys.base_prefix, missing, sysconfig.get_path("purelib")]))
"""

VERIFY = """
import importlib.metadata as metadata, sys
found = {name.lower() for d in metadata.distributions() if (name := d.metadata["Name"])}
sys.exit("must not be installed: " + ", ".join(bad) if (bad := found & set(sys.argv[1:])) else 0)
"""


class SetupError(Exception):
    """What is wrong and what to do, in one message."""


def main() -> int:
    os.chdir(ROOT)
    with one_at_a_time():
        try:
            setup()
        except SetupError as error:
            print(f"setup: {error}", file=sys.stderr)
            return 1
        except subprocess.CalledProcessError as error:
            command = " ".join(map(str, error.cmd[:4]))
            print(f"setup: `{command} ...` ended with {error.returncode}; see above.", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("\nsetup: interrupted; run `make setup` again to continue.", file=sys.stderr)
            return 130
    return 0


def setup() -> None:
    started = time.monotonic()
    if not sys.platform.startswith("linux"):
        raise SetupError(f"vLLM's CPU build runs on Linux only, and this is {sys.platform}")
    python, version, purelib = choose_python()
    locked = digest(ROOT.glob("requirements/*.txt"), [version, str(ROOT), purelib])
    about = [ROOT / name for name in ("pyproject.toml", "VERSION", "afd/pins.toml")]
    local = digest(
        [*about, Path(__file__).resolve(), *ROOT.glob("packages/*/setup.py"), *local_projects()], [locked]
    )
    done = read_stamp()
    if done == {"locked": locked, "local": local}:
        return
    STAMP.unlink(missing_ok=True)
    renewed = done.get("locked") != locked
    if renewed:
        install_locked(python, version)
    with step("install this project and its CPU packages"):
        paths = [ROOT, *sorted({path.parent for path in local_projects()})]
        editable = [argument for path in paths for argument in ("--editable", str(path))]
        uv("pip", "install", "--no-deps", "--no-build-isolation", "--reinstall", *editable)
    site = Path(probe(str(BIN / "python"))[3])
    with step("compile bytecode"):
        compile_bytecode([ROOT / "afd", ROOT / "packages", *([site] if renewed else [])])
        missing = [
            path
            for path in site.glob("vllm/*.py")
            if not list(path.parent.glob(f"__pycache__/{path.stem}.*"))
        ]
        if missing:
            raise SetupError(f"no bytecode was written for {missing[0]}; is the disk full or read-only?")
    excluded = re.findall(r"^([a-z0-9-]+); sys_platform == 'never'", read("requirements/cpu.over"), re.M)
    run(str(BIN / "python"), "-c", VERIFY, *excluded)
    if not shutil.which(os.environ.get("CC", "cc")):
        print("setup: no C compiler found; AFD's shared-memory transport will use its slower Python path")
    temporary = STAMP.with_suffix(".new")
    temporary.write_text(json.dumps({"locked": locked, "local": local}), encoding="utf-8")
    temporary.replace(STAMP)
    print(f"setup: ready in {time.monotonic() - started:.0f} s (.venv, Python {version})", flush=True)


def install_locked(python: str, version: str) -> None:
    """A virtual environment that holds exactly the locked packages."""
    for leftover in ROOT.glob(".venv.old-*"):
        shutil.rmtree(leftover)
    if VENV.exists() and (INSTALLING.exists() or not works(version)):
        with step("remove the unusable .venv"):
            # Renamed first: an environment that is half deleted must not look like one.
            old = VENV.rename(ROOT / f".venv.old-{os.getpid()}")
            shutil.rmtree(old)
    if not VENV.exists():
        free = shutil.disk_usage(ROOT).free
        if free < NEEDED_BYTES:
            raise SetupError(
                f"{ROOT} has {free / 2**30:.1f} GiB free; the environment needs {NEEDED_BYTES >> 30}"
            )
        with step(f"create .venv with Python {version}"):
            VENV.mkdir()
            INSTALLING.touch()
            run(python, "-m", "venv", str(VENV))
    INSTALLING.touch()
    with step("install uv"):
        run(str(BIN / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet",
            "--require-hashes", "--no-deps", "-r", "requirements/boot.txt")  # fmt: skip
    with step("install the locked packages (about 3 GB to download when uv's cache is empty)"):
        uv("pip", "sync", "--require-hashes", "requirements/cpu.txt")
    INSTALLING.unlink()


def choose_python() -> tuple[str, str, str]:
    """The interpreter for the environment: its path, full version and base prefix.

    ``PYTHON`` decides when it is set; else an existing environment keeps its own.
    """
    text = read("afd/pins.toml")
    minimum, below = (re.search(rf'^{key} = "3\.(\d+)"', text, re.M) for key in ("minimum", "below"))
    assert minimum and below, "tests/unit/test_pins.py checks the file"
    asked = os.environ.get("PYTHON")
    # An existing environment's interpreter by its real path: the environment itself may have to go.
    kept = os.path.realpath(BIN / "python")
    others = [kept, sys.executable, "python3", "python3.11", "python3.12", "python3.10"]
    names = [asked] if asked else others
    reasons: list[str] = []
    for name in names:
        path = shutil.which(name)
        if path is None:
            reasons += [f"{name} does not exist"] if name == asked else []
            continue
        try:
            found, prefix, missing, _ = probe(path)
        except (OSError, ValueError, subprocess.SubprocessError):
            reasons.append(f"{name} does not run")
            continue
        version = ".".join(map(str, found))
        if not (found[0] == 3 and int(minimum[1]) <= found[1] < int(below[1])):
            reasons.append(f"{name} is {version}")
        elif missing:
            reasons.append(f"{name} has no {missing} module (Debian and Ubuntu: install python3-venv)")
        else:
            return path, version, prefix
    wanted = f"Python 3.{minimum[1]} to 3.{int(below[1]) - 1} with venv"
    raise SetupError(
        f"needs {wanted}; found: {'; '.join(dict.fromkeys(reasons)) or 'none'}. PYTHON=... names another"
    )


def probe(python: str) -> tuple[list[int], str, str, str]:
    """Of an interpreter: version, base prefix, name of a missing standard module or "", site-packages."""
    output = subprocess.run(
        [python, "-I", "-c", PROBE], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60
    ).stdout
    version, prefix, missing, purelib = json.loads(output)
    return version, prefix, missing, purelib


def works(version: str) -> bool:
    """Whether ``.venv`` runs the Python ``version`` and has pip."""
    try:
        found = probe(str(BIN / "python"))[0]
        run(str(BIN / "python"), "-m", "pip", "--version", quiet=True)
    except (OSError, ValueError, subprocess.SubprocessError):
        return False
    return ".".join(map(str, found)) == version


def local_projects() -> list[Path]:
    return sorted(ROOT.glob("packages/*/pyproject.toml"))


def read_stamp() -> dict[str, str]:
    if not (BIN / "python").exists():
        return {}
    try:
        found = json.loads(STAMP.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def digest(files: Iterable[Path], words: list[str]) -> str:
    state = hashlib.sha256("\0".join(words).encode())
    for path in sorted(files):
        state.update(f"\0{path.relative_to(ROOT)}\0".encode())
        state.update(path.read_bytes())
    return state.hexdigest()


def uv(*arguments: str) -> None:
    environment = {**pip_settings(), **os.environ, "UV_PYTHON_DOWNLOADS": "never"}
    environment.setdefault("UV_HTTP_TIMEOUT", "180")
    # On a terminal uv shows its progress bars; elsewhere it would print a line per package.
    options = ["--python", str(BIN / "python"), *([] if sys.stderr.isatty() else ["--quiet"])]
    run(str(BIN / "uv"), *arguments, *options, env=environment)


def pip_settings() -> dict[str, str]:
    """pip's configured index and certificates under uv's names, so that a machine set up for pip needs no more."""
    listed = subprocess.run(
        [str(BIN / "python"), "-m", "pip", "config", "list"], check=True, stdout=subprocess.PIPE
    ).stdout.decode()
    names = {"index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX", "cert": "SSL_CERT_FILE"}
    found = re.findall(r"^(?:global|install|:env:)\.([a-z-]+)='(.*)'$", listed, re.M)
    return {names[key]: value for key, value in found if key in names}


def compile_bytecode(paths: list[Path]) -> None:
    """Bytecode beside the sources. Some packages ship files that are no Python; those are passed over."""
    environment = {
        k: v for k, v in os.environ.items() if k not in ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")
    }
    jobs = str(min(4, len(os.sched_getaffinity(0))))
    existing = [str(path) for path in paths if path.exists()]
    subprocess.run(
        [str(BIN / "python"), "-m", "compileall", "-qq", "-j", jobs, *existing], env=environment, check=False
    )


def run(*command: str, env: dict[str, str] | None = None, quiet: bool = False) -> None:
    sink = subprocess.DEVNULL if quiet else None
    subprocess.run(command, check=True, env=env, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@contextlib.contextmanager
def step(name: str) -> Iterator[None]:
    print(f"setup: {name} ...", flush=True)
    started = time.monotonic()
    yield
    print(f"setup: {name}: {time.monotonic() - started:.0f} s", flush=True)


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Holds a lock on the checkout, which ends with this process however it ends."""
    directory = os.open(ROOT, os.O_RDONLY)
    try:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("setup: another setup of this checkout is running; waiting for it ...", flush=True)
            fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


if __name__ == "__main__":
    sys.exit(main())
