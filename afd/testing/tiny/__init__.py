# SPDX-License-Identifier: Apache-2.0
"""Tiny checkpoints with random weights, a tokenizer and a chat template: real formats, a few megabytes.

They exist so that anyone can run a real MoE model through real vLLM in seconds. Two properties make them
useful for comparing runs:

* **The same bytes everywhere.** Weights come from the raw output of a seeded PCG64 (which NumPy promises
never to
  change), turned into numbers by integer sums and single correctly rounded operations. Files hold no time
  stamps.
* **Clear winners.** Logits are spread widely, so that two tokens almost never tie; the residual stream is not
  dominated by the last token, so that greedy text neither repeats one token nor runs in a short circle;
  tokens that are not printable, and the end token, are hardly ever chosen.
"""

from afd.testing.tiny.model import BUILTINS, TinyModel, config_json, tensors
from afd.testing.tiny.store import PREFIX, build, meant, resolve_builtin

__all__ = ["BUILTINS", "PREFIX", "TinyModel", "build", "config_json", "meant", "resolve_builtin", "tensors"]
