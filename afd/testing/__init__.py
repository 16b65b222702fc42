# SPDX-License-Identifier: Apache-2.0
"""Tools for testing AFD and code built on it, such as tiny models and the conformance suite of the transports."""
