# SPDX-License-Identifier: Apache-2.0
"""The checks of ``afd doctor``: can this machine, container or image run AFD, and if not, what to do.

``check`` says what a check is, ``subject`` what is examined, ``table`` lists all of them. The other modules hold the
checks by what they look at. Nothing here imports torch, vLLM or a library of CANN: where one has to be loaded to know,
that happens in a child with a deadline (``child``), because a broken driver hangs its callers.
"""
