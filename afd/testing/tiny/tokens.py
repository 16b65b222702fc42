# SPDX-License-Identifier: Apache-2.0
"""The tokenizer of the tiny models: byte-level BPE in the format of ``tokenizers``, with a chat template.

Any text can be encoded, because all 256 bytes are tokens; the rest of the vocabulary is pieces of English
words, so that what a tiny model writes looks like text. The files are written as plain JSON, hence are the
same everywhere.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from itertools import pairwise
from typing import Any

SPECIALS = ("<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>")
BOS, EOS = 0, 1
SMALLEST = len(SPECIALS) + 256

# What the merges are learned from. Its only purpose is to contain common pieces of English words.
_TEXT = """
attention and feed forward networks are the two halves of every layer of a language model. the first half
looks back at all the words that came before and needs memory for each of them. the second half looks at one
word at a time and needs many weights, most of which are not used for this word, because a router sends each
word to a few experts only. when both halves share one device the memory of the first and the weights of the
second compete for the same space. when they are apart, each group can have the number of devices that the
work at hand asks for. the price is that every word must travel twice in every layer, so the way between the
two groups has to be short and must never be forgotten. there was once a small machine with only two cores
that wanted to know whether large machines would understand this. it wrote letters to its neighbour, one for
every layer, and waited for the answers. sometimes the answer was late, sometimes the neighbour was gone, and
then it had to say so in plain words instead of waiting for ever in silence.
"""

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{{ eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@cache
def _byte_names() -> tuple[str, ...]:
    """The printable character that byte-level BPE uses for each byte (the convention that GPT-2 introduced)."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return tuple(chr(byte) if byte in plain else chr(next(others)) for byte in range(256))


@cache
def _merges(count: int) -> tuple[tuple[str, str], ...]:
    """The ``count`` most frequent pairs, each found after the ones before were merged; ties by the alphabet."""
    names = _byte_names()
    words = Counter(" " + word for word in re.findall("[a-z]+", _TEXT))
    split = {word: [names[byte] for byte in word.encode()] for word in words}
    found: list[tuple[str, str]] = []
    while len(found) < count:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, pieces in split.items():
            for pair in pairwise(pieces):
                pairs[pair] += words[word]
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        found.append(best)
        for word, pieces in split.items():
            merged: list[str] = []
            for piece in pieces:
                if merged and (merged[-1], piece) == best:
                    merged[-1] += piece
                else:
                    merged.append(piece)
            split[word] = merged
    return tuple(found)


@cache
def vocabulary(size: int) -> tuple[str, ...]:
    """``size`` tokens: the special ones, the bytes, then merged pieces (and fillers, if the text has too
    few).
    """
    start = (*SPECIALS, *_byte_names())
    pieces = tuple(left + right for left, right in _merges(size - len(start)))
    fillers = tuple(f"<|extra_{number}|>" for number in range(size - len(start) - len(pieces)))
    return start + pieces + fillers


def unlikely(size: int) -> list[int]:
    """Ids of tokens that a tiny model should hardly ever choose: special, filler, not printable ASCII."""
    names = _byte_names()
    odd = {names[byte] for byte in range(256) if not 0x20 <= byte < 0x7F}
    return [
        number
        for number, token in enumerate(vocabulary(size))
        if number < len(SPECIALS) or token in odd or token.startswith("<|extra_")
    ]


def _added(number: int, token: str) -> dict[str, Any]:
    return {
        "id": number,
        "content": token,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


def tokenizer_json(size: int) -> dict[str, Any]:
    """``tokenizer.json``. Encoding a prompt puts the begin token in front of it."""
    begin = {"SpecialToken": {"id": SPECIALS[BOS], "type_id": 0}}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    words = vocabulary(size)
    first = [{"Sequence": {"id": "A", "type_id": 0}}]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _added(number, token)
            for number, token in enumerate(words)
            if number < len(SPECIALS) or token.startswith("<|extra_")
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [begin, *first],
            "pair": [begin, *first, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {
                SPECIALS[BOS]: {"id": SPECIALS[BOS], "ids": [BOS], "tokens": [SPECIALS[BOS]]},
            },
        },
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: number for number, token in enumerate(words)},
            "merges": [list(pair) for pair in _merges(size - SMALLEST)],
        },
    }


def tokenizer_config(max_position: int) -> dict[str, Any]:
    """``tokenizer_config.json``, with the chat template."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIALS[BOS],
        "eos_token": SPECIALS[EOS],
        "additional_special_tokens": list(SPECIALS[2:]),
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_position,
    }


def special_tokens_map() -> dict[str, Any]:
    """``special_tokens_map.json``."""
    return {"bos_token": SPECIALS[BOS], "eos_token": SPECIALS[EOS]}
