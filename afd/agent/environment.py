# SPDX-License-Identifier: Apache-2.0
"""The environment that vLLM's processes get on CPU, for AFD's roles and for the native reference alike."""

from __future__ import annotations

from collections.abc import Mapping

from afd.errors import ConfigError

RUNNER_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"

PLATFORM: Mapping[str, str] = {
    # With mode NONE one decorated sampler is still compiled in the profile run: it costs 30 s and a C++ compiler.
    "TORCHDYNAMO_DISABLE": "1",
    # vLLM's CPU backend has no MLA; this selects the multi-head path.
    "VLLM_MLA_DISABLE": "1",
}


def runner_of(environment: Mapping[str, str]) -> str:
    """The model runner, "v1" or "v2", that the user chose with VLLM_USE_V2_MODEL_RUNNER; V2 when it is not set.

    Raises ConfigError for anything but 0 and 1.
    """
    chosen = environment.get(RUNNER_VARIABLE, "1")
    if chosen not in ("0", "1"):
        raise ConfigError(f"env {RUNNER_VARIABLE}: {chosen!r} is neither 0 (runner V1) nor 1 (V2)")
    return f"v{int(chosen) + 1}"


def cpu_environment(base: Mapping[str, str], *, runner: str, threads: int, bind: str) -> dict[str, str]:
    """``base`` with what a CPU role needs. What the user has set himself is kept, except the runner.

    ``threads`` is the number of OpenMP threads of one rank, ``bind`` a core list or "nobind" as in
    VLLM_CPU_OMP_THREADS_BIND. V1 must not see the Triton backend that lets V2 run on CPU: it would use it.
    """
    environment = {**PLATFORM, "OMP_NUM_THREADS": str(threads), "VLLM_CPU_OMP_THREADS_BIND": bind, **base}
    environment["PYTHONIOENCODING"] = "utf-8"  # what they say is read as that
    environment[RUNNER_VARIABLE] = "1" if runner == "v2" else "0"
    if runner == "v1":
        environment["TRITON_BACKENDS_IN_TREE"] = "1"
    else:
        environment.pop("TRITON_BACKENDS_IN_TREE", None)
    return environment
