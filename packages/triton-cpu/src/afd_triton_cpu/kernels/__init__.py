# SPDX-License-Identifier: Apache-2.0
"""Implementations of vLLM's V2 runner kernels. Importing this package registers them."""

from afd_triton_cpu.kernels import batch, blocks, logits, logprobs, sampling

__all__ = ["batch", "blocks", "logits", "logprobs", "sampling"]
