# SPDX-License-Identifier: Apache-2.0
"""The child of the checks in ``device``: ``python -m afd.doctor.ascend QUESTION``.

Importing this imports the device's package, which is why only a child does it.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import traceback
from pathlib import Path

import torch
import torch_npu

from afd.doctor import child

_ELEMENTS = 1024
npu = torch_npu.npu


def soc() -> dict[str, object]:
    """The number that vLLM-Ascend's own check reads, too."""
    npu.set_device(0)
    return {"number": int(npu.get_soc_version())}


def count() -> dict[str, object]:
    return {"count": int(npu.device_count())}


def memory() -> dict[str, object]:
    """Free and total bytes of every card."""
    return {"memory": [list(npu.mem_get_info(index)) for index in range(npu.device_count())]}


def sums() -> dict[str, object]:
    """The sum of so many ones on each card."""
    found = [
        float(torch.ones(_ELEMENTS).to(f"npu:{index}").sum().cpu()) for index in range(npu.device_count())
    ]
    return {"sums": found, "expected": float(_ELEMENTS)}


def all_reduce() -> dict[str, object]:
    """Rank 0 is this process, rank 1 a child of it. A file is their rendezvous, so that no port can be taken."""
    with tempfile.TemporaryDirectory() as directory:
        peer = os.fork()
        if peer == 0:
            code = 1
            try:
                (Path(directory) / "1").write_text(str(_reduced(1, directory)), encoding="utf-8")
                code = 0
            except BaseException:
                traceback.print_exc()  # its last line is told when rank 0 waits until the deadline
                raise
            finally:
                sys.stderr.flush()
                os._exit(code)
        try:
            mine = _reduced(0, directory)
        except BaseException:
            os.kill(peer, signal.SIGKILL)  # it may wait for us for ever, and our error is the one to tell
            os.waitpid(peer, 0)
            raise
        _, status = os.waitpid(peer, 0)
        if status:
            raise RuntimeError(f"rank 1 ended with {os.waitstatus_to_exitcode(status)}")
        theirs = float((Path(directory) / "1").read_text(encoding="utf-8"))
    return {"sums": [mine, theirs], "expected": float(3 * _ELEMENTS)}


def _reduced(rank: int, directory: str) -> float:
    npu.set_device(rank)
    torch.distributed.init_process_group(
        "hccl", init_method=f"file://{directory}/store", rank=rank, world_size=2
    )
    tensor = torch.full((_ELEMENTS,), rank + 1.0).to(f"npu:{rank}")
    torch.distributed.all_reduce(tensor)
    found = float(tensor.sum().cpu())
    torch.distributed.destroy_process_group()
    return found


def triton_kernel() -> dict[str, object]:
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator]
    def add_one(pointer, size: tl.constexpr):  # type: ignore[no-untyped-def]
        index = tl.arange(0, size)
        tl.store(pointer + index, tl.load(pointer + index) + 1)

    tensor = torch.zeros(_ELEMENTS).to("npu:0")
    add_one[(1,)](tensor, _ELEMENTS)
    return {"right": bool((tensor.cpu() == 1).all())}


QUESTIONS = {
    "soc": soc,
    "count": count,
    "memory": memory,
    "sum": sums,
    "all-reduce": all_reduce,
    "triton": triton_kernel,
}


if __name__ == "__main__":
    child.answer(QUESTIONS[sys.argv[1]]())
