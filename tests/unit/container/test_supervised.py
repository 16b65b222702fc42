# SPDX-License-Identifier: Apache-2.0
"""supervisord with our configuration and listener, and programs that end in all ways in the place of the roles."""

from __future__ import annotations

import configparser
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from afd.container import supervisor_conf, watch
from afd.container.init import STOPS
from afd.container.run_files import OURS
from afd.container.verdict import End
from afd.errors import ConfigError

LIMIT_S = 10.0
STAYS = (
    "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(0)); "
    "signal.pthread_sigmask(signal.SIG_UNBLOCK, {15}); time.sleep(60)"
)
DEAF = "import time; time.sleep(60)"  # the signals of a stop are blocked when it starts


def ends_with(code: int, after_s: float = 0.0) -> str:
    return f"import sys, time; time.sleep({after_s}); sys.exit({code})"


class Pair:
    """supervisord over two programs."""

    def __init__(self, directory: Path, ffn: str, attention: str) -> None:
        self.directory = directory
        for role, program in (("ffn", ffn), ("attention", attention)):
            role_file = {
                "command": [sys.executable, "-c", program],
                "affinity": [],
                "variables": {"A_ROLE": role},
            }
            (directory / f"{role}.json").write_text(json.dumps(role_file))
        conf = directory / supervisor_conf.CONF
        conf.write_text(supervisor_conf.render(directory, root=os.geteuid() == 0))
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)  # as the entry point starts it
        self.process = subprocess.Popen([sys.executable, "-m", "afd.container.supervisord", "-c", str(conf)])
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def end(self) -> tuple[list[End], float]:
        """How the roles ended, and the seconds from when that was noted to the end of everything."""
        assert self.process.wait(LIMIT_S + 20) == 0
        now = time.time()
        return watch.read_ends(self.directory), now - (self.directory / watch.ENDS).stat().st_mtime

    def child(self, word: str) -> psutil.Process:
        """The child whose command line contains ``word``, when it is there."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            for child in psutil.Process(self.process.pid).children():
                if any(word in part for part in child.cmdline()):
                    return child
            time.sleep(0.02)
        raise AssertionError(f"no child with {word}; {(self.directory / 'supervisord.log').read_text()}")


@pytest.fixture
def pair(tmp_path: Path) -> Callable[[str, str], Pair]:
    return lambda ffn, attention: Pair(tmp_path, ffn, attention)


@pytest.mark.parametrize(
    ("ffn", "attention", "expected"),
    [
        (ends_with(64), STAYS, [End("ffn", 64)]),
        (STAYS, ends_with(64, 0.3), [End("attention", 64)]),
        (ends_with(71, 0.3), ends_with(70, 0.8), [End("ffn", 71), End("attention", 70)]),
        ("import os; os.kill(os.getpid(), 9)", STAYS, [End("ffn", -1)]),
        (STAYS, ends_with(0), [End("attention", 0)]),
        (ends_with(70), DEAF, [End("ffn", 70)]),
    ],
)
def test_the_end_of_a_role_ends_the_container_in_time_and_no_role_starts_again(
    pair: Callable[[str, str], Pair], ffn: str, attention: str, expected: list[End]
) -> None:
    found = pair(ffn, attention)
    ends, seconds = found.end()
    assert ends == expected
    assert seconds < LIMIT_S
    log = (found.directory / supervisor_conf.LOG).read_text()
    assert [log.count(f"spawned: '{role}'") for role in watch.ROLES] == [1, 1]
    assert [name for name in os.listdir(found.directory) if not OURS.fullmatch(name)] == []


def test_a_wrong_configuration_does_not_wait_for_last_words(pair: Callable[[str, str], Pair]) -> None:
    _, seconds = pair(ends_with(64), STAYS).end()
    assert seconds < watch.LAST_WORDS_S


def test_a_listener_that_was_killed_hears_of_what_happened_meanwhile(
    pair: Callable[[str, str], Pair],
) -> None:
    found = pair(STAYS, STAYS)
    first = found.child("afd.container.watch")
    role = found.child("signal.pthread_sigmask")
    first.send_signal(signal.SIGSTOP)
    role.kill()
    time.sleep(0.2)
    first.kill()
    ends, seconds = found.end()
    assert [end.code for end in ends] == [-1]
    assert seconds < LIMIT_S


def test_a_stop_reaches_each_role_as_one_signal_and_both_ends_are_noted(
    pair: Callable[[str, str], Pair],
) -> None:
    found = pair(STAYS, STAYS)
    found.child("signal.pthread_sigmask")
    (found.directory / watch.STOPPING).touch()
    time.sleep(0.5)
    for child in psutil.Process(found.process.pid).children():
        if "pthread_sigmask" in " ".join(child.cmdline()):
            child.terminate()
    ends, _ = found.end()
    assert sorted(ends, key=lambda end: end.role) == [End("attention", 0), End("ffn", 0)]


SLOW = """
import os, sys, time
if os.environ["SLOW"] in sys.orig_argv:
    time.sleep(1)
