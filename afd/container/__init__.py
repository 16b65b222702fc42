# SPDX-License-Identifier: Apache-2.0
"""What runs first in a container: the entry point, both roles under supervisord, the health check.

entrypoint    reads the command line, prepares the environment, and becomes or starts what was asked for
asked         the command line of one role, read as ``afd serve`` reads it
pod           role and replicas from the pod: StatefulSet, LeaderWorkerSet
devices       which devices (cores on CPU) each role gets
surroundings  a home and a name for any user; stale segments in shared memory
init          one child of PID 1: signals go down, orphans are reaped, its exit code comes back
single_node   FFN and Attention under supervisord; verdict: one exit code out of two
supervisord   supervisor's own, whose programs start with the signals of a stop blocked
role, watch   what it runs: a role, and the listener that hears of its end
healthcheck   whether the agents of this container answer
smoke         single-node with the built-in model, compared with native vLLM's answers
"""
