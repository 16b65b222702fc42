# SPDX-License-Identifier: Apache-2.0
"""How AFD's processes meet, agree, announce steps and fail together.

``messages`` (what is said), ``handshake`` (what must agree), ``rendezvous`` (how an agent gets its control plane:
``group``, ``root``, ``joiner``), ``hub`` and ``session`` (an agent and its own processes), ``steps`` (one message per
forward), ``abort`` (one root cause for everything that waits).
"""
