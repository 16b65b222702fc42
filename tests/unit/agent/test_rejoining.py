# SPDX-License-Identifier: Apache-2.0
"""Two role agents that stay when their epoch is lost, with stand-ins for vLLM."""

from __future__ import annotations

import json
import os
import re
import signal
import time
import urllib.request
from typing import Any

import psutil
import pytest

from afd.agent.leftovers import runs
from tests.unit.agent.roles import SETTINGS
from tests.unit.agent.test_role_agent import Roles, roles
from tests.unit.launch.forks import wait_until

__all__ = ["roles"]

RESTS = {"ffn": "ffn_rank_that_rests", "attention": "api_server_with_a_rank"}


def settings(timeouts: dict[str, float] | None = None, **rejoin: Any) -> dict[str, str]:
    """The variable that makes a role of these tests rejoin."""
    more = {} if timeouts is None else {"timeouts": timeouts}
    return {SETTINGS: json.dumps({"on_loss": "rejoin", "rejoin": {"backoff_s": 0.2, **rejoin}, **more})}


def start(roles: Roles, *names: str, **rejoin: Any) -> None:
    for role in names or ("ffn", "attention"):
        roles.start(role, target=RESTS[role], **settings(**rejoin))


def child(roles: Roles, role: str) -> psutil.Process:
    """The process of the role that was forked last."""
    return roles.processes(role)[-1]


def epoch(roles: Roles) -> str:
    found: str = roles.get("ffn", "/status")[1]["epoch"]
    return found


def next_epoch(roles: Roles, before: str) -> None:
    def formed() -> bool:
        bodies = [roles.get(role, "/status")[1] for role in ("ffn", "attention")]
        return all(body and body["state"] == "ready" and body["epoch"] not in ("", before) for body in bodies)

    wait_until(formed, "a new epoch is ready")


def test_agents_stay_ffn_keeps_its_process_and_attention_gets_a_new_one(roles: Roles) -> None:
    start(roles)
    roles.ready()
    before, kept, lost = epoch(roles), child(roles, "ffn"), child(roles, "attention")
    lost.kill()
    next_epoch(roles, before)
    assert child(roles, "ffn") == kept and runs(kept)
    assert child(roles, "attention") != lost and not runs(lost)
    for role in ("ffn", "attention"):
        assert roles.running[role].poll() is None
        body = roles.get(role, "/status")[1]
        assert body["restarts"] == 1 and body["last_restart_s"] > 0
        assert f"A0: the API server (process {lost.pid}) was killed" in body["last_error"]
        assert "starting again (attempt 1 of 5)" in roles.text(role)
        assert "ready again" in roles.text(role)
    # What was counted before the loss is not forgotten.
    assert roles.get("ffn", "/status")[1]["steps"] == 6
    roles.running["attention"].send_signal(signal.SIGTERM)
    assert [roles.ended(role)[0] for role in ("ffn", "attention")] == [0, 0]
    assert not runs(kept)


def test_an_ffn_process_that_was_killed_is_started_again(roles: Roles) -> None:
    start(roles)
    roles.ready()
    before, lost = epoch(roles), child(roles, "ffn")
    lost.kill()
    next_epoch(roles, before)
    assert child(roles, "ffn") != lost
    metrics = urllib.request.urlopen(f"http://127.0.0.1:{roles.agent['attention']}/metrics").read().decode()
    assert 'afd_restarts_total{cause="PeerLostError",role="attention"} 1.0' in metrics
    roles.running["ffn"].send_signal(signal.SIGTERM)
    assert [roles.ended(role)[0] for role in ("ffn", "attention")] == [0, 0]


