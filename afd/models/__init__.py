# SPDX-License-Identifier: Apache-2.0
"""Build and load one role of a vLLM model: the family table, the stand-ins, the weight policy."""
