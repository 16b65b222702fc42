# SPDX-License-Identifier: Apache-2.0
"""Whether a checkpoint has what the command line asks of it. vLLM finds out, too, but half a minute later.

What is refused here vLLM would refuse; where its rule is longer than this one, the question is left to it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from afd.agent.model_files import read_config
from afd.agent.vllm_arguments import VllmArguments
from afd.errors import ConfigError

_TOKENIZERS = ("tokenizer.json", "*.model", "*.tiktoken", "tekken.json", "vocab*", "tokenization*.py")
_LENGTH = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT]?)")
_SCALED = ("default", "yarn", "linear", "dynamic")
"""Kinds of rotary embeddings of which the longest position is known here."""
_ALLOW_LONG = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"


def check_tokenizer(arguments: VllmArguments, directory: Path) -> None:
    """Raise ConfigError when Attention would find no tokenizer, in ``directory`` or where ``--tokenizer`` says."""
    if arguments.enabled("--skip-tokenizer-init") or arguments.enabled("--tokens-only"):
        return
    given = arguments.get("--tokenizer")
    where = Path(given).expanduser() if given else directory
    if not where.is_dir():
        if given.startswith(("/", "./", "../", "~")):
            raise ConfigError(f"flag --tokenizer: {given}: there is no such directory")
        return  # an id on the hub
    names = [name for pattern in _TOKENIZERS for name in where.glob(pattern)]
    if not names and "auto_map" not in _read(where / "tokenizer_config.json"):
        raise ConfigError(
            f"{where}: no tokenizer (tokenizer.json or tokenizer.model), and Attention needs one; download the model's "
            "again, or name another directory with --tokenizer"
        )


def check_length(arguments: VllmArguments, directory: Path, environment: Mapping[str, str]) -> None:
    """Raise ConfigError when ``--max-model-len`` is more than the positions that the model was made for."""
    asked = _length(arguments.get("--max-model-len"))
    overridden = arguments.enabled("--hf-overrides") or arguments.enabled("--hf-config-path")
    if asked is None or overridden or environment.get(_ALLOW_LONG, "0") != "0":
        return
    limit = _positions(read_config(directory))
    if limit is not None and asked > limit:
        raise ConfigError(
            f"flag --max-model-len: {asked} is more than the {limit} positions of this model "
            f"({directory / 'config.json'}); give {limit} or less"
        )


def kinds(config: Mapping[str, Any]) -> list[str]:
    """Names of the support matrix's features that a model with this ``config.json`` needs."""
    found = []
    if any(isinstance(config.get(f"{sense}_config"), dict) for sense in ("vision", "audio", "video")):
        found.append("multimodal")
    if config.get("is_encoder_decoder"):
        found.append("encoder_decoder")
    return found


def _length(text: str) -> int | None:
    """The number in vLLM's spelling, such as 4096, 4k or 4K; None when there is none to judge."""
    found = _LENGTH.fullmatch(text.strip())
    if found is None:
        return None
    scale = 1024 if found[2].isupper() else 1000
    return int(float(found[1]) * scale ** " kmgt".index(found[2].lower() or " "))


def _positions(config: Mapping[str, Any]) -> int | None:
    """The most positions that vLLM may derive from a ``config.json``; None when this one says it in another way."""
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(scaling, dict) or any(isinstance(value, dict) for value in scaling.values()):
        return None
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    before = scaling if kind == "yarn" else config
    base = before.get("original_max_position_embeddings" if kind == "yarn" else "max_position_embeddings")
    factor = 1 if kind == "default" else scaling.get("factor")
    explicit = config.get("model_max_length") or 0
    if kind not in _SCALED or not (_number(base) and _number(factor) and _number(explicit)):
        return None
    return int(max(base * factor, explicit))


def _number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float))


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    found = json.loads(path.read_bytes())  # the agent has read it before: it is JSON
    return found if isinstance(found, dict) else {}
