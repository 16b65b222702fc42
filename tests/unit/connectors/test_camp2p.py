# SPDX-License-Identifier: Apache-2.0
"""Links over shm, both ends in one process: what a view is worth, what is counted, what opening and closing leave."""

from __future__ import annotations

import gc
import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from afd.connectors.base import Part, Routing, Slot, Work
from afd.connectors.camp2p import CAMP2pAFDConnector
from afd.connectors.registry import connector
from afd.connectors.shm.transport import ShmTransport, geometry_of
from afd.control.abort import Abort, Cause
from afd.control.messages import Step
from afd.errors import ConfigError, MisuseError, PeerLostError, ResourceError, UnsupportedError
from afd.topology import Rank, Topology
from tests.unit.connectors.conftest import EPOCH, MakeLinks, spec

A0, F0 = Rank.parse("A0"), Rank.parse("F0")
helpers = pytest.mark.parametrize("helper", ["c", "python"])


def step(number: int, *counts: int, ids: bool = False) -> Step:
    return Step(epoch=EPOCH, step=number, rank="A0", phase="eager", real=counts, padded=counts, ids=ids)


def poisoned(tensor: torch.Tensor) -> bool:
    return bool(tensor.isnan().all())


@helpers
def test_a_work_is_read_in_place_until_it_is_replied_to(links: MakeLinks, helper: str) -> None:
    attention, ffn = links(helper)
    attention.begin(step(0, 4))
    attention.send(Slot(0, 0), torch.ones(4, 8))
    work = next(ffn.works({A0: step(0, 4)}))
    assert work.parts == (Part(0, 0, 4),)
    assert torch.equal(work.hidden, torch.ones(4, 8))
    work.hidden.mul_(3)
    ffn.reply(work, work.hidden)
    assert poisoned(work.hidden), "the view of a work that was replied to must not look like data"
    assert torch.equal(attention.receive(Slot(0, 0)), torch.full((4, 8), 3.0))


@helpers
def test_a_reply_in_place_is_valid_until_the_next_send_of_its_ubatch(links: MakeLinks, helper: str) -> None:
    attention, ffn = links(helper, num_ubatches=2)
    announced = step(0, 4, 2)
    attention.begin(announced)
    works = ffn.works({A0: announced})

    def answer() -> None:
        work = next(works)
        ffn.reply(work, work.hidden + 1)

    attention.send(Slot(0, 0), torch.zeros(4, 8))
    answer()
    view = attention.receive(Slot(0, 0))
    view += 1  # it is ours until the next send
    attention.send(Slot(0, 1), torch.zeros(2, 8))
    answer()
    other = attention.receive(Slot(0, 1))
    assert torch.equal(view, torch.full((4, 8), 2.0)), "another ubatch leaves it alone"
    attention.send(Slot(1, 0), view)
    assert poisoned(view)
    answer()
    assert torch.equal(attention.receive(Slot(1, 0)), torch.full((4, 8), 3.0)), (
        "it was read before it went away"
    )
    assert torch.equal(other, torch.ones(2, 8))


def test_a_reply_that_was_copied_stays(links: MakeLinks) -> None:
    attention, ffn = links()
    attention.begin(step(0, 4))
    works = ffn.works({A0: step(0, 4)})
    outs = []
    for layer in (0, 1, 2):
        out = torch.empty(4, 8)
        attention.send(Slot(layer, 0), torch.full((4, 8), float(layer)))
        work = next(works)
        ffn.reply(work, work.hidden)
        assert attention.receive(Slot(layer, 0), out) is out
        outs.append(out)
    assert [out[0, 0].item() for out in outs] == [0, 1, 2]


def test_works_come_layer_by_layer_and_inside_a_layer_ubatch_by_ubatch(links: MakeLinks) -> None:
    attention, ffn = links(num_ubatches=2)
    empty = step(5, 0, 0)
    attention.begin(empty)
    order = []
    for work in ffn.works({A0: empty}):
        order.append(tuple(work.slot))
        assert work.hidden.shape == (0, 8)
        assert work.step == 5
        ffn.reply(work, work.hidden)
    assert order == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    attention.send(Slot(0, 0), torch.zeros(0, 8))
    assert attention.receive(Slot(0, 0)).shape == (0, 8)


