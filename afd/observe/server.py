# SPDX-License-Identifier: Apache-2.0
"""The agent's HTTP port: probes, status, metrics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from afd.control.ports import listen
from afd.errors import AFDError
from afd.observe.door import Door
from afd.observe.metrics import CONTENT_TYPE, Metrics
from afd.observe.operator import Action, Reply, Token, refusal
from afd.observe.status import StatusSource

log = logging.getLogger(__name__)

PORT = 9300
KEEP_S = 20.0
"""How long a connection is kept for another request. Scrapers come more often."""


@dataclass(frozen=True)
class AgentServer:
    """A running server; ``port`` is the one it listens on."""

    host: str
    port: int


@asynccontextmanager
async def open_server(
    source: StatusSource,
    metrics: Metrics,
    *,
    host: str = "0.0.0.0",
    port: int = PORT,
    actions: Mapping[str, Action] | None = None,
    token: Token = lambda: None,
) -> AsyncIterator[AgentServer]:
    """Answer on ``host``:``port`` (0: any port) until the block is left. Probes need the pod's address, so the
    default is all addresses.

    ``actions`` are what a POST to a path does; they are for operators (:mod:`afd.observe.operator`).

    Raises :class:`afd.errors.ConfigError` naming the owner of a port in use.
    """
    socket = listen(
        host, port, "the agent port", "stop that process, or choose another port with --agent-port"
    )
    runner = web.AppRunner(
        application(source, metrics, actions or {}, token),
        access_log=None,
        logger=_requests,
        handle_signals=False,
        shutdown_timeout=0.5,
        keepalive_timeout=KEEP_S,
    )
    door, server = Door(), None
    try:
        await runner.setup()
        handlers = runner.server
        assert handlers is not None, "set up above"
        server = await asyncio.get_running_loop().create_server(
            lambda: door.visit(handlers()), sock=socket, backlog=128
        )
        bound: int = socket.getsockname()[1]
        log.info("agent port: %s:%d", host, bound)
        yield AgentServer(host, bound)
    finally:
        if server is not None:
            server.close()
        await runner.cleanup()
        socket.close()


def _is_ours(record: logging.LogRecord) -> bool:
    """No traceback for each stranger who speaks no HTTP: its answer, 400, says what is wrong."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


_requests = logging.getLogger(f"{__name__}.requests")
_requests.addFilter(_is_ours)


def application(
    source: StatusSource, metrics: Metrics, actions: Mapping[str, Action], token: Token
) -> web.Application:
    """The routes of one agent."""

    async def livez(_: web.Request) -> web.Response:
        return _verdict(source, source.not_live())

    async def readyz(_: web.Request) -> web.Response:
        return _verdict(source, source.not_ready())

    async def status(_: web.Request) -> web.Response:
        return _json(source.status())

    async def numbers(_: web.Request) -> web.Response:
        return web.Response(body=metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    async def act(request: web.Request) -> web.Response:
        try:
            reply = refusal(request, token) or await actions[request.path]()
        except AFDError as error:
            reply = Reply(500, {"error": "failed", "reason": str(error)})
        log.info("POST %s from %s: %d", request.path, request.remote, reply.status)
        return _json(reply.body, reply.status)

    async def unknown(request: web.Request) -> web.Response:
        posts = f", and POST {', '.join(actions)}" if actions else ""
        reason = f"no {request.method} {request.path}; there are /livez, /readyz, /status and /metrics{posts}"
        return _json({"error": "not found", "reason": reason}, status=404)

    routes: dict[str, Callable[[web.Request], Awaitable[web.StreamResponse]]] = {
        "/livez": livez,
        "/readyz": readyz,
        "/status": status,
        "/metrics": numbers,
    }
    app = web.Application(client_max_size=1 << 16)
    for path, handler in routes.items():
        app.router.add_get(path, handler)
    for path in actions:
        app.router.add_post(path, act)
    app.router.add_route("*", "/{path:.*}", unknown)
    return app


def _verdict(source: StatusSource, reason: str | None) -> web.Response:
    state = source.status().state
    if reason is None:
        return _json({"state": state})
    return _json({"state": state, "reason": reason}, status=503)


def _json(body: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")
