# SPDX-License-Identifier: Apache-2.0
"""The command ``afd``. Each subcommand is a module that is imported only when it is used."""