def test_a_link_counts_what_crosses(links: MakeLinks) -> None:
    attention, ffn = links(ids=True)
    attention.begin(step(0, 4, ids=True))
    attention.send(Slot(0, 0), torch.zeros(4, 8), torch.zeros(4, dtype=torch.int32))
    work = next(ffn.works({A0: step(0, 4, ids=True)}))
    ffn.reply(work, work.hidden)
    attention.receive(Slot(0, 0))
    assert attention.counters.sent_bytes == ffn.counters.received_bytes == 4 * (8 * 4 + 4)
    assert attention.counters.received_bytes == ffn.counters.sent_bytes == 4 * 8 * 4
    assert attention.counters.sent == attention.counters.received == ffn.counters.sent == 1
    assert attention.counters.wait_s > 0


def test_a_routing_cannot_cross(links: MakeLinks) -> None:
    attention, _ = links()
    attention.begin(step(0, 1))
    routing = Routing(torch.zeros(1, 2), torch.zeros(1, 2))
    with pytest.raises(MisuseError, match="routes on FFN"):
        attention.send(Slot(0, 0), torch.zeros(1, 8), None, routing)


def test_the_cause_of_an_abort_wins_over_a_peer_that_only_closed(links: MakeLinks) -> None:
    abort = Abort()
    attention, ffn = links(abort=abort)
    attention.begin(step(0, 1))
    attention.send(Slot(0, 0), torch.zeros(1, 8))
    ffn.close("because of the cause")
    told = threading.Timer(0.1, abort.trigger, (Cause("RoleFailedError", "ran out of memory", rank="F0"),))
    told.start()
    with pytest.raises(Exception, match="F0: ran out of memory"):
        attention.receive(Slot(0, 0))
    told.join()


def test_a_peer_that_closed_without_a_cause_is_lost(links: MakeLinks) -> None:
    attention, ffn = links()
    attention.begin(step(0, 1))
    attention.send(Slot(0, 0), torch.zeros(1, 8))
    ffn.close("no reason")
    with pytest.raises(PeerLostError, match=r"F0 closed its end .*step 0, layer 0, ubatch 0"):
        attention.receive(Slot(0, 0))


@helpers
def test_nothing_is_left_after_opening_and_closing(links: MakeLinks, tmp_path: Path, helper: str) -> None:
    attention, ffn = links(helper)
    assert not list(tmp_path.iterdir()), "the names are gone as soon as both sides have mapped"
    attention.close("done")
    ffn.close("done")
    del attention, ffn
    gc.collect()
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        attention, ffn = links(helper)
        attention.begin(step(0, 2))
        attention.send(Slot(0, 0), torch.ones(2, 8))
        work: Work | None = next(ffn.works({A0: step(0, 2)}))
        attention.close("done")
        ffn.close("done")
        assert work is not None
        assert torch.equal(work.hidden, torch.ones(2, 8)), (
            "a view that is still held may go stale, never crash"
        )
        work = None
        attention.close("again")
    del attention, ffn
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_a_closed_link_no_longer_listens_to_its_abort(links: MakeLinks) -> None:
    abort = Abort()
    attention, ffn = links(abort=abort)
    attention.close("done")
    ffn.close("done")
    assert abort.trigger(Cause("PeerLostError", "later"))


def open_alone(tmp_path: Path, rank: str, offers: dict[str, Any], **changes: Any) -> Any:
    """Open one end with a control plane that answers "endpoints" with ``offers``."""
    end = CAMP2pAFDConnector(ShmTransport("auto", tmp_path))
    own = spec(rank, **changes)
    opener = end.open_attention if rank.startswith("A") else end.open_ffn
    return opener(own, lambda key, value: offers)


