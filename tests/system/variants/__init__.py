# SPDX-License-Identifier: Apache-2.0
"""Roles that differ from AFD's in one respect, for tests: functions that :mod:`tests.system.program` gives to a role.

They run in processes forked from a launcher, which imports them by name.
"""

FAULT_FILE = "TESTS_FAULT_FILE"
"""Environment variable with the path of the file that says what :mod:`tests.system.variants.faults` does wrong now."""
LAYER = 2
"""In which layer."""
ZERO = "zero the reply"
SWAP = "swap two rows"

MODULES_DIRECTORY = "TESTS_MODULES_DIRECTORY"
"""Environment variable with the directory where :mod:`tests.system.variants.modules` writes one file per process."""

INVENTORY_DIRECTORY = "TESTS_INVENTORY_DIRECTORY"
"""Environment variable with the directory where :mod:`tests.system.variants.inventory` writes one file per role."""

ALIASING = "TESTS_ALIASING"
"""Environment variable that makes :mod:`tests.system.variants.poison` return transport memory as a model's output."""

ORDERS_DIRECTORY = "TESTS_ORDERS_DIRECTORY"
"""Environment variable with the directory where :mod:`tests.system.variants.outages` looks for orders."""
HOLD_S = 5
"""How long it holds the interpreter lock, in seconds."""

PARTIALS_DIRECTORY = "TESTS_PARTIALS_DIRECTORY"
"""Environment variable with the directory of inputs and outputs of :mod:`tests.system.variants.partials`."""

HALT_FILE = "TESTS_HALT_FILE"
"""Environment variable with the path of the file that says what :mod:`tests.system.variants.halts` does in a layer."""
STOP = "stop the process"
RAISE = "raise"
