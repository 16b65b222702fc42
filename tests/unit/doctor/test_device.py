# SPDX-License-Identifier: Apache-2.0
"""Questions to NPUs, answered by packages that stand in for the device's: what is concluded from which answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from afd.doctor import device
from afd.doctor.check import FAIL, OK, SKIP, WARN, Finding, Group
from afd.doctor.table import CHECKS, chosen
from tests.unit.doctor.roots import SITE, Root

TORCH = """
import json, os
from contextlib import suppress
said = json.loads(os.environ["SAID"])
class Tensor:
    def __init__(self, value, size): self.value, self.size = value, size
    def to(self, device): self.device = int(device[4:]); return self
    def cpu(self): return self
    def sum(self): return Tensor(said["sums"][self.device] if "sums" in said else self.value * self.size, 1)
    def __float__(self): return float(self.value)
def ones(size): return Tensor(1, size)
def full(shape, value): return Tensor(value, shape[0])
class distributed:
    @staticmethod
    def init_process_group(backend, init_method, rank, world_size):
        if rank in said.get("lost", ()): raise RuntimeError("HcclGetRootInfo error 19")
    @staticmethod
    def all_reduce(tensor): tensor.value = 3
    @staticmethod
    def destroy_process_group(): ...
"""
NPU = """
import time
from torch import said
class npu:
    set_device = staticmethod(lambda index: None)
    get_soc_version = staticmethod(lambda: said["soc"])
    device_count = staticmethod(lambda: time.sleep(said.get("sleep", 0)) or said.get("count", 2))
    mem_get_info = staticmethod(lambda index: said["memory"][index])
"""


@pytest.fixture
def root(tmp_path: Path) -> Root:
    made = Root(tmp_path, "a3")
    made.loads = True
    made.write(f"{SITE}/torch/__init__.py", TORCH)
    made.write(f"{SITE}/torch_npu/__init__.py", NPU)
    made.env["PYTHONPATH"] = str(made.path(SITE))
    return made


@pytest.mark.parametrize(
    ("visible", "count", "status"),
    [("0-1", 2, OK), ("1", 1, OK), (" ", 2, OK), ("0-1", 1, FAIL), ("0,", 1, FAIL)],
)
def test_ranges_of_visible_devices_are_counted_as_numbers(
    root: Root, visible: str, count: int, status: str
) -> None:
    root.env["ASCEND_RT_VISIBLE_DEVICES"] = visible
    found = run(root, "device-count", f'{{"count": {count}}}')
    assert found.status == status, found
    assert visible != "0," or "ASCEND_RT_VISIBLE_DEVICES" in found.found


def run(root: Root, name: str, said: str) -> Finding:
    root.env["SAID"] = said
    (check,) = chosen([name])
    return check.run(root.subject())


@pytest.mark.parametrize(
    ("name", "said", "status", "tells"),
    [
        ("npu", '{"soc": 250}', OK, "SOC number 250, a3"),
        ("npu", '{"soc": 223}', FAIL, "SOC number 223, which is a2"),
        ("npu", '{"soc": 104}', FAIL, "SOC number 104, which is unknown"),
        ("npu", "{}", FAIL, "KeyError: 'soc'"),
        ("device-count", '{"count": 2}', OK, "2 device(s)"),
        ("device-count", '{"count": 0}', FAIL, "0 device(s)"),
        ("device-memory", '{"memory": [[60, 64], [63, 64]]}', OK, "on card 0"),
        ("device-memory", '{"memory": [[63, 64], [50, 64]]}', WARN, "on card 1"),
        ("device-memory", '{"memory": [[63, 64], [5, 64]]}', FAIL, "on card 1"),
        ("device-memory", '{"count": 0}', FAIL, "no device"),
        ("one-card", "{}", OK, "right on 2 card(s)"),
        ("one-card", '{"sums": [1024, 1023]}', FAIL, "wrong on card(s) [1]"),
        ("one-card", '{"count": 0}', FAIL, "sums []"),
        ("two-cards", "{}", OK, "right on both"),
        ("two-cards", '{"lost": [0]}', FAIL, "HcclGetRootInfo error 19"),
        ("two-cards", '{"lost": [1]}', FAIL, "rank 1 ended"),
        ("triton-kernel", "{}", FAIL, ""),
    ],
)
def test_an_answer_is_judged(root: Root, name: str, said: str, status: str, tells: str) -> None:
    found = run(root, name, said)
    assert (found.status, tells in found.found) == (status, True), found
    assert status == OK or found.remedy


def test_a_device_that_does_not_answer_fails_at_the_deadline(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "_ONE_S", 3.0)
    found = run(root, "device-count", '{"sleep": 600}')
    assert found.status == FAIL and "no answer within 3 s" in found.found


def test_one_card_needs_no_second(root: Root) -> None:
    root.remove("/dev/davinci1")
    assert run(root, "two-cards", "{}").status == SKIP


def test_on_cpu_no_check_of_a_device_is_ever_ok(tmp_path: Path) -> None:
    made = Root(tmp_path, "cpu")
    made.loads = True
    checks = [check for check in CHECKS if check.group is Group.DEVICE]
    assert len(checks) == 6
    assert {check.run(made.subject()).status for check in checks} == {SKIP}
