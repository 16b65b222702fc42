# SPDX-License-Identifier: Apache-2.0
"""supervisord, whose programs start with the signals of a stop blocked: ``python -m afd.container.supervisord``.

A stop that comes while a program's Python starts would kill it. It waits instead until the program listens, and that is
the program's affair: a role's agent does it when it can drain, the listener at once. supervisord itself, which also
starts with them blocked, hears them from its first program on: until then it ends, and there is nothing else to end.
"""

from __future__ import annotations

import os
import signal

from supervisor import supervisord

from afd.agent.threads import ENDING, block_signals, unblock_signals


def before_a_program() -> None:
    """Before the fork and not after it: a signal in between would go to what is supervisord still, and be lost."""
    if signal.sigpending() & set(ENDING):  # blocked so far: this would be the first program
        os._exit(0)
    block_signals()


if __name__ == "__main__":
    os.register_at_fork(before=before_a_program, after_in_parent=unblock_signals)
    supervisord.main()
