# SPDX-License-Identifier: Apache-2.0
"""The Attention role inside vLLM's worker: one mixin over its model runners, and the connection to FFN."""
