# SPDX-License-Identifier: Apache-2.0
"""Transport collective keeps the contract of every link, over process groups that are nobody else's business."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from functools import partial

import psutil
import pytest
import torch
import torch.distributed

from afd.connectors.base import Connector, ConnectorSpec, Slot
from afd.connectors.camp2p import CAMP2pAFDConnector
from afd.connectors.collective.transport import CollectiveTransport
from afd.control.abort import Cause
from afd.errors import ClosedError, MisuseError, PeerLostError, ResourceError
from afd.testing import conformance
from afd.testing.link_rig import Rig, raises, rows_for, wait_for
from afd.testing.ranks import RankContext, run_ranks
from afd.topology import Rank, Role, Topology

LOOPBACK = "127.0.0.1"


def make(role: Role) -> Connector:
    return CAMP2pAFDConnector(CollectiveTransport())


@pytest.mark.parametrize("name", conformance.SCENARIOS)
def test_collective_keeps_the_contract(name: str) -> None:
    conformance.run(name, make)


def in_ranks(body: Callable[[Rig], None], attention: int = 1) -> None:
    """Run ``body`` in every rank of a group with one FFN rank."""
    topology = Topology(attention, 1)
    run_ranks(topology, partial(_rank, topology, body))


def _rank(topology: Topology, body: Callable[[Rig], None], context: RankContext) -> None:
    torch.set_num_threads(1)
    body(Rig(context, topology, make, "alone"))


def _listening() -> list[tuple[str, int]]:
    """Where this process listens."""
    return [
        (found.laddr.ip, found.laddr.port)
        for found in psutil.Process().net_connections("inet")
        if found.status == psutil.CONN_LISTEN
    ]


def _tasks() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/task")]


# ---- peers that go ---------------------------------------------------------------------------------------------


def _lose_untold(rig: Rig) -> None:
    spec = rig.spec()
    step = rig.step(8, 3, rank=0)
    with rig.link(spec) as link:
        rig.context.exchange("ready", None)
        if not rig.attention:
            rig.context.sleep_for_ever()
        link.begin(step)
        link.send(Slot(0, 0), *rows_for(spec, step, Slot(0, 0), 0))
        rig.context.lose("F0", told=False, after_s=0.2)
        with raises(PeerLostError, "F0 closed its end", "step 8, layer 0", within_s=2.0):
            link.receive(Slot(0, 0))


def test_a_killed_peer_is_noticed_without_a_word_of_it() -> None:
    in_ranks(_lose_untold)


def _lose_before_it_connects(rig: Rig) -> None:
    spec = rig.spec()
    if not rig.attention:
        rig.context.exchange("endpoints", CollectiveTransport().ffn(spec).offer)
        rig.context.sleep_for_ever()
    end = CollectiveTransport().attention(spec)
    offers = rig.context.exchange("endpoints", end.offer)
    rig.context.lose("F0", told=True, after_s=0.3)
    with raises(PeerLostError, "F0", within_s=1.5):
        end.connect(offers)  # returns when it is this side that connects: F0 listens, after all
        end.lanes[0].begin(1, 3)
        end.lanes[0].receive(0, None)
    end.close()


def test_a_peer_that_dies_while_groups_connect_ends_the_wait_at_once() -> None:
    in_ranks(_lose_before_it_connects)


# ---- one end alone ---------------------------------------------------------------------------------------------


def _spec(rig: Rig) -> ConnectorSpec:
    return rig.spec(num_ubatches=2)


def _close_alone(rig: Rig) -> None:
    transport = CollectiveTransport()
    tasks = len(_tasks())
    for told in (False, True):
        spec = _spec(rig)
        end = transport.attention(spec) if rig.attention else transport.ffn(spec)
        assert {host for host, _ in _listening()} == {LOOPBACK}
        if told:
            threading.Timer(0.2, end.close).start()
            nobody = {"A0": end.offer, "F0": end.offer}
            with raises(ClosedError, within_s=1.0):
                end.connect({**nobody, str(rig.context.rank): end.offer})
        end.close()
        end.close()
        del end
        wait_for(lambda: _listening() == [], "sockets to be closed")
        wait_for(lambda: len(_tasks()) <= tasks, "threads to end")


def test_an_end_can_be_closed_before_and_while_it_connects() -> None:
    in_ranks(_close_alone)


def _abort_alone(rig: Rig) -> None:
    spec = _spec(rig)
    transport = CollectiveTransport()
    end = transport.attention(spec) if rig.attention else transport.ffn(spec)
    cause = Cause("PeerLostError", "was told to end", rank="F0")
    threading.Timer(0.2, spec.abort.trigger, (cause,)).start()
    with raises(PeerLostError, "was told to end", within_s=1.0):
        end.connect({"A0": end.offer, "F0": end.offer})
    end.close()


def test_an_abort_ends_the_wait_for_a_peer_that_does_not_connect() -> None:
    in_ranks(_abort_alone)


def _wrong_offers(rig: Rig) -> None:
    spec = _spec(rig)
    for wrong in (None, {"transport": "shm", "segments": {}}, "epoch", "groups"):
        end = CollectiveTransport().attention(spec) if rig.attention else CollectiveTransport().ffn(spec)
        offer = end.offer
        if wrong == "epoch":
            wrong = {**offer, "epoch": "another"}
        elif wrong == "groups":
            wrong = {**offer, "groups": offer["groups"][:1]}
        with raises(MisuseError, "needs 2 groups", spec.epoch):
            end.connect({"A0": wrong, "F0": wrong})
        end.close()


def test_an_offer_that_is_none_of_this_epoch_is_refused() -> None:
    in_ranks(_wrong_offers)


def _no_such_address(rig: Rig) -> None:
    with raises(ResourceError, "cannot listen on 192.0.2.1"):
        CollectiveTransport("192.0.2.1").ffn(rig.spec())


def test_an_address_of_another_machine_is_named() -> None:
    in_ranks(_no_such_address)


# ---- neighbours ------------------------------------------------------------------------------------------------


def _beside_another_group(rig: Rig) -> None:
    """vLLM's default group is there before, while and after a link is, and never the link's."""
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    default = torch.distributed.group.WORLD
    rig.play(rig.spec(num_ubatches=2), [{0: [4, 5]}])
    assert torch.distributed.group.WORLD is default
    ones = torch.ones(3)
    torch.distributed.all_reduce(ones)
    assert torch.equal(ones, torch.ones(3))
    torch.distributed.destroy_process_group()
    rig.play(rig.spec(), [{0: [4]}])
    assert not torch.distributed.is_initialized()


def test_the_default_process_group_is_neither_used_nor_disturbed() -> None:
    in_ranks(_beside_another_group)


def _strangers(rig: Rig) -> None:
    spec = rig.spec()
    steps = [rig.step(number, 5, rank=0) for number in range(2)]
    with rig.link(spec) as link:
        for step in steps:
            for _, port in _listening():
                for words in (b"", b"\0" * 8, b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096)):
                    with socket.create_connection((LOOPBACK, port)) as stranger:
                        stranger.sendall(words)
            time.sleep(0.2)
            if rig.attention:
                link.begin(step)
                for layer in spec.layers:
                    link.send(Slot(layer, 0), *rows_for(spec, step, Slot(layer, 0), 0))
                    link.receive(Slot(layer, 0))
            else:
                for work in link.works({Rank(Role.ATTENTION, 0): step}):
                    link.reply(work, work.hidden)
            rig.context.exchange("played", None)


def test_strangers_who_connect_change_nothing() -> None:
    in_ranks(_strangers)


def _bound(rig: Rig) -> None:
    """As vLLM binds it: the thread that computes on one core, others of the process elsewhere."""
    everywhere = os.sched_getaffinity(0)
    before = set(_tasks())
    os.sched_setaffinity(0, {min(everywhere)})
    try:
        with rig.link(rig.spec()):
            own = {task: os.sched_getaffinity(task) for task in set(_tasks()) - before}
            assert own and any(cores == everywhere for cores in own.values()), own
            assert os.sched_getaffinity(0) == {min(everywhere)}
            rig.context.exchange("looked", None)
    finally:
        os.sched_setaffinity(0, everywhere)


def test_the_thread_that_moves_bytes_is_not_bound_to_the_core_of_the_one_that_computes() -> None:
    in_ranks(_bound)
