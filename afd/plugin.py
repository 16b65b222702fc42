# SPDX-License-Identifier: Apache-2.0
"""The ``vllm.general_plugins`` entry point. Installing AFD changes nothing about vLLM.

vLLM calls :func:`register` in each of its processes. AFD patches no name and replaces no class there: a role is
chosen outright by ``afd serve``, with ``--worker-cls`` and ``--additional-config``. What the entry point gives is a
place in vLLM's list of plugins: its logs name AFD, and ``VLLM_PLUGINS`` selects it like any other.
"""

from __future__ import annotations


def register() -> None:
    """Called by vLLM in every process. Does nothing, on purpose; see above."""
