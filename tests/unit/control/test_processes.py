# SPDX-License-Identifier: Apache-2.0
"""Agents and rank processes of their own, as in production: who is killed, who says what, and how fast."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from afd.launch.free_ports import free_port

ROOT = Path(__file__).parents[3]
PATIENCE_S = 30.0


class Agent:
    """One ``agent_process.py`` and what it and its rank process have printed."""

    def __init__(self, role: str, port: int, deed: str, *changes: str) -> None:
        program = str(Path(__file__).with_name("agent_process.py"))
        self.process = subprocess.Popen(
            [sys.executable, program, role, str(port), deed, *changes],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            text=True,
        )
        self.lines: list[str] = []
        self.rank_pid = 0
        self._printed: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._printed.put(line.rstrip())
        self._printed.put(None)

    def _next(self, deadline: float) -> str | None:
        """The next line, None after the last one. Fails at the deadline, so that a test never hangs."""
        try:
            line = self._printed.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise AssertionError(f"nothing more within {PATIENCE_S:.0f} s of {self.lines}") from None
        if line is not None:
            self.lines.append(line)
        return line

    def up(self) -> Agent:
        self.rank_pid = int(self.until(" up ").split()[2])
        return self

    def until(self, text: str) -> str:
        """Read lines until one contains ``text``."""
        deadline = time.monotonic() + PATIENCE_S
        while (line := self._next(deadline)) is not None:
            if text in line:
                return line
        raise AssertionError(f"no {text!r} in {self.lines}")

    def rest(self) -> str:
        """Wait for its end and return all that it and its rank process printed."""
        deadline = time.monotonic() + PATIENCE_S
        while self._next(deadline) is not None:
            pass
        self.process.wait(PATIENCE_S)
        return "\n".join(self.lines)

    def end(self) -> None:
        for pid in filter(None, (self.process.pid if self.process.poll() is None else 0, self.rank_pid)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()
        self._reader.join(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def pair(f_deed: str = "wait", a_deed: str = "wait", *a_changes: str) -> Iterator[tuple[Agent, Agent]]:
    port = free_port()
    agents = Agent("ffn", port, f_deed), Agent("attention", port, a_deed, *a_changes)
    try:
        yield agents
    finally:
        for agent in agents:
            agent.end()


def seconds(line: str) -> float:
    return float(line.split()[0])


@pytest.mark.parametrize("killed", ["ffn", "attention"])
def test_a_killed_agent_ends_the_other_role_and_both_rank_processes(killed: str) -> None:
    with pair() as (ffn, attention):
        victim, other = (ffn, attention) if killed == "ffn" else (attention, ffn)
        victim.up(), other.up()
        start = time.monotonic()
        victim.process.kill()
        rank = "F0" if killed == "ffn" else "A0"
        text = (
            f"{rank}: its agent (pid 4242 on host-{killed}) is gone: its connection closed without a goodbye"
        )
        ended = other.until(" end ")
        assert ended.split(" ", 2)[2] == text
        output = other.rest()
        assert other.process.returncode == 70
        aborted = next(line for line in output.splitlines() if line.endswith(text) and " end " not in line)
        print(
            f"SIGKILL of the {killed} agent: the other agent knows after {(seconds(ended) - start) * 1e3:.1f} ms, "
            f"its rank process after {(seconds(aborted) - start) * 1e3:.1f} ms"
        )
        assert seconds(aborted) - start < 2.0
        # The orphan's own agent is gone: it says so and ends.
        assert "the agent of this process is gone" in victim.rest()


@pytest.mark.parametrize("killed", ["ffn", "attention"])
def test_a_killed_rank_process_gives_both_roles_one_text_and_their_own_exit_code(killed: str) -> None:
    with pair() as (ffn, attention):
        victim, other = (ffn, attention) if killed == "ffn" else (attention, ffn)
        victim.up(), other.up()
        start = time.monotonic()
        os.kill(victim.rank_pid, signal.SIGKILL)
        lines = [agent.until(" end ") for agent in (victim, other)]
        assert max(map(seconds, lines)) - start < 2.0
        texts = {line.split(" ", 2)[2] for line in lines}
        assert len(texts) == 1
        assert f"process {victim.rank_pid}" in texts.pop()
        victim.rest(), other.rest()
        assert (victim.process.returncode, other.process.returncode) == (71, 70)


def test_a_stopped_agent_is_lost_by_silence() -> None:
    with pair() as (ffn, attention):
        ffn.up(), attention.up()
        start = time.monotonic()
        os.kill(attention.process.pid, signal.SIGSTOP)
        ended = ffn.until(" end ")
        assert "gave no sign of life" in ended
        assert 0.3 < seconds(ended) - start < 2.0


def test_a_mismatch_ends_both_processes_with_65_soon_after_the_later_start() -> None:
    with pair("wait", "wait", "gate=attention") as (ffn, attention):
        start = time.monotonic()
        for agent in (ffn, attention):
            output = agent.rest()
            assert agent.process.returncode == 65
            assert "gate placement: ffn on F0 but attention on A0" in output
        assert time.monotonic() - start < 5


def test_heartbeats_survive_a_busy_machine_and_a_rank_process_that_holds_its_interpreter_lock() -> None:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        with pair("hold", "hold") as (ffn, attention):  # 1.3 s, more than six heartbeats
            ffn.up(), attention.up()
            ffn.until("held"), attention.until("held")
            time.sleep(0.7)
            assert ffn.process.poll() is None is attention.process.poll()
            assert " end " not in "".join(ffn.lines + attention.lines)
    finally:
        for process in busy:
            process.kill()
            process.wait()
