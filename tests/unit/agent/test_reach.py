# SPDX-License-Identifier: Apache-2.0
"""Agents find out together whether they share memory, and at which address their ranks are reached."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from afd.agent import reach
from afd.agent.reach import Reach, agree, network, sweep_probes
from afd.connectors.shm.segment import segment_name, sweep
from afd.control.abort import Cause
from afd.control.group import Control
from afd.control.messages import Host
from afd.errors import ConfigError, MismatchError, PeerLostError
from tests.unit.control.agents import Agents

FAR = Host(name="far", memory="n", pid=1)


def settle(
    directories: tuple[Path, Path], attention: dict[str, Any] | None = None, ffn: dict[str, Any] | None = None
) -> list[Reach | BaseException]:
    """What FFN and Attention settle on when each has a directory of its own in the place of /dev/shm."""

    async def both() -> list[Reach | BaseException]:
        async with Agents() as agents:
            roles = await asyncio.gather(
                agents.join("ffn", **(ffn or {})), agents.join("attention", **(attention or {}))
            )
            return await asyncio.gather(*map(agree, roles, directories), return_exceptions=True)

    return asyncio.run(both())


def one(found: list[Reach | BaseException]) -> Reach:
    """What both found, which must be the same."""
    first, second = found
    assert isinstance(first, Reach) and first == second
    return first


def test_shared_memory_is_used_when_each_side_reads_what_the_other_wrote(tmp_path: Path) -> None:
    found = one(settle((tmp_path, tmp_path)))
    assert (found.transport, found.host) == ("shm", "127.0.0.1")
    assert found.reason == f"all ranks share {tmp_path}"
    assert list(tmp_path.iterdir()) == []


def test_two_directories_of_one_name_are_not_shared_memory(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "a", tmp_path / "b"
    ours.mkdir(), theirs.mkdir()
    first, second = settle((ours, theirs))
    assert isinstance(first, Reach) and isinstance(second, Reach)
    assert first.transport == second.transport == "collective"
    assert first.reason == f"F0 did not find in its {ours} what A0 wrote to its own"
    assert list(ours.iterdir()) == list(theirs.iterdir()) == []


def test_a_file_with_another_number_is_no_proof(tmp_path: Path) -> None:
    """As somebody could leave it who knows the name."""
    ours, theirs = tmp_path / "a", tmp_path / "b"
    ours.mkdir(), theirs.mkdir()

    async def forge() -> None:
        while True:
            for here, there in ((ours, theirs), (theirs, ours)):
                for path in here.iterdir():
                    forged = there / path.name
                    if not forged.exists():
                        forged.write_text("0" * 32)
            await asyncio.sleep(0)

    async def both() -> list[Reach]:
        async with Agents() as agents:
            roles = await agents.pair()
            forging = asyncio.create_task(forge())
            found = await asyncio.gather(*map(agree, roles, (ours, theirs)))
            forging.cancel()
            return found

    assert [found.transport for found in asyncio.run(both())] == ["collective", "collective"]


@pytest.mark.parametrize("named", ["collective", "shm"])
def test_a_named_transport_is_used(named: str, tmp_path: Path) -> None:
    found = one(settle((tmp_path, tmp_path), {"transport": named}))
    assert (found.transport, found.reason) == (named, "it was asked for")


def test_hosts_without_common_memory_are_not_asked_to_try(tmp_path: Path) -> None:
    found = one(settle((tmp_path, tmp_path), {"host": FAR}))
    assert found.transport == "collective"
    assert found.reason == "not all ranks are on one host with one /dev/shm: F0 on host-ffn, A0 on far"


def test_another_platform_has_its_own_transport(tmp_path: Path) -> None:
    changes = {"platform": "ascend"}
    found = one(settle((tmp_path, tmp_path), changes, changes))
    assert (found.transport, found.reason) == ("cam", "the platform is ascend")


def test_shared_memory_that_was_asked_for_and_is_not_there_ends_both_roles(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "a", tmp_path / "b"
    ours.mkdir(), theirs.mkdir()
    for error in settle((ours, theirs), {"transport": "shm"}):
        assert isinstance(error, MismatchError)
        assert "transport shm was asked for, but F0 did not find" in str(error)
        assert "--ipc=host" in str(error) and "--afd-transport auto" in str(error)


@pytest.mark.parametrize("missing", ["ffn", "attention"])
def test_a_directory_that_is_not_there_means_no_shared_memory(missing: str, tmp_path: Path) -> None:
    there, gone = tmp_path, tmp_path / "gone"
    found = settle((gone, there) if missing == "ffn" else (there, gone))
    assert [one.transport for one in found if isinstance(one, Reach)] == ["collective", "collective"]


def test_a_peer_that_fails_meanwhile_ends_the_wait_and_leaves_nothing(tmp_path: Path) -> None:
    async def alone() -> None:
        async with Agents() as agents:
            ffn, attention = await agents.pair()
            waiting = asyncio.create_task(agree(ffn, tmp_path))
            await attention.exchange("addresses", {attention.ranks[0]: "127.0.0.1"}, 5)
            while not list(tmp_path.iterdir()):
                await asyncio.sleep(0.01)
            await attention.fail(Cause("RoleFailedError", "it broke", rank="A0"))
            with pytest.raises(PeerLostError, match="it broke"):
                await waiting

    asyncio.run(alone())
    assert list(tmp_path.iterdir()) == []


# ---- killed agents -----------------------------------------------------------------------------------------------

WRITE_AND_STOP = """
import os, signal, sys
from pathlib import Path
from afd.agent import reach
with reach._written(Path(sys.argv[1])):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def leave_a_probe(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", WRITE_AND_STOP, str(path)], timeout=60)
    assert done.returncode == -signal.SIGKILL and path.exists()


def test_what_a_killed_agent_left_is_swept_by_the_next_group(tmp_path: Path) -> None:
    leave_a_probe(tmp_path / segment_name("0" * 16, "probe-f0"))
    assert one(settle((tmp_path, tmp_path))).transport == "shm"
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_agent_left_is_swept_by_those_who_survive_its_epoch(tmp_path: Path) -> None:
    path = tmp_path / reach._probe_name("1" * 16, reach.Rank.parse("A0"))
    leave_a_probe(path)
    assert sweep("2" * 16, tmp_path) == []
    assert sweep("1" * 16, tmp_path) == [path.name]


def test_the_probe_of_a_living_agent_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / segment_name("0" * 16, "probe-f0")
    with reach._written(path) as nonce:
        assert sweep_probes(tmp_path) == []
        assert reach._read(path) == nonce != ""
    assert not path.exists()


def test_links_and_what_is_no_file_are_neither_read_nor_removed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("secret")
    link, pipe, directory = (tmp_path / segment_name("0" * 16, f"probe-{kind}") for kind in "lpd")
    link.symlink_to(target)
    os.mkfifo(pipe)
    directory.mkdir()
    assert sweep_probes(tmp_path) == []
    assert [reach._read(path) for path in (link, pipe, directory)] == ["", "", ""]
    assert target.read_text() == "secret" and link.is_symlink() and pipe.exists() and directory.is_dir()


def test_writers_and_sweepers_do_not_disturb_each_other(tmp_path: Path) -> None:
    path = tmp_path / segment_name("0" * 16, "probe-f0")
    over = threading.Event()

    def keep_sweeping() -> None:
        while not over.is_set():
            sweep_probes(tmp_path)

    sweeper = threading.Thread(target=keep_sweeping)
    sweeper.start()
    try:
        for _ in range(300):
            with reach._written(path) as nonce:
                assert reach._read(path) == nonce != ""
    finally:
        over.set()
        sweeper.join()


# ---- addresses ---------------------------------------------------------------------------------------------------


async def _hosts(ffn: tuple[str, ...], attention: tuple[str, ...], directory: Path) -> list[str]:
    async with Agents() as agents:
        roles: tuple[Control, Control] = await agents.pair()
        for role, addresses in zip(roles, (ffn, attention), strict=True):
            assert role.addresses == ("127.0.0.1",)
            role.addresses = addresses
        return [found.host for found in await asyncio.gather(*(agree(role, directory) for role in roles))]


@pytest.mark.parametrize(
    ("ffn", "attention", "hosts"),
    [
        (("10.0.0.1",), ("10.0.0.2",), ["10.0.0.1", "10.0.0.2"]),
        # The root is reached by an agent on its own host and by one elsewhere.
        (("127.0.0.1", "10.0.0.1"), ("127.0.0.1",), ["10.0.0.1", "10.0.0.1"]),
        (("::1", "fd00::1"), ("::1",), ["fd00::1", "fd00::1"]),
        (("fe80::1%eth0",), ("fe80::2%eth0",), ["fe80::1%eth0", "fe80::2%eth0"]),
    ],
)
def test_ranks_are_reached_where_their_agent_is_unless_that_is_loopback(
    ffn: tuple[str, ...], attention: tuple[str, ...], hosts: list[str], tmp_path: Path
) -> None:
    assert asyncio.run(_hosts(ffn, attention, tmp_path)) == hosts


def test_attention_connects_within_itself_on_loopback_unless_it_is_spread() -> None:
    assert (
        network("127.0.0.1", spread=True)
        == network("192.0.2.1", spread=False)
        == {"GLOO_SOCKET_IFNAME": "lo"}
    )


def test_ranks_of_several_hosts_connect_where_peers_reach_them() -> None:
    others = {
        name: address.address
        for name, found in psutil.net_if_addrs().items()
        for address in found
        if address.family == socket.AF_INET and not address.address.startswith("127.")
    }
    found = {name: network(address, spread=True) for name, address in others.items()}
    assert found == {
        name: {"GLOO_SOCKET_IFNAME": name, "VLLM_HOST_IP": address} for name, address in others.items()
    }


def test_an_address_that_this_host_does_not_have_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no network interface .* has the address 192\.0\.2\.7"):
        network("192.0.2.7", spread=True)
