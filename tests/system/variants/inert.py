# SPDX-License-Identifier: Apache-2.0
"""A program: start a native vLLM worker in this process, and print what its classes are and what plugins changed.

    python -m tests.system.variants.inert MODEL [VLLM ARGUMENTS]...

Nothing of AFD is imported here before vLLM has loaded its plugins and started its worker.
"""

from __future__ import annotations

import importlib
import json
import sys
from types import ModuleType
from typing import Any

HOOKED = (
    "vllm.entrypoints.cli.serve",
    "vllm.v1.engine.coordinator",
    "vllm.v1.engine.utils",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.worker.cpu.model_runner",
    "vllm.model_executor.model_loader.weight_utils",
    "vllm.model_executor.models.deepseek_v2",
)
"""Modules with names that AFD replaces in its own processes; that they are complete is checked at the end."""


def main(argv: list[str]) -> None:
    for name in HOOKED:
        importlib.import_module(name)
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.openai.cli_args import make_arg_parser
    from vllm.plugins import load_general_plugins
    from vllm.usage.usage_lib import UsageContext
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.utils.import_utils import resolve_obj_by_qualname
    from vllm.utils.network_utils import get_distributed_init_method, get_open_port

    before = _names()
    load_general_plugins()
    after = _names()
    changed = sorted(key for key, value in before.items() if after.get(key) is not value)
    loaded = sorted(name for name in sys.modules if name == "afd" or name.startswith("afd."))

    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args(argv)
    arguments.model = arguments.model_tag
    engine = AsyncEngineArgs.from_cli_args(arguments)
    config = engine.create_engine_config(UsageContext.OPENAI_API_SERVER)
    worker_class = resolve_obj_by_qualname(config.parallel_config.worker_cls)
    with set_current_vllm_config(config):
        worker = worker_class(
            vllm_config=config,
            local_rank=0,
            rank=0,
            distributed_init_method=get_distributed_init_method("127.0.0.1", get_open_port()),
            is_driver_worker=True,
        )
        worker.init_device()
    classes = {
        "engine arguments": engine,
        "config": config,
        **{f"config {name}": part for name, part in vars(config).items() if _is_config(part)},
        "worker": worker,
        "runner": worker.model_runner,
    }
    still = sorted(name for name in sys.modules if name == "afd" or name.startswith("afd."))
    json.dump(
        {
            "changed by plugins": changed,
            "AFD modules": loaded,
            "AFD modules later": still,
            "classes": {name: _describe(type(value)) for name, value in classes.items()},
            "bases of the runner": [_describe(base) for base in type(worker.model_runner).__mro__],
            "additional": config.additional_config,
            "replaced": _replaced(before),
        },
        sys.stdout,
    )


def _names() -> dict[tuple[str, str], Any]:
    """Every name of every module of vLLM that is loaded."""
    modules = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "vllm"}
    return {
        (name, attribute): value
        for name, module in modules.items()
        if isinstance(module, ModuleType)
        for attribute, value in vars(module).items()
    }


def _is_config(part: object) -> bool:
    return type(part).__module__.startswith("vllm.config")


def _describe(what: type) -> str:
    return f"{what.__module__}.{what.__qualname__}"


def _replaced(before: dict[tuple[str, str], Any]) -> dict[str, bool]:
    """For every name that AFD hooks in its own processes: whether it is another object than before plugins came."""
    from afd.families import FAMILIES
    from afd.launch.children import IMPORTERS_OF_GET_MP_CONTEXT
    from afd.rebind import HOOKS

    places: list[tuple[str, str]] = []
    for hook in HOOKS:
        if hook.name == "get_mp_context":
            places += [(name, hook.name) for name in IMPORTERS_OF_GET_MP_CONTEXT]
        elif hook.name == "the class names of the row":
            places += [(f.module, name) for f in FAMILIES for name in (*f.ffn_classes, *f.attention_classes)]
        else:
            places.append((hook.module, hook.name))
    now = _names()
    # Of the models only that of the run is imported.
    known = [place for place in places if place in before and place in now]
    return {".".join(place): now[place] is not before[place] for place in known}


if __name__ == "__main__":
    main(sys.argv[1:])
