# SPDX-License-Identifier: Apache-2.0
"""FFN ranks of which F1 comes to a halt in the middle of a layer, after the ranks have met, when a file says how."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from afd.connectors.base import Work
from afd.ffn.process import RankProcess, main
from tests.system.variants import HALT_FILE, RAISE, STOP


class HaltingProcess(RankProcess):
    @contextmanager
    def _forward_context(self, work: Work) -> Iterator[None]:
        order = Path(os.environ[HALT_FILE])
        if self._crossing.rank.index == 1 and order.exists():
            how = order.read_text()
            if how == STOP:
                os.kill(os.getpid(), signal.SIGSTOP)
            elif how == RAISE:
                raise ValueError("as the test asked")
        with super()._forward_context(work):
            yield


def ffn(argv: Sequence[str]) -> None:
    """An FFN rank."""
    main(argv, HaltingProcess)
