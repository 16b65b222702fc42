# SPDX-License-Identifier: Apache-2.0
"""The weights of a model on the hub, downloaded while the role loads and in a process of its own.

A download of hours must not keep the agent from answering its port, its peers and signals, and no thread of the
hub's library can be ended. ``python -m afd.agent.fetch`` is that process.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from afd.agent.launcher import own_session
from afd.agent.model_files import HubModel, inspect
from afd.errors import AFDError, ConfigError, ResourceError, RoleFailedError

_NO_BARS = "HF_HUB_DISABLE_PROGRESS_BARS"


async def fetch(model: HubModel, directory: Path, environment: Mapping[str, str], timeout_s: float) -> None:
    """Download the weights of ``model`` into ``directory``, where its other files are, and check them.

    Its bars are shown on a terminal. Raises ConfigError with what is wrong with the model or with the way to it,
    ResourceError when there is no room for it, and RoleFailedError at the deadline. When it is cancelled, the download
    ends; what has come is kept for the next one.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__, str(directory)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**environment, **({} if sys.stderr.isatty() else {_NO_BARS: "1"})},
        cwd=sys.prefix,  # not where a model's own Python files would be found
        preexec_fn=partial(own_session, os.getpid()),
    )
    # The commit that the other files are of. Not as an argument, where everybody on this machine could read the token.
    order = json.dumps(asdict(replace(model, revision=directory.name))).encode()
    try:
        said, _ = await asyncio.wait_for(process.communicate(order), timeout_s)
    except asyncio.TimeoutError:
        raise RoleFailedError(
            f"the weights of {model.name} did not come within {timeout_s:g} s; start again to go on, "
            "or give it more with --afd-timeouts-load-s"
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode == ConfigError.exit_code:
        raise ConfigError(said.decode())
    if process.returncode == ResourceError.exit_code and said:
        raise ResourceError(said.decode())
    if process.returncode != 0:
        raise RoleFailedError(f"the download of {model.name} ended with code {process.returncode}; see above")


def main() -> None:
    """Download what standard input names, and check what came with it in the directory of the first argument."""
    model = HubModel(**json.load(sys.stdin))
    try:
        model.download(weights=True)
        try:
            inspect(Path(sys.argv[1]))
        except ConfigError:
            model.reach()  # weights that did not come have another reason
            raise
    except AFDError as error:
        sys.stdout.write(str(error))
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
