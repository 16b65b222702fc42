# SPDX-License-Identifier: Apache-2.0
"""AFD's settings: what exists (``schema``), how one value is read (``kinds``), how sources merge
(``resolve``).

``resolve({"--afd-port": "9400"}, os.environ, {"num_ffn_ranks": 1})`` gives a :class:`Resolved`: its
``config`` has port 9400, and its ``origins["port"]`` is "flag --afd-port".
"""

from afd.config.kinds import nearest, read_json
from afd.config.resolve import CONTAINER_ENV, RESERVED_ENV, Resolved, resolve, to_json, value_of
from afd.config.schema import (
    CAM_ASYNC,
    CAMP2P,
    EXTRA_OPTIONS,
    AFDConfig,
    Auth,
    Option,
    Timeouts,
    UbatchPolicy,
    options,
)

__all__ = [
    "CAMP2P",
    "CAM_ASYNC",
    "CONTAINER_ENV",
    "EXTRA_OPTIONS",
    "RESERVED_ENV",
    "AFDConfig",
    "Auth",
    "Option",
    "Resolved",
    "Timeouts",
    "UbatchPolicy",
    "nearest",
    "options",
    "read_json",
    "resolve",
    "to_json",
    "value_of",
]
