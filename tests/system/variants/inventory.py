# SPDX-License-Identifier: Apache-2.0
"""Roles, and native vLLM, that write down what they hold once their model is loaded, and what they read for it.

Tensors are counted when all weights are loaded and before vLLM packs them: on CPU most packed weights are no tensors
any more. Memory is that of the process itself: VmHWM is set back before the load, and read after the packing.
"""

from __future__ import annotations

import gc
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding
from vllm.model_executor.model_loader import base_loader, weight_utils
from vllm.v1.worker.cpu_worker import CPUWorker

from afd.attention.worker import AttentionWorker
from afd.connectors.base import FFNLink
from afd.ffn.process import RankProcess
from afd.ffn.process import main as ffn_main
from afd.ffn.server import FFNServer
from afd.launch.api_server import main as server_main
from afd.rebind import rebind
from tests.system.variants import INVENTORY_DIRECTORY

_NATIVE_OPEN = weight_utils.safe_open
_NATIVE_PROCESS = base_loader.process_weights_after_loading
READ: dict[str, int] = {}
"""Tensors that this process read from a checkpoint: name to bytes."""


class RecordingFile:
    """A safetensors file, as vLLM's loader uses it, that remembers in :data:`READ` which tensors were asked for."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._file = _NATIVE_OPEN(*args, **options)

    def __enter__(self) -> RecordingFile:
        self._file.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._file.__exit__(*exception)

    def keys(self) -> list[str]:
        names: list[str] = self._file.keys()
        return names

    def get_tensor(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._file.get_tensor(name)
        READ[name] = tensor.nbytes
        return tensor


@dataclass
class Load:
    """One load of this process: bytes of resident memory at its start, and the tensors when all were loaded."""

    before: int = field(default_factory=lambda: _status("VmRSS"))
    tensors: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins again at VmRSS

    def process_weights_after_loading(self, model: nn.Module, *args: Any) -> None:
        """In the place of vLLM's function: look, then go on with that."""
        rotary = [module for module in model.modules() if isinstance(module, RotaryEmbedding)]
        self.tensors = {
            "parameters": {key: _tensor(value) for key, value in model.named_parameters()},
            "buffers": {key: _tensor(value) for key, value in model.named_buffers()},
            "live": _live_bytes(),
            "rotary forwards": sorted({module._forward_method.__name__ for module in rotary}),
        }
        _NATIVE_PROCESS(model, *args)

    def write(self, name: str, config: VllmConfig) -> None:
        """Write the inventory of this process."""
        found = {
            **self.tensors,
            "read": READ,
            "grown": _status("VmHWM") - self.before,
            "custom_ops": config.compilation_config.custom_ops,
            "rotary kernel": config.compilation_config.is_custom_op_enabled("rotary_embedding"),
            "dtype": str(config.model_config.dtype),
        }
        path = Path(os.environ[INVENTORY_DIRECTORY]) / f"{name}.json"
        path.with_suffix(".new").write_text(json.dumps(found))
        path.with_suffix(".new").rename(path)


@contextmanager
def recording() -> Iterator[Load]:
    """Inside the block, count what a load reads and needs."""
    load = Load()
    with (
        rebind(weight_utils, safe_open=RecordingFile),
        rebind(base_loader, process_weights_after_loading=load.process_weights_after_loading),
    ):
        yield load


def _tensor(value: torch.Tensor) -> list[Any]:
    """Shape, type, bytes, and a checksum of the values."""
    content = value.detach().reshape(-1).view(torch.uint8).numpy()
    return [list(value.shape), str(value.dtype), value.nbytes, zlib.crc32(content)]


def _live_bytes() -> int:
    """Bytes of all tensors that came into being since this process was forked (others are frozen), views once."""
    gc.collect()
    storages: dict[int, int] = {}
    for found in gc.get_objects():
        if isinstance(found, torch.Tensor) and found.device.type == "cpu":
            storage = found.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def _status(key: str) -> int:
    """A value of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) << 10
    raise KeyError(key)


# ---- the roles ------------------------------------------------------------------------------------------------


class InventoryWorker(AttentionWorker):
    """Attention."""

    def load_model(self, *args: Any, **options: Any) -> None:
        with recording() as load:
            super().load_model(*args, **options)
        load.write("attention", self.vllm_config)


class NativeWorker(CPUWorker):
    """The whole model."""

    def load_model(self, *args: Any, **options: Any) -> None:
        with recording() as load:
            super().load_model(*args, **options)
        load.write("native", self.vllm_config)


_LOADS: list[Load] = []


class InventoryProcess(RankProcess):
    """FFN."""

    def server(self, link: FFNLink) -> FFNServer:
        _LOADS[0].write("ffn", self._config)
        return super().server(link)


def ffn(argv: Sequence[str]) -> None:
    """The FFN rank."""
    with recording() as load:
        _LOADS.append(load)
        ffn_main(argv, InventoryProcess)


def attention(argv: Sequence[str]) -> None:
    """Attention's API server; the worker class is ours."""
    changed = list(argv)
    changed[changed.index("--worker-cls") + 1] = f"{__name__}.{InventoryWorker.__name__}"
    server_main(changed)


def native(argv: Sequence[str]) -> None:
    """Native vLLM's API server."""
    server_main([*argv, "--worker-cls", f"{__name__}.{NativeWorker.__name__}"])
