# SPDX-License-Identifier: Apache-2.0
"""Processes that a fixture of the whole session starts in the middle of a test: no test left them behind."""

from __future__ import annotations

LASTING: set[int] = set()
"""Their process ids. The fixture that starts one adds it, and ends it itself."""
