# SPDX-License-Identifier: Apache-2.0
"""Transport ``shm``: Attention and FFN ranks on one host exchange rows through rings in shared memory.

``layout`` fixes the bytes, ``segment`` owns the memory and its name. ``ring.c`` (called by ``cring``) and ``pyring``
are two implementations of one ring; either side of a pair may use either. ``helper`` compiles and loads the C one,
``transport`` builds lanes from all of it.
"""
