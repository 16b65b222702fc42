# SPDX-License-Identifier: Apache-2.0
"""``afd-entrypoint``: the first process of a container.

Roles, single-node, smoke and doctor run as a child of this process, which stays; any other command takes its place.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from afd.agent import secrets
from afd.agent.share import DATA, LOCAL, TENSOR, size
from afd.cli.plain import spell
from afd.cli.version import afd_version
from afd.config import nearest, options
from afd.container import devices, pod, surroundings
from afd.container.asked import Asked, read
from afd.container.devices import Share
from afd.container.init import Child, as_exit_code, hear_all, hold_signals
from afd.container.run_files import RunFiles
from afd.errors import AFDError, ConfigError
from afd.topology import Role

NAME = "afd-entrypoint"
IMAGE = Path("/etc/afd/image.json")
_HELP = """\
What a container of AFD does, as the arguments after the image's name say:

  single-node MODEL [ARGUMENTS]   both roles here, under supervisord; lives as long as both do
  attention MODEL [ARGUMENTS]     one role: afd serve attention
  ffn MODEL [ARGUMENTS]           one role: afd serve ffn
  serve MODEL [ARGUMENTS]         the role of this pod: AFD_ROLE, or its place in a LeaderWorkerSet
  smoke                           both roles with a built-in model; tokens must be those of native vLLM
  doctor                          check this container and machine
  version                         what is in this image
  COMMAND [ARGUMENTS]             any other command

ARGUMENTS are those of `afd serve`: vLLM's own and --afd-…; `attention --help` lists them. docs/containers.md has the
variables, lines to copy, and the exit codes: 0 stopped after everything in flight was answered, 64 usage or
configuration, 65 the roles were configured differently, 69 a peer did not come, 70 a role or peer was lost, 71 a role
failed, 128+n killed by signal n.
"""


Mode = Callable[[Sequence[str], Mapping[str, str]], int]
"""Gets the arguments after its name and the prepared environment."""


def main() -> None:
    """The console script."""
    hold_signals()
    spell()
    code = run(sys.argv[1:], os.environ)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    # Not sys.exit: threads that wait for a reader of our output must not keep a container from ending.
    os._exit(code)


def run(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Do what ``argv`` asks for and return the exit code."""
    hide = _secrets(argv, environment).hide
    try:
        return _dispatch(argv, environment)
    except AFDError as error:
        return _fail(hide(str(error)), error.exit_code)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        return _fail(hide(error.format_message().rstrip(".")), ConfigError.exit_code)


