# SPDX-License-Identifier: Apache-2.0
"""Whoever else connects to AFD's ports, says nonsense or nothing: a group forms and serves as if nobody had."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import psutil
import pytest

from afd.control.messages import MAX_BODY, Heartbeat, encode
from afd.testing.completions import Answer, Question
from afd.topology import Role
from tests.system.conftest import Groups
from tests.system.rig import Client, decoding, differences, start, tree, until

SILENT = 100
"""Connections that are opened and say nothing."""
BESIDE_S = 20.0
"""How long strangers go on beside a group that serves."""

SAID = (
    b"GET / HTTP/1.1\r\nHost: afd\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # the beginning of TLS
    b"AFD\x01\xff\xff\xff\xff" + bytes(1 << 16),  # a frame that would be far too long
    encode(Heartbeat(epoch=""))[:-1],  # one that never ends
    encode(Heartbeat(epoch="of another time")),
    b"AFD\x01" + MAX_BODY.to_bytes(4, "big") + bytes(1 << 20),  # as long as a frame may be, and empty
)

Proofs = Callable[[str], tuple[list[Question], list[Answer]]]


@dataclass
class Strangers:
    """Threads that connect to ports, one message each, and keep some connections open half way."""

    ports: list[int]
    connections: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self, seed: int) -> None:
        chance = random.Random(seed)
        open_ones: list[socket.socket] = []
        while not self._stop.wait(0.01):
            with suppress(OSError):
                sock = socket.create_connection(("127.0.0.1", chance.choice(self.ports)), timeout=1)
                self.connections += 1
                said = chance.choice((*SAID, chance.randbytes(200)))
                sock.sendall(said)
                if chance.random() < 0.5:
                    sock.shutdown(socket.SHUT_WR)
                open_ones.append(sock)
            for sock in open_ones[:-8]:
                sock.close()
            del open_ones[:-8]
        for sock in open_ones:
            sock.close()


@contextmanager
def strangers(*ports: int) -> Iterator[Strangers]:
    """Four talkers, and connections to each port that say nothing, until the block is left."""
    crowd = Strangers(list(ports))
    threads = [threading.Thread(target=crowd.run, args=(seed,)) for seed in range(4)]
    silent = []
    try:
        for port in ports:
            for _ in range(SILENT):
                with suppress(OSError):
                    silent.append(socket.create_connection(("127.0.0.1", port), timeout=1))
        for thread in threads:
            thread.start()
        yield crowd
    finally:
        crowd._stop.set()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        for sock in silent:
            sock.close()


def _listening(process: psutil.Process) -> set[int]:
    return {c.laddr.port for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN}


@pytest.mark.timeout(240)
def test_a_group_forms_and_serves_native_tokens_among_strangers(groups: Groups, proofs: Proofs) -> None:
    group = groups()
    group.start(Role.FFN)
    until(lambda: "waiting for" in group.ffn.text(), 20, "waiting")
    with strangers(group.ports["rendezvous"], group.ports["ffn"]) as crowd:
        time.sleep(2)
        taken_s = start(group, Role.ATTENTION)
        print(f"\nready {taken_s:.1f} s after the later role, beside {crowd.connections} strangers")
    processes = tree(group)
    counts = {name: processes[name].num_fds() for name in ("ffn agent", "attention agent", "rank F0")}
    # torch listens, too, and gloo keeps whatever connects to it; it listens on the loopback interface only.
    used = {c.raddr.port for c in processes["Worker"].net_connections("tcp") if c.raddr}
    steps = used & _listening(processes["rank F0"])
    ports = [*_listening(processes["ffn agent"]), *_listening(processes["attention agent"]), *steps]
    assert len(ports) == 4, "the rendezvous, two agents and the step channel"
    client = Client(group.attention.api_url).start()
    decoding(group.attention)
    with strangers(*ports) as crowd:
        time.sleep(BESIDE_S)
        assert differences(group.attention.api_url, *proofs("v2")) == []
        print(f"{crowd.connections} strangers at {len(ports)} ports while the group served")
    assert crowd.connections > 100
    assert [len(answer.tokens) for answer in client.answers(60)] == [q.max_tokens for q in client.questions]
    assert differences(group.attention.api_url, *proofs("v2")) == []
    for name, count in counts.items():
        until(lambda: processes[name].num_fds() <= count + 2, 10, f"the end of all strangers at {name}")  # noqa: B023
        assert processes[name].memory_info().rss < 4 << 30
    assert not any("Traceback" in role.text() for role in group.roles.values())
    assert group.stop() == {Role.FFN: 0, Role.ATTENTION: 0}
