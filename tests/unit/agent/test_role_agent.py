# SPDX-License-Identifier: Apache-2.0
"""A role agent from its first port to its exit code, two of them against each other, with stand-ins for vLLM."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from afd.agent.launch_protocol import LAUNCHER_VARIABLE
from afd.agent.leftovers import title
from afd.launch.free_ports import free_port
from tests.unit.agent.hub import hub
from tests.unit.agent.roles import SETTINGS
from tests.unit.launch.forks import environment, wait_until

GOOD = {"ffn": "ffn_rank", "attention": "api_server"}


class Roles:
    """Role agents as processes, each with its own ports."""

    def __init__(self, checkpoint: Path, launcher: str, directory: Path) -> None:
        self._checkpoint, self._launcher, self._directory = checkpoint, launcher, directory
        self.rendezvous, self.api = free_port(), free_port()
        self.agent = {"ffn": free_port(), "attention": free_port()}
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.older: list[subprocess.Popen[bytes]] = []

    def start(
        self,
        role: str,
        *argv: str,
        target: str = "",
        model: Path | str | None = None,
        launcher: bool = True,
        **variables: str,
    ) -> None:
        """``launcher=False``: the role starts its own, which imports vLLM."""
        shared = {LAUNCHER_VARIABLE: self._launcher} if launcher else {}
        words = [role, model or self._checkpoint, self.rendezvous, self.api, self.agent[role]]
        with open(self._directory / role, "wb") as log:
            self.running[role] = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.unit.agent.roles",
                    *map(str, words),
                    target or GOOD[role],
                    *argv,
                ],
                env=environment(**shared, **variables),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def another(self, role: str) -> None:
        """What is started as ``role`` from now on has other ports."""
        self.older.append(self.running.pop(role))
        self.api, self.agent[role] = free_port(), free_port()

    def both(self, **targets: str) -> None:
        for role in GOOD:
            self.start(role, target=targets.get(role, ""))

    def text(self, role: str) -> str:
        return (self._directory / role).read_text()

    def get(self, role: str, path: str) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.agent[role]}{path}", timeout=5) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)
        except OSError:
            return 0, None

    def ready(self) -> None:
        for role in self.running:
            wait_until(
                lambda role=role: self.get(role, "/readyz")[0] == 200, f"{role} is ready:\n{self.text(role)}"
            )

    def ended(self, role: str) -> tuple[int, str]:
        """The exit code, and the last line without its beginning."""
        code = self.running[role].wait(20)
        lines = self.text(role).splitlines()
        return code, lines[-1].removeprefix("afd: error: ") if lines else ""

    def processes(self, role: str) -> list[psutil.Process]:
        """What the role has forked."""
        pids = [
            line.rpartition(" is process ")[2]
            for line in self.text(role).splitlines()
            if " is process " in line
        ]
        return [psutil.Process(int(pid)) for pid in pids if psutil.pid_exists(int(pid))]

    def close(self) -> None:
        for process in (*self.running.values(), *self.older):
            process.kill()
            process.wait()


@pytest.fixture
def roles(checkpoint: Path, launcher_path: str, tmp_path: Path) -> Iterator[Roles]:
    made = Roles(checkpoint, launcher_path, tmp_path)
    yield made
    made.close()


def test_two_roles_become_ready_and_a_signal_to_either_stops_both_with_code_0(roles: Roles) -> None:
    for role, number in (("attention", signal.SIGINT), ("ffn", signal.SIGTERM)):
        roles.both()
        roles.ready()
        status = roles.get("ffn", "/status")[1]
        assert (status["state"], status["steps"], status["transport"]) == ("ready", 3, "shm")
        assert [(peer["rank"], peer["state"]) for peer in status["peers"]] == [("A0", "ready")]
        left = [*roles.processes("ffn"), *roles.processes("attention")]
        assert len(left) == 2
        roles.running[role].send_signal(number)
        assert [roles.ended(name)[0] for name in GOOD] == [0, 0]
        wait_until(
            lambda left=left: not any(process.is_running() for process in left), "all processes are gone"
        )


def test_signals_in_the_last_moments_of_a_role_do_not_change_its_exit_code(roles: Roles) -> None:
    """Whoever stops both roles, one after the other, finds the second one on its way out."""
    roles.both()
    roles.ready()
    roles.running["attention"].send_signal(signal.SIGTERM)
    wait_until(lambda: "state: stopped" in roles.text("ffn"), "FFN has stopped")
    ffn = roles.running["ffn"]
    while ffn.poll() is None:
        ffn.send_signal(signal.SIGTERM)
        ffn.send_signal(signal.SIGINT)
        time.sleep(0.0001)
    assert roles.ended("ffn")[0] == 0
    assert roles.ended("attention")[0] == 0


PHASES = r"(met {peer}|vLLM imported|{own} loaded|first request answered|ready) in \d+\.\d s"


@pytest.mark.parametrize(("role", "own", "peer"), [("attention", "A0", "F0"), ("ffn", "F0", "A0")])
def test_a_role_tells_each_phase_once_with_its_seconds_and_then_where_it_answers(
    roles: Roles, role: str, own: str, peer: str
) -> None:
    roles.both()
    roles.ready()
    wait_until(lambda: " ready in " in roles.text(role), "the last phase is told")
    expected = [f"met {peer}", "vLLM imported", f"{own} loaded", "first request answered", "ready"]
    if role == "ffn":
        expected.remove("first request answered")
    assert re.findall(PHASES.format(own=own, peer=peer), roles.text(role)) == expected
    (last,) = re.findall(r" ready in .*", roles.text(role))
    assert (
        f"agent at http://127.0.0.1:{roles.agent[role]}, 1 {'FFN' if role == 'attention' else 'Attention'}"
        in last
    )
    assert (f"OpenAI API at http://127.0.0.1:{roles.api}/v1" in last) is (role == "attention")


@pytest.mark.parametrize("first", ["attention", "ffn"])
def test_either_role_may_come_first_and_says_whom_it_waits_for(roles: Roles, first: str) -> None:
    roles.start(first)
    missing = "A0" if first == "ffn" else "F0"
    wait_until(lambda: (roles.get(first, "/status")[1] or {}).get("waiting_for") == [missing], "it waits")
    wait_until(lambda: f"waiting for {missing}" in roles.text(first), "its log says so, too")
    assert roles.processes(first) == []
    roles.start("attention" if first == "ffn" else "ffn")
    roles.ready()


@pytest.mark.parametrize(
    ("role", "target", "codes", "says"),
    [
        ("ffn", "ffn_rank_that_breaks", {"ffn": 71, "attention": 70}, "F0: ValueError('as the test asked')"),
        ("attention", "api_server_that_ends", {"ffn": 70, "attention": 71}, "no room for the cache"),
        (
            "attention",
            "api_server_without_an_engine",
            {"ffn": 70, "attention": 71},
            "the warm-up request was answered 500",
        ),
        (
            "attention",
            "api_server_whose_engine_is_killed",
            {"ffn": 70, "attention": 71},
            "A0: VLLM::EngineCore (process ",
        ),
        (
            "attention",
            "api_server_whose_engine_is_killed_early",
            {"ffn": 70, "attention": 71},
            ") was killed by SIGKILL",
        ),
        ("attention", "no_such_function", {"ffn": 70, "attention": 71}, "KeyError: 'no_such_function'"),
    ],
)
def test_a_role_that_breaks_ends_with_71_and_its_peer_with_70_and_both_say_why(
    roles: Roles, role: str, target: str, codes: dict[str, int], says: str
) -> None:
    roles.both(**{role: target})
    for name, code in codes.items():
        found, line = roles.ended(name)
        assert found == code, roles.text(name)
        assert says in line


def test_a_group_with_a_replica_that_cannot_answer_is_never_ready_and_says_which(roles: Roles) -> None:
    two = {SETTINGS: json.dumps({"num_attention_ranks": 2})}
    roles.start("ffn", **two)
    argv = ("--dtype", "float32", "--data-parallel-size", "2")
    roles.start("attention", *argv, target="api_server_without_replica_1", **two)
    for role, code in (("attention", 71), ("ffn", 70)):
        found, line = roles.ended(role)
        assert (found, line.startswith("A1: the warm-up request to A1 was answered 500")) == (code, True), (
            line
        )
        assert "state: ready\n" not in roles.text(role)


def test_ranks_that_never_load_are_to_blame_and_not_those_that_wait_for_them(roles: Roles) -> None:
    soon = {SETTINGS: json.dumps({"timeouts": {"load_s": 4.0, "rendezvous_s": 30.0, "heartbeat_s": 0.2}})}
    roles.start("ffn", target="ffn_rank_that_waits_for_others", **soon)
    roles.start("attention", target="api_server_that_loads", **soon)
    for role, code in (("attention", 71), ("ffn", 70)):
        found, line = roles.ended(role)
        assert (found, line.startswith("A0: ")) == (code, True), line


def test_ranks_that_left_in_order_are_not_the_cause_but_the_process_that_failed_above_them(
    roles: Roles,
) -> None:
    roles.both(attention="api_server_that_ends_slowly", ffn="ffn_rank_that_leaves")
    for role, code in (("attention", 71), ("ffn", 70)):
        found, line = roles.ended(role)
        assert (found, "no room for the cache" in line) == (code, True), line


def test_a_role_that_was_told_nonsense_says_so_once_and_ends_with_64(roles: Roles) -> None:
    roles.both(attention="api_server_that_is_told_nonsense")
    assert roles.ended("attention") == (64, "A0: vLLM's arguments: --port: nonsense")
    assert roles.ended("ffn") == (70, "A0: vLLM's arguments: --port: nonsense")
    for role in GOOD:
        assert roles.text(role).count("afd: error: ") == 1


def test_a_process_that_is_killed_is_missed_by_its_agent_though_its_parent_goes_on(roles: Roles) -> None:
    roles.both(attention="api_server_with_a_coordinator")
    roles.ready()
    (server,) = roles.processes("attention")
    (victim,) = server.children()
    assert title(victim) == "VLLM::DPCoordinator"
    killed = time.monotonic()
    victim.kill()
    for role, code in (("attention", 71), ("ffn", 70)):
        assert roles.ended(role) == (
            code,
            f"A0: VLLM::DPCoordinator (process {victim.pid}) was killed by SIGKILL",
        )
    assert time.monotonic() - killed < 5


def test_a_killed_agent_takes_its_processes_along_and_is_a_lost_peer(roles: Roles) -> None:
    roles.both()
    roles.ready()
    left = roles.processes("ffn")
    roles.running["ffn"].kill()
    began = time.monotonic()
    code, line = roles.ended("attention")
    assert (code, "F0: its agent" in line) == (70, True)
    assert time.monotonic() - began < 5
    wait_until(lambda: not any(process.is_running() for process in left), "its processes are gone")


def test_roles_that_differ_never_start_a_process(roles: Roles) -> None:
    roles.start("ffn", "--dtype", "float32")
    roles.start("attention", "--dtype", "bfloat16")
    for role in GOOD:
        code, line = roles.ended(role)
        assert (code, line.endswith("dtype: float32 on F0 but bfloat16 on A0")) == (65, True), line
        assert " is process " not in roles.text(role)


@pytest.mark.parametrize(
    ("role", "port", "says"),
    [
        ("attention", lambda roles: roles.api, "the API server"),
        ("attention", lambda roles: roles.agent["attention"], "the agent port"),
        ("ffn", lambda roles: roles.rendezvous, "the rendezvous"),
    ],
)
def test_a_port_in_use_is_refused_at_once_with_its_owner(
    roles: Roles, role: str, port: Callable[[Roles], int], says: str
) -> None:
    with socket.create_server(("127.0.0.1", port(roles))):
        roles.start(role)
        code, line = roles.ended(role)
    assert code == 64, line
    assert says in line and "in use" in line


def test_a_stop_while_vllm_is_imported_does_not_wait_for_that(roles: Roles) -> None:
    for role in GOOD:
        roles.start(role, launcher=False)

    def launchers() -> list[psutil.Process]:
        agents = [psutil.Process(role.pid) for role in roles.running.values()]
        return [child for agent in agents for child in agent.children()]

    wait_until(
        lambda: [title(process) for process in launchers()] == ["afd::launcher"] * 2,
        "both launchers import vLLM",
    )
    left = launchers()
    status = roles.get("ffn", "/status")[1]
    assert (status["state"], status["peers"][0]["state"]) == ("loading", "loading")
    began = time.monotonic()
    roles.running["ffn"].send_signal(signal.SIGINT)
    assert [roles.ended(role)[0] for role in GOOD] == [0, 0]
    assert time.monotonic() - began < 4
    assert not any(process.is_running() for process in left)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_stop_of_attention_while_ffn_loads_is_a_stop_of_both(roles: Roles, number: signal.Signals) -> None:
    roles.both(ffn="ffn_rank_that_loads")
    wait_until(lambda: "process" in roles.text("ffn") and "(F0) attached" in roles.text("ffn"), "FFN loads")
    wait_until(lambda: "first request answered" in roles.text("attention"), "Attention has loaded")
    roles.running["attention"].send_signal(number)
    assert [roles.ended(role)[0] for role in GOOD] == [0, 0], roles.text("ffn")
    assert roles.get("ffn", "/status") == (0, None)


def test_a_stop_while_it_waits_for_its_peer_is_a_stop(roles: Roles) -> None:
    roles.start("ffn")
    wait_until(lambda: roles.get("ffn", "/status")[0] == 200, "it answers")
    roles.running["ffn"].send_signal(signal.SIGTERM)
    assert roles.ended("ffn")[0] == 0


def test_weights_are_downloaded_while_the_role_loads_and_answers_and_a_stop_ends_that_at_once(
    roles: Roles, checkpoint: Path, tmp_path: Path
) -> None:
    with hub("org/small", checkpoint) as served:
        served.stalled.set()
        variables = {"HF_ENDPOINT": served.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
        for role in GOOD:
            roles.start(role, model="org/small", **variables)
        for role in GOOD:
            wait_until(
                lambda role=role: "downloading the weights of org/small" in roles.text(role), "it comes"
            )
        wait_until(lambda: "model.safetensors" in served.served, "the weights are asked for")
        status = roles.get("attention", "/status")[1]
        assert (status["state"], [peer["state"] for peer in status["peers"]]) == ("loading", ["loading"])
        stopped = time.monotonic()
        roles.running["ffn"].send_signal(signal.SIGTERM)
        assert [roles.ended(role)[0] for role in GOOD] == [0, 0]
        assert time.monotonic() - stopped < 5


def test_a_model_on_the_hub_is_served_when_its_weights_have_come(
    roles: Roles, checkpoint: Path, tmp_path: Path
) -> None:
    with hub("org/small", checkpoint) as served:
        variables = {"HF_ENDPOINT": served.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
        for role in GOOD:
            roles.start(role, model="org/small", **variables)
        roles.ready()
        assert served.served.count("model.safetensors") == 1
        assert roles.get("attention", "/status")[1]["model"] == "org/small"
    roles.running["attention"].send_signal(signal.SIGTERM)
    assert [roles.ended(role)[0] for role in GOOD] == [0, 0]
