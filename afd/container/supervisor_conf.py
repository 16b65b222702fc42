# SPDX-License-Identifier: Apache-2.0
"""supervisord's configuration for one FFN and one Attention role, and the listener that watches them.

It holds paths of this container's own making and numbers, and nothing that a user has written: no argument, no secret.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from afd.container.watch import GROUP, ROLES
from afd.errors import ConfigError

SOCKET, LOG, CONF = "supervisor.sock", "supervisord.log", "supervisord.conf"
KILL_S = 3
"""How long a role may take to end when its container ends anyway: there is nothing left to finish then."""

_HEAD = """\
[unix_http_server]
file={directory}/{socket}
chmod=0700

[supervisord]
nodaemon=true
silent=true
{user}logfile={directory}/{log}
logfile_maxbytes=1MB
logfile_backups=0
loglevel=info
pidfile={directory}/supervisord.pid
childlogdir={directory}

[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface

[supervisorctl]
serverurl=unix://{directory}/{socket}

; A role that has ended stays ended. With startsecs=0 each end is an EXITED event, which has an exit code.
[group:{group}]
programs={programs}
"""

# TERM to the leader alone: a group-wide one would end vLLM's workers in the middle of a drain.
_ROLE = """
[program:{role}]
command={command}
priority={priority}
autorestart=false
startsecs=0
startretries=0
stopsignal=TERM
stopwaitsecs={kill_s}
stopasgroup=false
killasgroup=true
redirect_stderr=true
stdout_logfile={directory}/{role}.out
stdout_logfile_maxbytes=0
"""

_WATCH = """
[eventlistener:watch]
command={command}
events=PROCESS_STATE_EXITED,PROCESS_STATE_FATAL,PROCESS_STATE_UNKNOWN
priority=1
autorestart=true
startsecs=0
stopwaitsecs=2
stdout_logfile=NONE
stderr_logfile={directory}/watch.out
stderr_logfile_maxbytes=0
"""


def render(directory: Path, *, root: bool) -> str:
    """The file's text. Raises ConfigError for a path that its syntax cannot hold."""
    path = str(directory)
    if any(mark in path for mark in ("\n", "\r", " ;", "\t;")) or path != path.strip():
        raise ConfigError(
            f"{path!r}: supervisord's configuration cannot hold this path; set AFD_RUN_DIR to another one"
        )
    path = path.replace("%", "%%")

    def command(module: str, argument: str) -> str:
        words = (sys.executable, "-m", f"afd.container.{module}", argument)
        return shlex.join(words).replace("%", "%%")

    return "".join(
        (
            _HEAD.format(
                directory=path,
                socket=SOCKET,
                log=LOG,
                user="user=root\n" if root else "",
                group=GROUP,
                programs=",".join(ROLES),
            ),
            *(
                _ROLE.format(
                    role=role,
                    command=command("role", f"{directory}/{role}.json"),
                    priority=10 * number,
                    kill_s=KILL_S,
                    directory=path,
                )
                for number, role in enumerate(ROLES, 1)
            ),
            _WATCH.format(command=command("watch", str(directory)), directory=path),
        )
    )