def test_a_failed_opening_leaves_no_name(tmp_path: Path) -> None:
    def no_answer(key: str, value: Any) -> dict[str, Any]:
        assert list(tmp_path.iterdir()), "segments exist before they are offered"
        raise PeerLostError("A0 is gone")

    with pytest.raises(PeerLostError, match="A0 is gone"):
        CAMP2pAFDConnector(ShmTransport("auto", tmp_path)).open_ffn(spec("F0"), no_answer)
    assert not list(tmp_path.iterdir())


def test_an_attention_rank_on_another_host_is_told_so(tmp_path: Path) -> None:
    offers = {"F0": {"transport": "shm", "segments": {"A0": [f"afd-{EPOCH[:12]}-a0-f0-u0"]}}}
    with pytest.raises(ConfigError, match="one host"):
        open_alone(tmp_path, "A0", offers)


@pytest.mark.parametrize(
    "offer",
    [
        None,
        {"transport": "collective"},
        {"transport": "shm", "segments": {}},
        {"transport": "shm", "segments": {"A0": ["../etc/passwd"]}},
        {"transport": "shm", "segments": {"A0": [f"afd-{EPOCH[:12]}-/../../x"]}},
        {"transport": "shm", "segments": {"A0": ["afd-000000000000-a0-f0-u0"]}},
        {"transport": "shm", "segments": {"A0": []}},
    ],
)
def test_an_offer_that_names_no_segment_of_ours_is_refused(tmp_path: Path, offer: Any) -> None:
    with pytest.raises(MisuseError, match="A0 needs 1 segments of this epoch from F0"):
        open_alone(tmp_path, "A0", {"F0": offer})


def test_sides_that_disagree_about_sizes_do_not_connect(tmp_path: Path) -> None:
    ffn = ShmTransport("auto", tmp_path).ffn(spec("F0"))
    with pytest.raises(MisuseError, match=r"max_rows=17.*max_rows=16"):
        open_alone(tmp_path, "A0", {"F0": ffn.offer}, max_tokens=17)
    ffn.close()
    assert not list(tmp_path.iterdir())


def test_too_little_shared_memory_is_found_before_anything_is_published(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"F0: 1 x 1000000000000 rows .* needs"):
        open_alone(tmp_path, "F0", {}, max_tokens=10**12)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("rank", "changes", "message"),
    [
        ("A0", {"num_ubatches": 0}, "at least 1"),
        ("A0", {"layers": ()}, "at least 1"),
        ("A0", {"ids_dtype": torch.float32}, "int32 or int64"),
        ("A0", {"attention_tp": 2}, "groups of 2"),
    ],
)
def test_an_impossible_spec_is_refused(
    tmp_path: Path, rank: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(MisuseError, match=message):
        open_alone(tmp_path, rank, {}, **changes)


def test_a_rank_opens_the_end_of_its_own_role(tmp_path: Path) -> None:
    end = CAMP2pAFDConnector(ShmTransport("auto", tmp_path))
    with pytest.raises(MisuseError, match="F0 cannot open the attention end"):
        end.open_attention(spec("F0"), lambda key, value: {})


def test_segments_are_named_by_epoch_and_pair(tmp_path: Path) -> None:
    end = ShmTransport("auto", tmp_path).ffn(spec("F1", topology=Topology(4, 2), num_ubatches=2))
    expected = {f"A{a}": [f"afd-{EPOCH[:12]}-a{a}-f1-u{ubatch}" for ubatch in (0, 1)] for a in (2, 3)}
    assert end.offer == {"transport": "shm", "segments": expected}
    assert {path.stat().st_size for path in tmp_path.iterdir()} == {geometry_of(spec("F0")).size}
    end.close()
    assert not list(tmp_path.iterdir())


def test_the_registry_knows_what_is_built() -> None:
    assert connector("CAMP2pAFDConnector", "shm").name == "CAMP2pAFDConnector"
    with pytest.raises(UnsupportedError, match="CAMP2pAFDConnector"):
        connector("CAMAsyncAFDConnector", "shm")
    with pytest.raises(UnsupportedError, match="shm"):
        connector("CAMP2pAFDConnector", "cam")


def test_opening_logs_nothing(links: MakeLinks, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        links()
    assert not caplog.records
