# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for what a role forks: they speak to their agent as the real ones do, and need no vLLM.

Run as a program it is one role agent: ``roles.py ROLE MODEL PORT API_PORT AGENT_PORT TARGET [VLLM ARGUMENTS]``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer

from setproctitle import setproctitle

from afd import config as afd_config
from afd.agent.launch_protocol import die_with_parent
from afd.agent.plan import plan_role
from afd.cli.main import _fail
from afd.cli.serve import serve
from afd.control.messages import RESTS
from afd.control.session import RankSession
from afd.errors import AFDError, ConfigError
from afd.topology import Rank, Role

F0 = Rank(Role.FFN, 0)
SETTINGS = "ROLE_SETTINGS"
"""Variable with settings as JSON, on top of those of every test."""


def ffn_rank(argv: Sequence[str]) -> None:
    """Attach, say that it is ready, and serve until the epoch ends or the agent says so."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    session = RankSession.attach(rank=F0)
    session.abort.subscribe(stop.set)
    session.report({"afd_steps_total{phase=eager}": 3.0}, state="ready-to-warm")
    stop.wait()
    session.abort.check()
    session.close("shutdown")


def ffn_rank_that_rests(argv: Sequence[str]) -> None:
    """Serve epoch after epoch, as a rank does that keeps its weights."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    while True:
        session = attach_some_time()
        session.report({"afd_steps_total{phase=eager}": 3.0}, state="ready-to-warm")
        ended = threading.Event()
        session.abort.subscribe(ended.set)
        session.exchange("resolved", "loaded", 30.0)
        ended.wait()
        session.close(RESTS)


def ffn_rank_that_loads_for_a_while(argv: Sequence[str]) -> None:
    """It hears of the end of an epoch only when it has loaded, as one whose weights take minutes."""
    session = RankSession.attach(rank=F0)
    time.sleep(4.0)
    print("loaded", flush=True)
    try:
        session.exchange("resolved", "loaded", 30.0)
    except AFDError:
        session.close(RESTS)
        ffn_rank_that_rests(argv)


def attach_some_time() -> RankSession:
    while True:
        try:
            return RankSession.attach(rank=F0)
        except AFDError:
            time.sleep(0.05)


def api_server_with_a_rank(argv: Sequence[str]) -> None:
    """An API server whose worker takes part in what FFN's ranks exchange."""
    session = RankSession.attach(rank=Rank(Role.ATTENTION, 0))
    session.exchange("resolved", "loaded", 30.0)

    def leave(*_: object) -> None:
        session.close("shutdown")
        os._exit(0)

    api_server(argv, leave)


def ffn_rank_that_breaks(argv: Sequence[str]) -> None:
    session = RankSession.attach(rank=F0)
    session.report({}, state="ready-to-warm")
    time.sleep(0.5)
    raise session.fail(ValueError("as the test asked")).error()


class _Api(BaseHTTPRequestHandler):
    status = 200
    engine: int | None = None

    def do_GET(self) -> None:
        self._answer(200)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.engine is not None:
            os.kill(self.engine, signal.SIGKILL)
        self._answer(self.status)

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None: ...


def api_server(
    argv: Sequence[str], leave: Callable[..., None] = lambda *_: os._exit(0), handler: type[_Api] = _Api
) -> None:
    """Answer /health and completions on --port until SIGTERM."""
    server = HTTPServer(("127.0.0.1", int(argv[argv.index("--port") + 1])), handler)
    signal.signal(signal.SIGTERM, leave)
    print("the API server is up", flush=True)
    server.serve_forever()


def api_server_without_an_engine(argv: Sequence[str]) -> None:
    _Api.status = 500
    api_server(argv)


class _ApiWithoutReplica1(_Api):
    def do_POST(self) -> None:
        self.status = 500 if self.headers.get("X-data-parallel-rank") == "1" else 200
        super().do_POST()


def api_server_without_replica_1(argv: Sequence[str]) -> None:
    api_server(argv, handler=_ApiWithoutReplica1)


def api_server_whose_engine_is_killed(argv: Sequence[str]) -> None:
    """By the first request, which is then answered with an error; the server itself goes on."""
    _Api.engine = _forked("VLLM::EngineCore")
    time.sleep(1.0)  # until its agent has seen its name
    api_server_without_an_engine(argv)


def api_server_whose_engine_is_killed_early(argv: Sequence[str]) -> None:
    """Before anybody had a look at the tree; the server has read its exit code, and goes on."""
    engine = _forked("VLLM::EngineCore")
    time.sleep(0.1)  # it has streams of its own by then
    os.kill(engine, signal.SIGKILL)
    os.waitpid(engine, 0)
    api_server_without_an_engine(argv)


def api_server_with_a_coordinator(argv: Sequence[str]) -> None:
    """A process that nobody asks for anything, and that the server does not miss."""
    _forked("VLLM::DPCoordinator")
    api_server(argv)


def _forked(name: str) -> int:
    """The process id of a child that waits."""
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        die_with_parent(parent)
        setproctitle(name)
        time.sleep(120)
    return pid


def api_server_that_ends(argv: Sequence[str]) -> None:
    print("no room for the cache", flush=True)
    sys.exit(3)


def ffn_rank_that_loads(argv: Sequence[str]) -> None:
    """For longer than any test lasts."""
    RankSession.attach(rank=F0)
    time.sleep(120)


def ffn_rank_that_waits_for_others(argv: Sequence[str]) -> None:
    """It has loaded, and the ranks of Attention never do."""
    session = RankSession.attach(rank=F0)
    session.report({}, state="loaded")
    session.exchange("resolved", "loaded", 4.0)


def api_server_that_loads(argv: Sequence[str]) -> None:
    """For longer than any test lasts."""
    time.sleep(120)


def ffn_rank_that_leaves(argv: Sequence[str]) -> None:
    """As one does when Attention said goodbye to it."""
    session = RankSession.attach(rank=F0)
    session.report({}, state="ready-to-warm")
    session.close("shutdown")


def api_server_that_ends_slowly(argv: Sequence[str]) -> None:
    """As vLLM's does on a busy machine: its worker leaves in order, and a while later it says why."""
    session = RankSession.attach(rank=Rank(Role.ATTENTION, 0))
    session.close("shutdown")
    time.sleep(2.0)
    api_server_that_ends(argv)


def api_server_that_is_told_nonsense(argv: Sequence[str]) -> None:
    raise ConfigError("vLLM's arguments: --port: nonsense")


def main(argv: Sequence[str]) -> int:
    role, model, port, api_port, agent_port, target, *vllm_argv = argv
    settings = {
        "port": int(port),
        "timeouts": {"rendezvous_s": 30.0, "heartbeat_s": 0.2, "grace_s": 1.0, "step_s": 5.0},
        **json.loads(os.environ.get(SETTINGS, "{}")),
    }
    try:
        plan = plan_role(
            Role(role),
            model,
            afd_config.resolve({}, {}, settings, Role(role)).config,
            ["--host", "127.0.0.1", "--port", api_port, *(vllm_argv or ["--dtype", "float32"])],
            dict(os.environ),
            agent_host="127.0.0.1",
            agent_port=int(agent_port),
            target=f"tests.unit.agent.roles:{target}",
        )
        return serve(plan)
    except AFDError as error:
        return _fail(str(error), error.exit_code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
