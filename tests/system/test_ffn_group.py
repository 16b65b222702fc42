# SPDX-License-Identifier: Apache-2.0
"""One of several FFN ranks dies or stops while requests are in flight: its neighbour waits for it in the middle of a
layer, and still everybody ends soon and names the right rank."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from afd.topology import Role, Topology
from tests.system.conftest import Groups, layout
from tests.system.program import running
from tests.system.rig import Client, Traces, decoding, deed, ends, start
from tests.system.variants import HALT_FILE, RAISE, STOP

LIMIT_S = 2.0
STEP_S = 6

pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize("rank", [pytest.param("F1", marks=pytest.mark.pairwise), "F0"])
def test_everybody_ends_within_two_seconds_of_a_kill_and_names_the_rank(rank: str, groups: Groups) -> None:
    group = groups(layout(topology=Topology(2, 2)))
    start(group)
    client = Client(group.attention.api_url).start()
    decoding(group.attention)
    traces = Traces.of(group)
    killed = deed(traces.pids[f"rank {rank}"])
    found = ends(group, killed)
    print(f"\n{rank}: {found}")
    assert found.codes == {Role.FFN: 71, Role.ATTENTION: 70}
    assert found.seconds[Role.ATTENTION] < LIMIT_S and found.seconds[Role.FFN] < LIMIT_S + 1
    cause = f"{rank}: the rank {rank} (process {traces.pids[f'rank {rank}']}) was killed by SIGKILL"
    assert cause in group.attention.error() and cause in group.ffn.error()
    assert traces.left_after(0.0) == []
    client.join(5)
    assert all(isinstance(end, Exception) for end in client.ends.values()), client.ends


def test_a_rank_that_stops_is_named_by_its_neighbour_before_attention_blames_that(groups: Groups) -> None:
    group = groups(layout(topology=Topology(2, 2), afd_args=("--afd-timeouts-step-s", str(STEP_S))))
    start(group)
    client = Client(group.attention.api_url).start()
    decoding(group.attention)
    traces = Traces.of(group)
    stopped = deed(traces.pids["rank F1"], signal.SIGSTOP)
    found = ends(group, stopped)
    print(f"\n{found}: {group.attention.error()}")
    assert found.codes == {Role.FFN: 71, Role.ATTENTION: 70}
    assert max(found.seconds.values()) < STEP_S + LIMIT_S + 1
    assert group.attention.error().startswith("F1 ")  # did not bring its rows, or is stopped in a layer
    assert group.ffn.error() == group.attention.error()
    assert traces.left_after(0.0) == []
    client.join(5)


@pytest.mark.parametrize("bind", ["nobind", "0|1"], ids=["gloo", "spinning"])
@pytest.mark.parametrize(
    ("how", "says"),
    [
        (STOP, f"F1 is stopped: a layer did not end on F0 within {0.8 * STEP_S:g} s"),
        (RAISE, "F1: ValueError('as the test asked')"),
    ],
    ids=["stops", "raises"],
)
def test_a_rank_that_leaves_its_neighbour_in_a_sum_is_named(
    how: str, says: str, bind: str, groups: Groups, tmp_path: Path
) -> None:
    order = tmp_path / "order"
    chosen = layout(topology=Topology(2, 2), afd_args=("--afd-timeouts-step-s", str(STEP_S)))
    group = groups(
        chosen,
        programs={Role.FFN: running("tests.system.variants.halts:ffn")},
        environment={HALT_FILE: str(order)},
        environments={Role.FFN: {"VLLM_CPU_OMP_THREADS_BIND": bind}},
    )
    start(group)
    client = Client(group.attention.api_url).start()
    decoding(group.attention)
    traces = Traces.of(group)
    order.with_suffix(".new").write_text(how)
    order.with_suffix(".new").rename(order)
    found = ends(group, time.monotonic())
    print(f"\n{bind}, {found}: {group.attention.error()}")
    assert found.codes == {Role.FFN: 71, Role.ATTENTION: 70}
    assert group.attention.error() == group.ffn.error() == says
    assert traces.left_after(0.0) == []
    client.join(5)
