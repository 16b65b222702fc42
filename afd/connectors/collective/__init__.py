# SPDX-License-Identifier: Apache-2.0
"""Transport ``collective``: rows cross as sends and receives of torch.distributed, also between hosts.

``group`` makes the process groups, ``meeting`` is the store through which their members find each other, ``message``
fixes the bytes of a payload, ``channel`` moves payloads between two ranks, ``transport`` builds lanes from all of it.
"""
