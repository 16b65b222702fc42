# SPDX-License-Identifier: Apache-2.0
"""Containers that run: smoke and its controls, requests from outside, lost roles, stops, one role a container."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from afd.images.manifest import Manifest
from afd.support import records
from afd.testing.compare import compare_all
from afd.testing.completions import Question
from afd.testing.golden import MODEL, Golden, layout
from afd.testing.smoke import Outcome, ask_everything, questions
from tests.image.conftest import Recorded
from tests.image.engine import API, Container, Engine, fresh
from tests.system.rig import SERVED, STREAMED, Client, until

pytestmark = pytest.mark.timeout(900)

LIMIT_S = 10.0
"""From the loss of a role to the exit of its container."""
RANDOM = ("--user", "54321:54321")
READ_ONLY = ("--read-only", "--tmpfs", "/tmp:mode=1777")
PUBLISHED = ("--publish", f"127.0.0.1::{API}")
ARGUMENTS = (MODEL, *layout().vllm_args, "--served-model-name", SERVED)
IN_FLIGHT = Question("in flight", "Attention keeps the cache,", max_tokens=120, stream=True)


def smoke(
    engine: Engine, image: Manifest, directory: Path, options: tuple[str, ...], *arguments: str
) -> tuple[int, str, records.Record]:
    """Its exit code, what it said, and the record that it wrote."""
    directory.chmod(0o777)
    mount = ("--volume", f"{directory}:/records", "--env", "AFD_RECORDS=/records")
    done = engine.run("smoke", *arguments, options=(*mount, *options))
    (record,) = records.load(directory)
    assert (record.commits.afd, record.commits.dirty) == (image.afd.revision, image.afd.dirty)
    return done.returncode, done.stdout + done.stderr, record


def keep(record: records.Record, suffix: str, request: pytest.FixtureRequest) -> None:
    """A record that was written in a container, under a name of its own."""
    if chosen := request.config.getoption("--records"):
        name = f"{record.name}-{suffix}" if suffix else record.name
        print("record:", records.write(msgspec.structs.replace(record, name=name), Path(chosen)))


@pytest.mark.parametrize(
    ("suffix", "options"),
    [("", ()), ("any-user", RANDOM), ("any-user-read-only", (*RANDOM, *READ_ONLY))],
)
def test_smoke_gets_the_tokens_that_native_vllm_gave_in_the_build(
    suffix: str,
    options: tuple[str, ...],
    engine: Engine,
    image: Manifest,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    code, text, record = smoke(engine, image, tmp_path, options)
    keep(record, suffix, request)
    assert code == 0, text
    assert record.passed
    (comparison,) = record.comparisons
    assert comparison.reference == "native" and comparison.equal == comparison.tokens > 500
    assert (record.cleanup.processes, record.cleanup.segments) == (0, 0)
    assert "without its C helper" not in text


@pytest.mark.parametrize("control", ["expert", "token"])
def test_smoke_fails_when_something_is_wrong_on_purpose(
    control: str, engine: Engine, image: Manifest, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    code, text, record = smoke(engine, image, tmp_path, (), "--control", control)
    keep(record, "", request)
    assert code == 71, text
    assert "problem: single 0: " in text
    assert (record.counts.passed, record.counts.failed) == (1, 0)


def status(container: Container) -> dict[str, Any]:
    """What Attention's agent says, asked inside."""
    script = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9300/status').read().decode())"
    return json.loads(container.exec("python", "-c", script).stdout)  # type: ignore[no-any-return]


def compare(container: Container, outcome: Outcome) -> None:
    """Ask the API from outside what native vLLM was asked in the build; every answer must be the same."""
    native = msgspec.json.decode(container.exec("cat", "/etc/afd/golden.json").stdout, type=Golden)
    single, many = questions()
    ours = asyncio.run(ask_everything(container.url(), SERVED, together=True))
    outcome.comparison = compare_all([*single, *many], native.for_comparison(), ours)
    assert outcome.comparison.agrees, outcome.comparison.failures
    outcome.transport = status(container)["transport"]


def node(engine: Engine, *arguments: str, options: tuple[str, ...] = PUBLISHED) -> Container:
    return Container(engine, "single-node", *ARGUMENTS, *arguments, options=options)


def test_a_request_from_outside_gets_native_tokens_and_a_stop_finishes_what_is_in_flight(
    engine: Engine, recorded: Recorded
) -> None:
    with recorded("single-node-outside") as outcome, node(engine, "--shutdown-timeout", "60") as container:
        seconds = container.ready()
        assert container.healthy() == (0, "healthy: attention: ready, ffn: ready")
        compare(container, outcome)
        client = busy(container, IN_FLIGHT)
        stopped = time.monotonic()
        assert container.stop(90) == 0
        seconds_to_stop = time.monotonic() - stopped
        (answer,) = client.answers(5)
        assert (len(answer.tokens), answer.finish) == (120, "length")
        assert sorted(re.findall(r"(ffn|attention) stopped \(0\)", container.text())) == ["attention", "ffn"]
        outcome.held.append(
            f"ready after {seconds:.1f} s; stopped with 0 after {seconds_to_stop:.1f} s, the request in flight whole"
        )


