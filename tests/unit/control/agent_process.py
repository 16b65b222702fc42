# SPDX-License-Identifier: Apache-2.0
"""An agent with one rank process, for tests: ``agent_process.py ROLE PORT DEED [CHANGE]``.

DEED is what the rank process does (see ``rank_process.py``); CHANGE is "field=value" of the hello. Prints lines
"<CLOCK_MONOTONIC> <event> <detail>" and exits with the exit code of the error that ends it, 0 after a goodbye.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

from afd.control.channel import SOCKET_ENV
from afd.control.hub import open_hub
from afd.control.rendezvous import open_control
from afd.errors import AFDError
from tests.unit.control.agents import config_of, hello_of


def say(event: str, detail: object = "") -> None:
    sys.stdout.write(f"{time.monotonic()} {event} {detail}\n")  # one write: another process prints there too
    sys.stdout.flush()


async def agent(role: str, port: int, deed: str, change: dict[str, Any]) -> None:
    end = asyncio.Event()
    loop = asyncio.get_running_loop()
    hello = hello_of(role, **change)
    async with (
        open_control(config_of(port), hello, on_bye=lambda ranks, reason: end.set()) as control,
        open_hub(control) as hub,
    ):

        def wake() -> None:
            loop.call_soon_threadsafe(end.set)

        control.abort.subscribe(wake)
        rank = await asyncio.create_subprocess_exec(
            *(sys.executable, str(Path(__file__).with_name("rank_process.py")), str(control.ranks[0]), deed),
            env={**os.environ, SOCKET_ENV: hub.address},
        )
        while not hub.attached:
            await asyncio.sleep(0.01)
        say("up", rank.pid)
        await end.wait()
        say("end", control.abort.cause or "goodbye")
        await rank.wait()
        control.abort.check()


def main() -> None:
    role, port, deed, *changes = sys.argv[1:]
    change = dict(text.split("=", 1) for text in changes)
    say("start", os.getpid())
    try:
        asyncio.run(agent(role, int(port), deed, change))
    except AFDError as error:
        say("error", error)
        sys.exit(error.exit_code)


main()
