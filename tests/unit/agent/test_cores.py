# SPDX-License-Identifier: Apache-2.0
"""Dealing out cores: disjoint, equal, bound only where binding helps."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afd.agent import cgroup
from afd.agent.cores import NOBIND, CorePlan, Cores, binding, plan_threads, room_for_a_second_thread
from afd.errors import MisuseError


def cores(count: int, threads_per_core: int = 1, quota: float | None = None) -> Cores:
    return Cores(tuple(tuple(range(c, count * threads_per_core, count)) for c in range(count)), quota)


def test_two_processes_on_two_cores_get_one_each() -> None:
    assert plan_threads(2, cores(2)) == [CorePlan(1, "0"), CorePlan(1, "1")]


def test_more_processes_than_cores_are_not_bound() -> None:
    assert plan_threads(3, cores(2)) == [CorePlan(1, NOBIND)] * 3


def test_a_quota_below_the_mask_limits_threads_and_prevents_binding() -> None:
    assert plan_threads(2, cores(64, quota=8.0)) == [CorePlan(4, NOBIND)] * 2
    assert plan_threads(1, cores(64, quota=0.5)) == [CorePlan(1, NOBIND)]


def test_a_quota_of_the_whole_mask_does_not_matter() -> None:
    assert plan_threads(2, cores(4, quota=4.0)) == [CorePlan(2, "0,1"), CorePlan(2, "2,3")]


def test_hyperthreads_are_used_only_when_physical_cores_do_not_suffice() -> None:
    assert plan_threads(2, cores(2, threads_per_core=2)) == [CorePlan(1, "0"), CorePlan(1, "1")]
    assert plan_threads(4, cores(2, threads_per_core=2)) == [CorePlan(1, c) for c in ("0", "2", "1", "3")]


def test_cores_left_over_stay_free_so_that_all_processes_have_equal_threads() -> None:
    assert [plan.threads for plan in plan_threads(3, cores(8))] == [2, 2, 2]


@given(st.integers(1, 20), st.integers(1, 40), st.sampled_from([1, 2]), st.none() | st.floats(0.1, 100))
def test_bound_cores_are_disjoint_allowed_and_as_many_as_threads(
    processes: int, count: int, smt: int, quota: float | None
) -> None:
    machine = cores(count, smt, quota)
    plans = plan_threads(processes, machine)
    assert len(plans) == processes and len({plan.threads for plan in plans}) == 1
    assert plans[0].threads >= 1
    if binding(plans) != NOBIND:
        dealt = [int(core) for plan in plans for core in plan.bind.split(",")]
        assert len(set(dealt)) == len(dealt) == processes * plans[0].threads
        assert set(dealt) <= {core for group in machine.groups for core in group}
    elif plans[0].threads > 1:
        assert processes * plans[0].threads <= machine.usable


def test_the_lists_of_one_engine_are_joined_as_vllm_reads_them() -> None:
    assert binding(plan_threads(2, cores(4))) == "0,1|2,3"
    assert binding(plan_threads(9, cores(4))) == NOBIND


def test_planning_for_no_process_is_misuse() -> None:
    with pytest.raises(MisuseError):
        plan_threads(0, cores(2))


def test_this_machine_has_a_plan() -> None:
    plans = plan_threads(1)
    assert 1 <= plans[0].threads <= len(os.sched_getaffinity(0))


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("bind", "becomes"),
    [
        ("0|1", NOBIND),
        ("0,2|1", NOBIND),
        ("3-3", NOBIND),
        ("{7}", NOBIND),
        ("0,1|2,3", "0,1|2,3"),
        ("0-3", "0-3"),
        ("nobind", "nobind"),
        ("auto", "auto"),
    ],
)
def test_a_rank_whose_transport_has_a_thread_is_not_kept_to_one_core(bind: str, becomes: str) -> None:
    assert room_for_a_second_thread(bind) == becomes


def test_siblings_are_grouped_as_the_kernel_says(tmp_path: Path) -> None:
    at = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    root = tree(tmp_path, {at.format(c): f"{c % 2},{c % 2 + 2}\n" for c in range(4)})
    assert Cores.of([0, 1, 2, 3], root).groups == ((0, 2), (1, 3))
    assert Cores.of([1, 3, 9], root).groups == ((1, 3), (9,))


def test_the_smallest_limit_on_the_way_up_counts(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pods/one\n",
            "sys/fs/cgroup/pods/one/cpu.max": "max 100000\n",
            "sys/fs/cgroup/pods/cpu.max": "250000 100000\n",
            "sys/fs/cgroup/pods/one/memory.max": "2000\n",
            "sys/fs/cgroup/pods/memory.max": "1000\n",
        },
    )
    assert cgroup.cpu_quota(root) == 2.5
    assert cgroup.memory_limit(root) == 1000


def test_version_one_limits_are_read_below_their_controllers(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n3:pids:/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "150000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes": "4096\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert cgroup.cpu_quota(root) == 1.5
    assert cgroup.memory_limit(root) == 4096


def test_without_control_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert cgroup.cpu_quota(tmp_path) is None
    assert cgroup.memory_limit(tmp_path) is None
