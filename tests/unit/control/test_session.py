# SPDX-License-Identifier: Apache-2.0
"""An agent and its rank processes: attach, exchange, report, abort, death."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest

from afd.control.abort import Abort, Cause
from afd.control.channel import SOCKET_ENV, socket_path
from afd.control.group import Control
from afd.control.hub import LocalHub, Process, open_hub
from afd.control.messages import AbortNotice, Attached, Gathered, encode
from afd.control.session import RankSession
from afd.errors import ClosedError, ConfigError, MisuseError, PeerLostError, RoleFailedError
from afd.topology import Rank
from tests.unit.control.agents import Agents, ended, until

T = TypeVar("T")
F0, A0, A1 = Rank.parse("F0"), Rank.parse("A0"), Rank.parse("A1")
ROOT = Path(__file__).parents[3]


class Pair:
    """An FFN agent and an Attention agent, each with a hub."""

    def __init__(self, agents: Agents, stack: AsyncExitStack) -> None:
        self.agents, self._stack = agents, stack
        self.reports: list[tuple[str, Mapping[str, float], str | None]] = []
        self._processes: list[asyncio.subprocess.Process] = []

    async def start(self, *attention: int, **hub: Any) -> None:
        self.ffn, self.attention = await asyncio.gather(
            self.agents.join("ffn"), self.agents.join("attention", *attention)
        )
        self.f_hub = await self.hub(self.ffn)
        self.a_hub = await self.hub(self.attention, **hub)

    async def hub(self, control: Control, **hub: Any) -> LocalHub:
        return await self._stack.enter_async_context(open_hub(control, on_report=self._report, **hub))

    def _report(self, process: Process, counters: Mapping[str, float], state: str | None) -> None:
        self.reports.append((str(process.rank or process.kind), dict(counters), state))

    async def attach(self, rank: Rank | None, kind: str = "rank", abort: Abort | None = None) -> RankSession:
        address = (self.f_hub if rank == F0 else self.a_hub).address
        return await asyncio.to_thread(RankSession.attach, address, rank, kind, abort=abort)

    async def spawn(self, rank: Rank, deed: str) -> asyncio.subprocess.Process:
        hub = self.f_hub if rank == F0 else self.a_hub
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, Path(__file__).with_name("rank_process.py"), str(rank), deed),
            env={**os.environ, SOCKET_ENV: hub.address, "PYTHONPATH": str(ROOT)},
            stdout=asyncio.subprocess.PIPE,
        )
        self._processes.append(process)
        assert await line(process) == "attached"
        return process

    async def end(self) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.kill()
            await process.communicate()


async def line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await asyncio.wait_for(process.stdout.readline(), 10)).decode().strip()


def run(work: Callable[[Pair], Awaitable[None]], *attention: int, hub: dict[str, Any] | None = None) -> None:
    async def main() -> None:
        async with Agents(attention=len(attention or (0,))) as agents, AsyncExitStack() as stack:
            pair = Pair(agents, stack)
            await pair.start(*attention, **(hub or {}))
            try:
                await work(pair)
            finally:
                await pair.end()

    asyncio.run(main())


def test_processes_of_both_roles_exchange_values() -> None:
    async def work(pair: Pair) -> None:
        processes = [await pair.spawn(rank, "exchange") for rank in (F0, A0, A1)]
        for process in processes:
            assert await line(process) == "[('A0', 'A0'), ('A1', 'A1'), ('F0', 'F0')]"
        await pair.ffn.fail(Cause("RoleFailedError", "enough", rank="F0"))
        for process in processes:
            assert (await line(process)).endswith("F0: enough")
            assert await asyncio.wait_for(process.wait(), 5) == 0

    run(work, 0, 1)


def test_a_session_knows_the_epoch_and_reads_the_address_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(pair: Pair) -> None:
        monkeypatch.setenv(SOCKET_ENV, pair.a_hub.address)
        session = await asyncio.to_thread(RankSession.attach, None, A0)
        assert session.epoch == pair.attention.epoch
        assert [str(p) for p in pair.a_hub.attached] == [f"process {os.getpid()} (A0)"]
        await asyncio.to_thread(session.close, "done")
        await until(lambda: pair.a_hub.attached == ())
        assert pair.attention.abort.cause is None

    run(work)


def test_a_process_that_was_not_started_by_an_agent_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SOCKET_ENV, raising=False)
    with pytest.raises(ConfigError, match="AFD_AGENT_SOCKET is not set"):
        RankSession.attach(rank=A0)
    with pytest.raises(PeerLostError, match="no agent answers at @afd-nobody"):
        RankSession.attach("@afd-nobody", A0)


def test_an_agent_that_accepts_and_says_nothing_is_given_up_and_an_abort_ends_the_wait_at_once() -> None:
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(socket_path(f"@afd-test-{os.getpid()}"))
        deaf.listen()
        with pytest.raises(PeerLostError, match="the agent does not answer"):
            RankSession.attach(f"@afd-test-{os.getpid()}", A0, timeout_s=0.1)
        abort = Abort()
        threading.Timer(0.1, abort.trigger, [Cause("RoleFailedError", "stop")]).start()
        with pytest.raises(RoleFailedError, match="stop"):
            RankSession.attach(f"@afd-test-{os.getpid()}", A0, timeout_s=20, abort=abort)


def test_what_the_agent_says_together_with_its_answer_is_heard() -> None:
    """The epoch may end just when a process attaches: both messages can come in one read."""
    path = f"@afd-test-{os.getpid()}-together"
    cause = Cause("RoleFailedError", "weights do not fit", rank="F0")
    said = [
        Attached(epoch="e"),
        Gathered(epoch="e", key="k", values={"A0": 7}),
        AbortNotice(epoch="e", cause=cause),
    ]
    with socket.socket(socket.AF_UNIX) as agent:
        agent.bind(socket_path(path))
        agent.listen()

        def answer() -> socket.socket:
            accepted, _ = agent.accept()
            accepted.sendall(b"".join(map(encode, said)))
            return accepted

        with ThreadPoolExecutor(1) as pool:
            answering = pool.submit(answer)
            session = RankSession.attach(path, A0)
            with answering.result(5):
                assert session.abort.cause == cause
                with pytest.raises(RoleFailedError, match="weights do not fit"):
                    session.exchange("other", 1, 5.0)
                session.close("done")


def test_reports_arrive_with_the_last_state_and_do_not_wait() -> None:
    async def work(pair: Pair) -> None:
        session = await pair.attach(A0)
        start = time.perf_counter()
        for number in range(1000):
            session.report({"afd_steps_total{phase=eager}": float(number)}, "ready" if number == 3 else None)
        assert time.perf_counter() - start < 1.0
        await until(
            lambda: bool(pair.reports) and pair.reports[-1][1] == {"afd_steps_total{phase=eager}": 999.0}
        )
        assert len(pair.reports) < 1000 or pair.reports[3][2] == "ready"  # merged, or one by one
        assert "ready" in [state for _, _, state in pair.reports]
        await asyncio.to_thread(session.close, "done")

    run(work)


def test_a_report_just_before_the_goodbye_arrives() -> None:
    async def work(pair: Pair) -> None:
        session = await pair.attach(A0)
        session.report({"x": 1.0})
        await asyncio.to_thread(session.close, "done")
        await until(lambda: pair.reports == [("A0", {"x": 1.0}, None)])

    run(work)


def test_values_that_differ_end_the_epoch_in_every_process() -> None:
    async def work(pair: Pair) -> None:
        sessions = [await pair.attach(F0), await pair.attach(A0)]

        def ask(session: RankSession, value: int) -> str:
            with pytest.raises(Exception, match=r"resolved.tokens: 1 on F0 but 2 on A0") as info:
                session.exchange("resolved", {"tokens": value}, 5, must_agree=True)
            session.close("done")
            return type(info.value).__name__

        found = await asyncio.gather(
            *(asyncio.to_thread(ask, s, v) for s, v in zip(sessions, (1, 2), strict=True))
        )
        assert found == ["MismatchError", "MismatchError"]

    run(work)


def test_a_rank_process_that_offers_nothing_is_named_in_the_waiting_processes() -> None:
    async def work(pair: Pair) -> None:
        session = await pair.attach(F0)
        with pytest.raises(PeerLostError, match=r"A0 did not offer 'k' within 0.2 s; F0 did"):
            await asyncio.to_thread(session.exchange, "k", 1, 0.2)
        await asyncio.to_thread(session.close, "done")

    run(work)


def test_a_killed_rank_process_ends_the_epoch_in_all_processes_with_one_text() -> None:
    async def work(pair: Pair) -> None:
        f0, a0, a1 = [await pair.spawn(rank, "wait") for rank in (F0, A0, A1)]
        start = time.monotonic()
        a0.kill()
        lines = [(await line(p)).split(" ", 1) for p in (f0, a1)]
        text = f"A0: process {a0.pid} (A0) on host-attention ended without a goodbye: killed or crashed"
        assert [cause for _, cause in lines] == [text, text]
        latencies = [float(at) - start for at, _ in lines]
        print(
            "SIGKILL of a rank process until the abort in another role's process: "
            f"{latencies[0] * 1e3:.1f} ms, in the same role's: {latencies[1] * 1e3:.1f} ms"
        )
        assert max(latencies) < 2.0
        ffn, attention = await ended(pair.ffn), await ended(pair.attention)
        assert (ffn.error().exit_code, attention.error().exit_code) == (70, 71)
        assert str(ffn) == str(attention) == text

    run(work, 0, 1)


def test_the_agent_may_explain_a_death() -> None:
    async def explain(process: Process) -> Cause:
        await asyncio.sleep(0.05)
        return Cause(
            "RoleFailedError", f"{process} was killed by SIGKILL (out of memory?)", rank=str(process.rank)
        )

    async def work(pair: Pair) -> None:
        await asyncio.create_task(pair.spawn(A0, "die"))
        assert str(await ended(pair.ffn)).endswith("(A0) was killed by SIGKILL (out of memory?)")

    run(work, hub={"on_death": explain})


def test_a_failure_that_a_process_reports_is_the_cause_everywhere() -> None:
    async def work(pair: Pair) -> None:
        a0 = await pair.spawn(A0, "raise")
        assert await line(a0) == "A0: RuntimeError('weights are corrupt')"
        assert str(await ended(pair.ffn)) == "A0: RuntimeError('weights are corrupt')"

    run(work)


def test_a_process_that_leaves_with_a_goodbye_is_no_failure() -> None:
    async def work(pair: Pair) -> None:
        process = await pair.spawn(A0, "leave")
        assert await asyncio.wait_for(process.wait(), 5) == 0
        await asyncio.sleep(0.1)
        assert pair.attention.abort.cause is None

    run(work)


def test_a_process_that_holds_its_interpreter_lock_for_long_is_not_lost() -> None:
    async def work(pair: Pair) -> None:
        process = await pair.spawn(A0, "hold")  # more than six heartbeats
        assert await line(process) == "held"
        assert await asyncio.wait_for(process.wait(), 5) == 0
        assert pair.attention.abort.cause is None is pair.ffn.abort.cause

    run(work)


def test_a_process_notices_that_its_agent_closed_or_is_gone() -> None:
    async def work(pair: Pair) -> None:
        session = await pair.attach(A0)
        wait = asyncio.ensure_future(asyncio.to_thread(session.exchange, "k", 1, 30))
        await asyncio.sleep(0.05)
        await pair.a_hub.close()
        with pytest.raises(PeerLostError, match="the agent of this process closed"):
            await asyncio.wait_for(wait, 2)
        await asyncio.to_thread(session.close, "done")
        with pytest.raises(PeerLostError):
            await asyncio.to_thread(session.exchange, "k", 1, 1)

    run(work)


def test_a_process_that_attaches_after_the_abort_gets_the_cause() -> None:
    async def work(pair: Pair) -> None:
        await pair.attention.fail(Cause("RoleFailedError", "too late", rank="A0"))
        with pytest.raises(RoleFailedError, match="A0: too late"):
            await pair.attach(A0)

    run(work)


def test_a_second_process_for_a_rank_means_that_it_restarted() -> None:
    async def work(pair: Pair) -> None:
        session = await pair.attach(A0)
        with pytest.raises(PeerLostError):
            await pair.attach(A0)
        assert "rank restarted" in str(await ended(pair.ffn))
        await asyncio.to_thread(session.close, "done")

    run(work)


def test_a_process_of_a_rank_of_another_agent_is_a_bug() -> None:
    async def work(pair: Pair) -> None:
        with pytest.raises(PeerLostError):
            await asyncio.to_thread(RankSession.attach, pair.a_hub.address, F0)
        assert "attached to the agent of other ranks" in str(await ended(pair.ffn))

    run(work)


def test_a_process_that_is_no_rank_reports_and_fails_but_does_not_exchange() -> None:
    async def work(pair: Pair) -> None:
        engine = await pair.attach(None, "engine")
        engine.report({"x": 1.0}, "loading")
        with pytest.raises(MisuseError, match="a process of kind 'engine' is no rank"):
            engine.exchange("k", 1, 1)
        await until(lambda: pair.reports == [("engine", {"x": 1.0}, "loading")])
        cause = await asyncio.to_thread(engine.fail, Cause("RoleFailedError", "the engine raised", rank="A0"))
        assert str(cause) == "A0: the engine raised"
        await asyncio.to_thread(engine.close, "done")
        await asyncio.to_thread(engine.close, "twice is harmless")

    run(work)


def test_a_closed_session_says_so() -> None:
    async def work(pair: Pair) -> None:
        session = await pair.attach(A0)
        await asyncio.to_thread(session.close, "done")
        with pytest.raises(ClosedError):
            session.exchange("k", 1, 1)

    run(work)


def test_garbage_on_the_local_socket_disturbs_nobody() -> None:
    async def work(pair: Pair) -> None:
        for said in (b"", b"GET /", os.urandom(100)):
            _, writer = await asyncio.open_unix_connection(socket_path(pair.a_hub.address))
            writer.write(said)
            await writer.drain()
            writer.close()
        session = await pair.attach(A0)
        await asyncio.sleep(0.05)
        assert pair.attention.abort.cause is None
        await asyncio.to_thread(session.close, "done")

    run(work)


def test_sessions_leave_no_thread_and_no_file_descriptor_behind() -> None:
    async def work(pair: Pair) -> None:
        await asyncio.to_thread(lambda: None)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            session = await pair.attach(A0)
            await asyncio.to_thread(session.close, "done")
            await until(lambda: pair.a_hub.attached == ())
        await until(lambda: len(os.listdir("/proc/self/fd")) == before)
        assert "afd-session" not in [thread.name for thread in threading.enumerate()]

    run(work)
