# SPDX-License-Identifier: Apache-2.0
"""The data plane: connectors own protocol and lifecycle, transports move tensors.

``base`` has the types that the rest of AFD uses, ``transport`` the seam that ``shm`` (now), ``collective`` and ``cam``
(later) implement, ``camp2p`` the synchronous connector, ``slicing`` the one function that cuts rows. Importing this
package imports no torch, and neither does ``afd.connectors.shm`` (agents use it to sweep segments).
"""
