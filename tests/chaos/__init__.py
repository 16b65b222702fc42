# SPDX-License-Identifier: Apache-2.0
"""Faults on purpose, in groups of real processes: ``python -m tests.chaos --help``.

A cell is one fault, at one target, in one phase of a group's life, in one layout, with one setting of ``on_loss``
(:mod:`tests.chaos.cells`). An experiment brings a group into the phase, does the deed, proves that it took effect, and
measures what the group makes of it (:mod:`tests.chaos.experiment`). What came out is kept per cell, with the commit it
was found on (:mod:`tests.chaos.results`), and ``docs/faults.md`` is made from it.
"""
