# SPDX-License-Identifier: Apache-2.0
"""What PID 1 of a container owes to its child: signals go down, orphans are reaped, the exit code comes back.

The child has a session of its own, so that a terminal's Ctrl-C reaches it once, through us, and it ends with us. It
starts with the signals that stop a role blocked: one that comes before it listens is not lost, as it would be for
PID 1, and does not kill it, as it would anybody else.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence

from afd.agent.launch_protocol import die_with_parent

FORWARDED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_AWAITED = (*FORWARDED, signal.SIGCHLD)
_CANNOT_RUN = 127


def hold_signals() -> None:
    """From here on signals wait for :meth:`Child.wait`. Call it first of all."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)


def hear_all() -> None:
    """Do to the signals that Python ignores what they do to other programs: a program that is run next inherits it."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)


class Child:
    """A program that runs below this process, which must have one thread only while it is made."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        affinity: Sequence[int] = (),
        blocked: Sequence[signal.Signals] = STOPS,
        output: int | None = None,
    ) -> None:
        """``blocked`` signals are for the program to unblock when it is ready for them; ``output`` a descriptor for
        both of its streams."""
        hold_signals()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                die_with_parent(parent)
                if affinity:
                    os.sched_setaffinity(0, affinity)
                if output is not None:
                    os.dup2(output, 1), os.dup2(output, 2)
                hear_all()
                signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
                os.execvpe(command[0], list(command), dict(environment))
            except OSError as error:
                os.write(2, f"afd-entrypoint: error: {command[0]}: {error.strerror}\n".encode())
            finally:
                os._exit(_CANNOT_RUN)

    def signal(self, number: int) -> None:
        """Send a signal to the program alone: what it started is its own affair."""
        os.kill(self.pid, number)

    def wait(self, on_signal: Callable[[int], None] | None = None) -> int:
        """Until the program ends: pass signals on (or hand them to ``on_signal``) and reap whatever ends here.

        Returns its exit code, negative for the signal that killed it.
        """
        deliver = on_signal or self.signal
        while True:
            number = signal.sigwait(_AWAITED)
            if number != signal.SIGCHLD:
                deliver(number)
                continue
            status = self._reap()
            if status is not None:
                return os.waitstatus_to_exitcode(status)

    def _reap(self) -> int | None:
        """The status of the program if it has ended."""
        found = None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return found
            if pid == 0:
                return found
            if pid == self.pid:
                found = status


def as_exit_code(code: int) -> int:
    """The exit code of PID 1 for a child's: 128+n for signal n."""
    return 128 - code if code < 0 else code
