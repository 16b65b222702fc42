# SPDX-License-Identifier: Apache-2.0
"""Processes forked from one that has imported vLLM: the launcher and what its children do first."""
