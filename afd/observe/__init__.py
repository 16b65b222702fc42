# SPDX-License-Identifier: Apache-2.0
"""What an agent shows of itself: its state (``state``), counters of its ranks (``counters``), the answer to
``/status`` (``status``), Prometheus metrics (``metrics``) and the HTTP server for all of it (``server``).

Rank processes use ``counters`` and ``state`` only; those import nothing but the standard library.
"""
