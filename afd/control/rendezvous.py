# SPDX-License-Identifier: Apache-2.0
"""How an agent gets its control plane: one call that returns when all ranks of both roles agree."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from afd.config import AFDConfig
from afd.control.abort import Cause
from afd.control.group import Control, OnBye, OnWaiting
from afd.control.joiner import Joiner
from afd.control.messages import Hello
from afd.control.root import Root


@asynccontextmanager
async def open_control(
    config: AFDConfig,
    hello: Hello,
    *,
    on_waiting: OnWaiting | None = None,
    on_bye: OnBye | None = None,
) -> AsyncIterator[Control]:
    """Meet all other agents at ``config.host``:``config.port`` and yield the control plane of the new epoch.

    The agent that owns ``config.topology.root`` listens there, the others connect; who comes first does not matter.
    ``on_waiting`` hears of every change while ranks are missing, ``on_bye`` of peers that leave on purpose; both
    are called in the event loop. Leaving the block says goodbye, or reports the exception that ends it as the
    failure of this agent's first rank.

    Raises, before it yields: :class:`afd.errors.ConfigError` (the port is in use, the token file is bad),
    :class:`afd.errors.MismatchError` (ranks are configured differently, or the token is wrong),
    :class:`afd.errors.PeerAbsentError` (ranks missing after ``timeouts.rendezvous_s``).
    """
    is_root = config.topology.root.role.value == hello.role and config.topology.root.index in hello.ranks
    control: Root | Joiner = (Root if is_root else Joiner)(config, hello, on_bye)
    reason = "the rendezvous failed"
    try:
        await control.form(on_waiting)
        reason = "done"
        try:
            yield control
        except asyncio.CancelledError:
            reason = "stopped"
            raise
        except BaseException as error:
            await control.fail(Cause.of(error, str(control.ranks[0]), hello.host.name))
            raise
    finally:
        await control.close(reason)