def test_while_a_role_starts_again_it_is_alive_and_not_ready_and_says_why(roles: Roles) -> None:
    start(roles, attempts=3)
    roles.ready()
    roles.running["attention"].kill()
    wait_until(lambda: roles.get("ffn", "/status")[1]["waiting_for"] == ["A0"], "it waits for its peer")
    assert roles.get("ffn", "/livez") == (200, {"state": "rendezvous"})
    code, body = roles.get("ffn", "/readyz")
    assert code == 503
    assert body["reason"].startswith(
        "attempt 1 of 3: state is rendezvous, waiting for A0: A0: its agent (pid "
    )
    # Its pod is started again from outside: an ordinary hello.
    kept = child(roles, "ffn")
    roles.start("attention", target=RESTS["attention"], **settings())
    roles.ready()
    assert child(roles, "ffn") == kept and runs(kept)
    assert roles.get("attention", "/status")[1]["restarts"] == 0
    roles.running["attention"].send_signal(signal.SIGTERM)
    assert [roles.ended(role)[0] for role in ("ffn", "attention")] == [0, 0]


@pytest.mark.parametrize("killed", ["ffn", "attention"])
def test_attempts_that_are_used_up_end_both_roles_with_the_last_cause(roles: Roles, killed: str) -> None:
    start(roles, attempts=1)
    for number in (1, 2):
        roles.ready()
        before, lost = epoch(roles), child(roles, killed)
        lost.kill()
        if number == 1:
            next_epoch(roles, before)
    rank = "F0" if killed == "ffn" else "A0"
    for role in ("ffn", "attention"):
        code, line = roles.ended(role)
        assert code == (71 if role == killed else 70)
        assert line.startswith(f"{rank}: ") and f"(process {lost.pid}) was killed by SIGKILL" in line


def test_a_role_that_cannot_start_gives_up_after_its_attempts(roles: Roles) -> None:
    roles.start("ffn", target=RESTS["ffn"], **settings(attempts=2))
    roles.start("attention", target="api_server_that_ends", **settings(attempts=2))
    began = time.monotonic()
    for role, code in (("attention", 71), ("ffn", 70)):
        found, line = roles.ended(role)
        assert (found, "no room for the cache" in line) == (code, True), line
        assert roles.text(role).count("starting again") == 2
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("role", ["ffn", "attention"])
def test_a_stop_while_it_pauses_or_meets_its_peers_again_is_a_stop(roles: Roles, role: str) -> None:
    other = "attention" if role == "ffn" else "ffn"
    start(roles)
    roles.ready()
    rest = roles.processes(role)
    roles.running[other].kill()
    wait_until(lambda: "starting again" in roles.text(role), "it starts again")
    roles.running[role].send_signal(signal.SIGTERM)
    assert roles.ended(role)[0] == 0
    assert not any(runs(process) for process in rest)


def test_a_stop_in_a_long_pause_is_a_stop_at_once(roles: Roles) -> None:
    roles.start("ffn", target=RESTS["ffn"], **settings(attempts=5, backoff_s=600.0, backoff_max_s=600.0))
    roles.start("attention", target="api_server_that_ends", **settings(attempts=5))
    wait_until(lambda: "starting again in 600 s" in roles.text("ffn"), "it pauses")
    assert roles.get("ffn", "/livez") == (200, {"state": "starting"})
    began = time.monotonic()
    roles.running["ffn"].send_signal(signal.SIGTERM)
    assert roles.ended("ffn")[0] == 0
    assert time.monotonic() - began < 3


def test_a_mismatch_in_a_later_epoch_is_final_for_both(roles: Roles) -> None:
    start(roles)
    roles.ready()
    roles.running["attention"].kill()
    wait_until(lambda: roles.get("ffn", "/status")[1]["waiting_for"] == ["A0"], "it waits for its peer")
    roles.start("attention", "--dtype", "bfloat16", target=RESTS["attention"], **settings())
    for role in ("ffn", "attention"):
        code, line = roles.ended(role)
        assert (code, line.endswith("dtype: float32 on F0 but bfloat16 on A0")) == (65, True), line


def test_a_wrong_argument_is_final_for_the_role_that_has_it_and_a_lost_peer_for_the_other(
    roles: Roles,
) -> None:
    roles.start("ffn", target=RESTS["ffn"], **settings())
    roles.start("attention", target="api_server_that_is_told_nonsense", **settings())
    assert roles.ended("attention") == (64, "A0: vLLM's arguments: --port: nonsense")
    wait_until(lambda: roles.get("ffn", "/status")[1]["waiting_for"] == ["A0"], "FFN waits for another one")
    roles.running["ffn"].send_signal(signal.SIGTERM)
    assert roles.ended("ffn")[0] == 0