def _dispatch(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    if not argv:
        print(_HELP, file=sys.stderr)
        raise ConfigError("nothing to do: say what this container is for")
    if argv[0] in ("-h", "--help", "help"):
        print(_HELP)
        return 0
    environment = {**environment, **surroundings.home(environment)}
    mode = MODES.get(argv[0])
    if mode is not None:
        return mode(argv[1:], environment)
    if argv[0].startswith("-") or shutil.which(argv[0], path=environment.get("PATH")) is None:
        raise ConfigError(
            f"{argv[0]!r} is neither a command in this image nor one of {', '.join(MODES)}"
            f"{nearest(argv[0], tuple(MODES))}"
        )
    return _become(argv, environment)


def _serve(role: Role | None) -> Mode:
    def serve(argv: Sequence[str], environment: Mapping[str, str]) -> int:
        if role is None and argv[:1] and argv[0] in tuple(map(str, Role)):  # as in `afd serve`
            return _role(Role(argv[0]), argv[1:], environment)
        return _role(role, argv, environment)

    return serve


@dataclass(frozen=True)
class Planned:
    """One role of this container: ``given`` is what the user wrote, ``asked`` that with what the pod adds."""

    given: Asked
    asked: Asked
    share: Share


def plan(role: Role | None, argv: Sequence[str], environment: Mapping[str, str], hostname: str) -> Planned:
    """What to run as ``role``, None when the pod has to say. Raises ConfigError, and click's errors and Exit."""
    named = environment.get("AFD_ROLE", "")
    guess = role or (Role(named) if named in tuple(map(str, Role)) else Role.ATTENTION)
    bare = {name: value for name, value in environment.items() if name != "AFD_ROLE"}
    given = read(guess, argv, bare)
    place = pod.find(role, environment, hostname, given.config.topology)
    words = [*argv, *pod.arguments_of(place, given.vllm)]
    if place.rendezvous and given.origins["host"] == "default":
        words += [next(option.flag for option in options() if option.path == "host"), place.rendezvous]
    asked = read(place.role, words, environment)
    share = devices.deal([place.role], {place.role: _ranks(asked)}, environment)[place.role]
    return Planned(given, asked, share)


def _role(role: Role | None, argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """One role, as a child."""
    planned = plan(role, argv, environment, socket.gethostname())
    _leave_no_secret_on_the_command_line(planned.given, environment)
    asked, share = planned.asked, planned.share
    files = RunFiles(environment)
    memory = surroundings.SharedMemory()
    try:
        _say_cleared(memory.claim())
        files.agents({str(asked.role): asked.agent})
        command = [sys.executable, "-m", "afd.cli.main", "serve", str(asked.role), *asked.argv]
        return as_exit_code(
            Child(command, {**environment, **share.variables}, affinity=share.affinity).wait()
        )
    finally:
        memory.close()
        files.close()


def _ranks(asked: Asked) -> int:
    """How many ranks of the role run here."""
    if asked.role is Role.FFN:
        return asked.config.topology.num_ffn
    return size(asked.vllm, LOCAL, size(asked.vllm, DATA)) * size(asked.vllm, TENSOR)


def _single_node(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    from afd.container import single_node

    pair = single_node.plan(argv, environment)
    _leave_no_secret_on_the_command_line(pair.given, environment)
    memory = surroundings.SharedMemory()
    try:
        _say_cleared(memory.claim())
        return single_node.run(pair, environment)
    finally:
        memory.close()


def _leave_no_secret_on_the_command_line(given: Asked, environment: Mapping[str, str]) -> None:
    """Run this program again, as the same process, with keys and tokens in the environment: everybody can read command
    lines. Signals that wait go on waiting."""
    command, variables = secrets.command_line_without(sys.orig_argv, given.vllm)
    if command != sys.orig_argv:
        sys.stdout.flush()
        os.execve(sys.executable, command, {**environment, **variables})


def _smoke(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    return _below([sys.executable, "-m", "afd.container.smoke", *argv], environment)


def _doctor(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    return _below([sys.executable, "-m", "afd.cli.main", "doctor", *argv], environment)


def _below(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """A program of ours as a child: one that does not wait for signals to be let through."""
    return as_exit_code(Child(command, environment, blocked=()).wait())


def _version(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    if argv:
        raise ConfigError(f"version takes no arguments, found {argv[0]}")
    print(f"afd {afd_version()}")
    try:
        print(IMAGE.read_text(encoding="utf-8").rstrip())
    except FileNotFoundError:
        print(f"(no {IMAGE}: this is not one of AFD's images)")
    return 0


MODES: dict[str, Mode] = {
    "single-node": _single_node,
    "attention": _serve(Role.ATTENTION),
    "ffn": _serve(Role.FFN),
    "serve": _serve(None),
    "smoke": _smoke,
    "doctor": _doctor,
    "version": _version,
}


def _become(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Go on as another program, with the signals as it expects them."""
    sys.stdout.flush()
    hear_all()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        os.execvpe(command[0], list(command), dict(environment))
    except OSError as error:
        raise ConfigError(f"{command[0]}: {error.strerror}") from None


def _secrets(argv: Sequence[str], environment: Mapping[str, str]) -> secrets.Secrets:
    """Words that no message of this process may quote, however wrong the command line is."""
    words = [environment.get(name, "") for name in (secrets.KEY_VARIABLE, *secrets.HUB_VARIABLES)]
    secret = False
    for word in argv:
        flag, equals, value = word.partition("=")
        flag = flag.replace("_", "-")
        if flag in (secrets.KEY_FLAG, secrets.HUB_FLAG):
            secret = not equals
            words += [value] if equals else []
        elif word.startswith("-"):
            secret = False
        elif secret:
            words.append(word)
    return secrets.Secrets(words)


def _say_cleared(names: Sequence[str]) -> None:
    if names:
        print(
            f"{NAME}: removed {len(names)} stale segment(s) of AFD from /dev/shm: {', '.join(names)}",
            flush=True,
        )


def _fail(message: str, code: int) -> int:
    with contextlib.suppress(OSError):
        print(f"{NAME}: error: {' '.join(message.split())}", file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    main()
