# SPDX-License-Identifier: Apache-2.0
"""The rules of the house as tests. Each rule is a function from sources to sentences about what is wrong, so that it
runs on the tree and, to show that it can fail, on a few lines that break it."""
