# SPDX-License-Identifier: Apache-2.0
"""Container images: which there are, what each is built from, how it is built, and what one says about itself.

Only :mod:`afd.images.manifest` and :mod:`afd.images.verify` need more than the standard library, so that
``make image`` runs before ``make setup``.
"""
