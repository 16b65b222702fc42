# SPDX-License-Identifier: Apache-2.0
"""The agent runs before the model.

An agent needs a millisecond now and then, and within two seconds of missing it its peers take it for dead. Model
processes that wait by polling (vLLM's tensor-parallel groups on CPU do) take every core there is, and a kernel that
does not preempt lets an agent that just woke up wait for seconds.
"""

from __future__ import annotations

import logging
import os

log = logging.getLogger(__name__)

NICE = 5
"""Added to the nice value of the processes that compute. It needs no privilege, and helps where all share a group of
the scheduler: in a container."""


def before_the_model() -> bool:
    """Let the calling thread, but nothing that it starts, run as soon as it can. Returns whether the system permits
    that: it takes the privilege CAP_SYS_NICE."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except OSError as error:
        log.debug("the agent keeps its usual priority: %s", error)
        return False
    return True


def behind_the_agent() -> None:
    """Let this process and those that it starts give way to agents."""
    os.nice(NICE)