def busy(container: Container, question: Question = STREAMED) -> Client:
    """A client whose request is being answered now."""

    before = status(container)["steps"]
    client = Client(container.url(), (question,)).start()
    until(lambda: status(container)["steps"] > before, 30, "a step")
    return client


@pytest.mark.parametrize("role", ["ffn", "attention"])
def test_an_agent_that_is_killed_ends_the_container_with_70(
    role: str, engine: Engine, recorded: Recorded
) -> None:
    with recorded(f"single-node-kill-{role}") as outcome, node(engine) as container:
        container.ready()
        client = busy(container)
        killed = time.monotonic()
        container.kill_agent(role)
        assert container.wait(60) == 70
        seconds = time.monotonic() - killed
        outcome.held.append(f"{role}'s agent was killed: exit 70 after {seconds:.2f} s")
        assert seconds < LIMIT_S
        assert f"{role} was killed" in container.text()
        client.join(10)
        assert isinstance(client.ends[STREAMED.name], Exception)


def test_each_role_in_a_container_of_its_own_serves_on_one_network_and_ends_with_the_other(
    engine: Engine, recorded: Recorded
) -> None:
    with recorded("two-containers") as outcome, engine.network() as network:
        with pair(engine, network) as (ffn, attention):
            seconds = max(attention.ready(), ffn.ready())
            assert (ffn.healthy(), attention.healthy()) == (
                (0, "healthy: ffn: ready"),
                (0, "healthy: attention: ready"),
            )
            compare(attention, outcome)
            assert attention.stop() == 0
            assert ffn.wait(30) == 0
            outcome.held.append(f"ready after {seconds:.1f} s; Attention was stopped, both ended with 0")


@contextmanager
def pair(engine: Engine, network: str) -> Iterator[tuple[Container, Container]]:
    """FFN and Attention, each in a container of its own, on ``network``."""
    name = fresh("ffn")
    both = (*ARGUMENTS[:-2], "--afd-host", name)
    with Container(engine, "ffn", *both, options=("--network", network), name=name) as ffn:
        options = ("--network", network, *PUBLISHED)
        with Container(engine, "attention", *both, *ARGUMENTS[-2:], options=options) as attention:
            yield ffn, attention


@pytest.mark.parametrize("lost", ["ffn", "attention"])
def test_a_container_that_is_killed_ends_that_of_the_other_role_with_70(
    lost: str, engine: Engine, recorded: Recorded
) -> None:
    with recorded(f"two-containers-kill-{lost}") as outcome, engine.network() as network:
        with pair(engine, network) as (ffn, attention):
            attention.ready()
            ffn.ready()
            client = busy(attention)
            victim, other = (ffn, attention) if lost == "ffn" else (attention, ffn)
            killed = time.monotonic()
            engine.said("kill", "--signal", "KILL", victim.name)
            assert other.wait(60) == 70
            seconds = time.monotonic() - killed
            assert victim.wait(10) == 137
            outcome.held.append(
                f"the container of {lost} was killed: the other's exit 70 after {seconds:.2f} s"
            )
            assert seconds < LIMIT_S
            client.join(10)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ((), "nothing to do: say what this container is for"),
        (("atention", MODEL), "did you mean 'attention'?"),
        (("ffn", "builtin:nonsense"), "there is no built-in model 'builtin:nonsense'"),
        (("single-node", MODEL, "--afd-num-ffn-ranks", "two"), "--afd-num-ffn-ranks"),
        (("single-node", MODEL, "--quantization", "fp8"), "afd attention: error: "),
    ],
)
def test_what_a_person_wrote_wrongly_is_told_and_ends_with_64(
    command: tuple[str, ...], says: str, engine: Engine, recorded: Recorded
) -> None:
    with recorded(f"refused-{'-'.join(command[:1]) or 'nothing'}-{len(command)}") as outcome:
        started = time.monotonic()
        done = engine.run(*command, timeout=120)
        assert done.returncode == 64, done.stdout + done.stderr
        told = [line for line in (done.stdout + done.stderr).splitlines() if says in line]
        assert told, done.stdout + done.stderr
        outcome.held.append(f"exit 64 after {time.monotonic() - started:.1f} s: {told[-1]}")


def test_the_health_check_is_the_images_own_and_fails_without_roles(engine: Engine) -> None:
    found = engine.inspect()
    check = found["Healthcheck"] if engine.name == "podman" else found["Config"]["Healthcheck"]
    assert check["Test"] == ["CMD", "/opt/afd/bin/afd-healthcheck"]
    with Container(engine, "sleep", "300") as container:
        assert container.healthy()[0] == 1
