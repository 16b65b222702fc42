# SPDX-License-Identifier: Apache-2.0
"""``afd-healthcheck``: 0 when every agent of this container answers, 1 when not; for HEALTHCHECK and for exec probes.

It imports little, because it runs every few seconds: the standard library's HTTP client, and nothing of AFD.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

AGENTS = "agents.json"
LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where to ask who listens on all addresses."""
HEALTHY, UNHEALTHY, USAGE = 0, 1, 64


def main(argv: Sequence[str] | None = None) -> int:
    """The console script."""
    parser = argparse.ArgumentParser(
        prog="afd-healthcheck", description=__doc__.splitlines()[0], exit_on_error=False
    )
    parser.add_argument(
        "--ready", action="store_true", help="ask /readyz (it generates) instead of /livez (it lives)"
    )
    parser.add_argument(
        "--timeout", type=float, default=3.0, metavar="S", help="for all agents together (default: 3)"
    )
    try:
        options, unknown = parser.parse_known_args(argv)
    except argparse.ArgumentError as error:
        print(f"afd-healthcheck: error: {error}", file=sys.stderr)
        return USAGE
    if unknown or not 0 < options.timeout < 3600:
        what = f"unexpected {unknown[0]}" if unknown else f"--timeout {options.timeout:g} is no time to wait"
        print(f"afd-healthcheck: error: {what} (see: afd-healthcheck --help)", file=sys.stderr)
        return USAGE
    healthy, words = check("/readyz" if options.ready else "/livez", options.timeout)
    print(f"{'healthy' if healthy else 'unhealthy'}: {words}")
    return HEALTHY if healthy else UNHEALTHY


def check(path: str, timeout_s: float) -> tuple[bool, str]:
    """Ask every agent for ``path``: whether all say yes, and what each said."""
    deadline = time.monotonic() + timeout_s
    directory = f"{os.environ.get('AFD_RUN_DIR') or tempfile.gettempdir()}/afd-{os.geteuid()}"
    try:
        agents: dict[str, tuple[str, int]] = json.loads(Path(directory, AGENTS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return False, f"no role runs in this container (no {directory}/{AGENTS})"
    except (OSError, ValueError) as error:
        return False, f"{directory}/{AGENTS}: {error}"
    if not agents:
        return False, "the agent has a free port of its own choice (--agent-port 0), which nobody else knows"
    said = {role: ask(host, port, path, deadline) for role, (host, port) in agents.items()}
    return all(status == 200 for status, _ in said.values()), ", ".join(
        f"{r}: {words}" for r, (_, words) in said.items()
    )


def ask(host: str, port: int, path: str, deadline: float) -> tuple[int, str]:
    """Status and state of one agent, which listens at ``host``; status 0 when it does not answer in time."""
    host = LOOPBACK.get(host, host)
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    connection = http.client.HTTPConnection(host, port, timeout=max(0.05, deadline - time.monotonic()))
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = json.loads(response.read(4096))
        reason = body.get("reason")
        return response.status, f"{body['state']}{f' ({reason})' if reason else ''}"
    except (OSError, http.client.HTTPException, ValueError, KeyError, AttributeError) as error:
        return 0, f"no answer at {where}: {error or type(error).__name__}"
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(main())
