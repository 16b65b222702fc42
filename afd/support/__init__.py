# SPDX-License-Identifier: Apache-2.0
"""The support matrix as data: what AFD runs, what it refuses, and why.

The same tables refuse a configuration before anything is started (:func:`check`), and make
``docs/support-matrix.md`` (:func:`render`). A combination is *validated* when a run record says so,
*unvalidated* when nothing speaks against it but no record speaks for it, and *unsupported* when a row below
says so.
"""

from afd.support.matrix import Combination, Status, check, combination_of, problem, status
from afd.support.page import render
from afd.support.tables import CONFLICTS, DIMENSIONS, FEATURES, Dimension, Feature, Value

__all__ = [
    "CONFLICTS",
    "DIMENSIONS",
    "FEATURES",
    "Combination",
    "Dimension",
    "Feature",
    "Status",
    "Value",
    "check",
    "combination_of",
    "problem",
    "render",
    "status",
]