@pytest.mark.parametrize("role", ["ffn", "attention"])
def test_a_peer_that_does_not_come_back_by_the_deadline_is_final_and_named(roles: Roles, role: str) -> None:
    other = "attention" if role == "ffn" else "ffn"
    brief = {"rendezvous_s": 3.0, "heartbeat_s": 0.2, "grace_s": 1.0, "step_s": 5.0}
    roles.start(other, target=RESTS[other], **settings())
    roles.start(role, target=RESTS[role], **settings(timeouts=brief))
    roles.ready()
    rest = roles.processes(role)
    roles.running[other].kill()
    code, line = roles.ended(role)
    assert (code, line.startswith(f"{'A0' if role == 'ffn' else 'F0'} did not arrive at ")) == (69, True), (
        line
    )
    assert not any(runs(process) for process in rest)


@pytest.mark.parametrize("stays", ["ffn", "attention"])
def test_each_role_decides_for_itself_whether_it_stays(roles: Roles, stays: str) -> None:
    """One that exits is started again from outside, and finds the other one waiting."""
    leaves = "attention" if stays == "ffn" else "ffn"
    roles.start(stays, target=RESTS[stays], **settings())
    roles.start(leaves, target=RESTS[leaves])
    roles.ready()
    before = epoch(roles)
    child(roles, "attention").kill()
    code, line = roles.ended(leaves)
    assert (code, "was killed by SIGKILL" in line) == (71 if leaves == "attention" else 70, True)
    roles.start(leaves, target=RESTS[leaves])
    next_epoch(roles, before)
    assert roles.get(stays, "/status")[1]["restarts"] == 1
    roles.running["attention"].send_signal(signal.SIGTERM)
    assert [roles.ended(role)[0] for role in ("ffn", "attention")] == [0, 0]


def test_an_ffn_process_that_loads_goes_on_loading_over_the_end_of_an_epoch(roles: Roles) -> None:
    roles.start("ffn", target="ffn_rank_that_loads_for_a_while", **settings())
    roles.start("attention", target=RESTS["attention"], **settings())
    wait_until(lambda: "(F0) attached" in roles.text("ffn"), "FFN loads")
    wait_until(lambda: len(roles.processes("attention")) == 1, "Attention has a process")
    child(roles, "attention").kill()
    next_epoch(roles, "")
    assert len(re.findall("is process", roles.text("ffn"))) == 1
    assert roles.text("ffn").count("(F0) loaded") == 1
    assert roles.get("ffn", "/status")[1]["restarts"] == 1


def test_an_ffn_process_that_does_not_come_to_rest_is_started_again(roles: Roles) -> None:
    start(roles)
    roles.ready()
    before, stuck = epoch(roles), child(roles, "ffn")
    os.kill(stuck.pid, signal.SIGSTOP)
    child(roles, "attention").kill()
    next_epoch(roles, before)
    assert child(roles, "ffn") != stuck and not runs(stuck)


def test_an_agent_of_a_role_that_runs_already_changes_nothing_and_takes_over_when_that_one_goes(
    roles: Roles,
) -> None:
    start(roles)
    roles.ready()
    before, first = epoch(roles), roles.running["attention"]
    api, agent = roles.api, roles.agent["attention"]
    roles.another("attention")
    start(roles, "attention")
    wait_until(lambda: "put off the agent" in roles.text("ffn"), "the second one is put off")
    wait_until(lambda: "A0 is taken by the agent" in roles.text("attention"), "and hears why")
    time.sleep(1.0)
    assert epoch(roles) == before and roles.get("ffn", "/readyz")[0] == 200
    urllib.request.urlopen(f"http://127.0.0.1:{agent}/readyz").close()
    assert api != roles.api
    first.kill()
    first.wait()
    next_epoch(roles, before)
