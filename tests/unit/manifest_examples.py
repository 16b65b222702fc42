# SPDX-License-Identifier: Apache-2.0
"""A manifest for tests to start from."""

from __future__ import annotations

from afd.images import manifest

SHA = "0123456789abcdef" * 4

EXAMPLE = manifest.Manifest(
    schema=1,
    afd=manifest.AFD(version="1.2.3", revision="0" * 40, dirty=False),
    soc="a3",
    soc_version="ascend910_9391",
    os="openeuler24.03",
    arch="arm64",
    base=manifest.Base(tag="registry.example/cann:9-a3", digest=f"sha256:{SHA}"),
    python="3.12",
    packages={"torch": "5.6.7", "torch-npu": "5.6.7.post8"},
    cann="1.2",
    torch="5.6.7",
    torch_npu="5.6.7.post8",
    triton_ascend="4.5.6",
    vllm=manifest.VLLM(distribution="vllm", version="1.0.0", commit="1" * 40),
    vllm_ascend="2" * 40,
    operators=manifest.Operators(a2e="built", cam="none", commit="3" * 40),
    transports=("collective",),
    lock_sha256=SHA,
    driver_min="unverified",
    device_nodes=("/dev/davinci_manager",),
    mounts=("/usr/local/dcmi",),
    created="2026-01-02T03:04:05Z",
)
