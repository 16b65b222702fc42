# SPDX-License-Identifier: Apache-2.0
"""The role agent: the small process that `afd serve` is. It shakes hands, starts, watches and ends a role."""
