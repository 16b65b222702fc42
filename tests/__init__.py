# SPDX-License-Identifier: Apache-2.0
"""AFD's tests. A package, so that tests can share helpers (`from tests.rules.sources import ...`)."""