"""
"""Python runs this before anything else when it finds it as sitecustomize: the moments of its start, made longer."""


@pytest.fixture
def slow(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes a module start slowly."""
    directory = tmp_path_factory.mktemp("start")
    (directory / "sitecustomize.py").write_text(SLOW)
    monkeypatch.setenv("PYTHONPATH", str(directory))
    return lambda module: monkeypatch.setenv("SLOW", module)


def test_a_stop_while_the_python_of_a_role_starts_waits_until_the_role_listens(
    pair: Callable[[str, str], Pair], slow: Callable[[str], None]
) -> None:
    slow("afd.container.role")
    found = pair(STAYS, STAYS)
    (found.directory / watch.STOPPING).touch()
    for role in watch.ROLES:
        found.child(f"{role}.json").terminate()
    ends, _ = found.end()
    assert sorted(ends, key=lambda end: end.role) == [End("attention", 0), End("ffn", 0)]


def test_a_stop_while_the_python_of_the_supervisor_starts_ends_it_before_a_role_runs(
    pair: Callable[[str, str], Pair], slow: Callable[[str], None]
) -> None:
    slow("afd.container.supervisord")
    found = pair(STAYS, STAYS)
    time.sleep(0.3)
    found.process.terminate()
    assert found.process.wait(LIMIT_S) == 0
    assert "spawned" not in (found.directory / supervisor_conf.LOG).read_text()


def test_the_supervisor_itself_ends_at_a_stop_with_all_it_started(pair: Callable[[str, str], Pair]) -> None:
    found = pair(STAYS, STAYS)
    roles = [found.child(f"{role}.json") for role in watch.ROLES]
    listener = found.child("afd.container.watch")
    time.sleep(0.5)
    begun = time.monotonic()
    found.process.terminate()
    assert found.process.wait(LIMIT_S) == 0
    assert time.monotonic() - begun < 2 * supervisor_conf.KILL_S
    assert not psutil.wait_procs([*roles, listener], timeout=1)[1]


def test_the_configuration_is_one_that_supervisord_reads_and_holds_nothing_of_the_user(
    tmp_path: Path,
) -> None:
    text = supervisor_conf.render(tmp_path / "100%", root=False)
    parser = configparser.RawConfigParser(inline_comment_prefixes=(" ;",))
    parser.read_string(text)
    assert parser.get("group:afd", "programs") == "ffn,attention"
    for role in watch.ROLES:
        section = dict(parser.items(f"program:{role}"))
        assert section["stopasgroup"] == "false" and section["autorestart"] == "false"
        assert section["command"] == f"{sys.executable} -m afd.container.role {tmp_path}/100%%/{role}.json"
    assert "user=" not in text and "environment" not in text
    assert "user=root" in supervisor_conf.render(tmp_path, root=True)


@pytest.mark.parametrize("name", ["a ;b", "a\nb", " a"])
def test_a_path_that_the_configuration_cannot_hold_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="set AFD_RUN_DIR"):
        supervisor_conf.render(Path(name), root=False)
