# SPDX-License-Identifier: Apache-2.0
"""The FFN role: a model half without scheduler, KV cache or API server, driven by what Attention announces."""
