# SPDX-License-Identifier: Apache-2.0
"""What a user of the API can ask beyond plain text, as data, and how two servers' answers are compared.

Everything is asked one by one: alone, a request meets the same shapes in AFD and in native vLLM.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from afd.testing.questions import MAX_MODEL_LEN
from tests.system.rig import SERVED

ALIKE = 1e-4
"""How far two log-probabilities may be apart."""
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
_VOLATILE = {"id", "created", "request_id", "system_fingerprint"}
"""Keys whose values differ between two answers of one server, or say how it was configured."""
_TIME = re.compile(r"\[\d\d:\d\d:\d\d\] ")  # in what xgrammar complains about

TEMPLATE = """\
{{ bos_token }}
{%- if tools %}<|system|>
{%- for tool in tools %}{{ tool.function.name }}: {{ tool.function.parameters | tojson }}{% endfor %}{{ eos_token }}
{%- endif %}
{%- for message in messages %}<|{{ message.role }}|>{{ message.content or "" }}
{%- for call in message.tool_calls or [] %}{{ call.function.name }}({{ call.function.arguments | tojson }}){% endfor %}
{{- eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""
"""A chat template that knows of tools. Arguments of earlier calls arrive as objects, although the API has text."""


@dataclass(frozen=True)
class Ask:
    """One HTTP request. ``grammar``: vLLM's V2 runner dies of it on CPU, so native V1 is what to compare with.

    ``v1`` is whether native V1 survives it: on CPU it fails for a seeded request whose prompt is prefilled in chunks.
    """

    name: str
    path: str
    body: Any = None
    grammar: bool = False
    v1: bool = True


@dataclass(frozen=True)
class Reply:
    """Status, and the content: JSON, for a stream that of its events merged, without what always differs."""

    status: int
    content: Any


# ---- asking ---------------------------------------------------------------------------------------------------


async def send(session: aiohttp.ClientSession, url: str, ask: Ask) -> Reply:
    """Send one and read all that comes back."""
    method = "GET" if ask.body is None else "POST"
    async with session.request(method, url + ask.path, json=ask.body) as response:
        text = await response.text()
    content: Any = text
    if response.content_type == "text/event-stream":
        *events, end = [line.removeprefix("data: ") for line in text.splitlines() if line]
        content = {"end": end}
        for event in events:
            content = merged(content, json.loads(event))
    elif response.content_type == "application/json":
        content = json.loads(text)
    return Reply(response.status, stable(content))


async def send_all(url: str, asked: Sequence[Ask]) -> dict[str, Reply]:
    """Send them one after another."""
    # The server closes the connection of a request that it answers with 500.
    connector, timeout = aiohttp.TCPConnector(force_close=True), aiohttp.ClientTimeout(total=90)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        return {ask.name: await send(session, url, ask) for ask in asked}


async def metric_families(url: str) -> dict[str, str]:
    """Names and types of what a server counts."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
        text = await response.text()
    return {family.name: family.type for family in text_string_to_metric_families(text)}


def merged(before: Any, more: Any, key: str = "") -> Any:
    """What two events of a stream say together: a server that is slow puts several tokens into one event."""
    if before is None or more is None:
        return more if before is None else before
    if isinstance(more, dict):
        both = [*before, *(name for name in more if name not in before)]
        return {name: merged(before.get(name), more.get(name), name) for name in both}
    if isinstance(more, list) and key in ("choices", "tool_calls"):
        found = {entry["index"]: entry for entry in before}
        for entry in more:
            found[entry["index"]] = merged(found.get(entry["index"]), entry)
        return [found[index] for index in sorted(found)]
    if isinstance(more, list) or key in ("text", "content", "arguments"):
        return before + more
    return more


def stable(value: Any) -> Any:
    """A JSON value without what differs between two answers of one server."""
    if isinstance(value, dict):
        return {key: stable(inner) for key, inner in value.items() if key not in _VOLATILE}
    if isinstance(value, list):
        return [stable(inner) for inner in value]
    return _TIME.sub("", value) if isinstance(value, str) else value


def differences(ours: Any, native: Any, at: str = "") -> Iterator[str]:
    """Where two JSON values differ; numbers that are no integers may by :data:`ALIKE`."""
    if isinstance(ours, Reply) and isinstance(native, Reply):
        yield from differences([ours.status, ours.content], [native.status, native.content], at)
    elif isinstance(ours, float) and isinstance(native, float):
        if abs(ours - native) > ALIKE:
            yield f"{at}: {ours} instead of {native}"
    elif isinstance(ours, Mapping) and isinstance(native, Mapping) and list(ours) == list(native):
        for key in ours:
            yield from differences(ours[key], native[key], f"{at}.{key}")
    elif isinstance(ours, list) and isinstance(native, list) and len(ours) == len(native):
        for index, pair in enumerate(zip(ours, native, strict=True)):
            yield from differences(*pair, f"{at}[{index}]")
    elif ours != native or type(ours) is not type(native):
        yield f"{at}: {str(ours)[:300]} instead of {str(native)[:300]}"


def part(name: str, greedy: Reply) -> list[Ask]:
    """What is asked about one part of the API; ``greedy`` is native's reply to :data:`GREEDY`."""
    choice = greedy.content["choices"][0]
    return PARTS[name](choice["text"], choice["token_ids"])


# ---- what is asked ----------------------------------------------------------------------------------------------

_SENTENCE = "Attention keeps the cache, experts keep the weights."
_LONG = " ".join([_SENTENCE] * 4)
"""More than a step of 64 tokens."""


def _text(name: str, body: Mapping[str, Any], *, grammar: bool = False, v1: bool = True) -> Ask:
    plain = {"model": SERVED, "prompt": _SENTENCE, "max_tokens": 12, "temperature": 0}
    return Ask(name, COMPLETIONS, {**plain, **body}, grammar, v1)


def _chat(name: str, body: Mapping[str, Any], *, grammar: bool = False) -> Ask:
    said = [{"role": "system", "content": "Answer in short words."}, {"role": "user", "content": _SENTENCE}]
    plain = {"model": SERVED, "messages": said, "max_tokens": 12, "temperature": 0}
    return Ask(name, CHAT, {**plain, **body}, grammar)


_USAGE = {"stream": True, "stream_options": {"include_usage": True}}
_EACH = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
_SAMPLED = {"temperature": 1.3, "seed": 41, "max_tokens": 16}

GREEDY = _text("greedy", {"max_tokens": 24, "logprobs": 1, "return_token_ids": True})
"""From native's answer to this one the stops of others are taken."""


def streams() -> list[Ask]:
    """Streaming, with usage at the end and at every event; several answers and several prompts in one stream."""
    return [
        _text("streamed", _USAGE),
        _text("streamed, usage at every event", {**_EACH, "logprobs": 2}),
        _text("streamed, two prompts", {**_USAGE, "prompt": [_SENTENCE, "One token crosses,"]}),
        _text("streamed, echo", {**_USAGE, "echo": True}),
        _chat("chat, streamed", {**_USAGE, "logprobs": True, "top_logprobs": 3}),
        _chat("chat, streamed, usage at every event", _EACH),
    ]


def probabilities() -> list[Ask]:
    """Log-probabilities of the answer and of the prompt, also of one that is prefilled in steps."""
    return [
        _text("log-probabilities", {"logprobs": 5}),
        _text("of the sampled only", {"logprobs": 0}),
        _text("of the prompt", {"prompt_logprobs": 3, "logprobs": 2}),
        _text("of a prompt in steps", {"prompt_logprobs": 1, "prompt": _LONG}),
        _text("echo", {"echo": True, "logprobs": 2}),
        _text("echo of the prompt alone", {"echo": True, "logprobs": 1, "max_tokens": 0}),
        _text("tokens as ids", {"logprobs": 2, "return_tokens_as_token_ids": True}),
        _chat("of a chat", {"logprobs": True, "top_logprobs": 5}),
        _chat("of a chat's prompt", {"prompt_logprobs": 1}),
    ]


def stops(text: str, tokens: Sequence[int]) -> list[Ask]:
    """Every way to end an answer. ``text`` and ``tokens`` are native's plain answer."""
    piece, token = text[len(text) // 2 :][:3], tokens[7]
    long = {"max_tokens": 24}
    return [
        _text("stop string", {**long, "stop": piece}),
        _text("stop strings", {**long, "stop": ["no such words", piece], "include_stop_str_in_output": True}),
        _text("stop string, streamed", {**long, "stop": [piece], **_USAGE}),
        _text("stop token", {**long, "stop_token_ids": [token]}),
        _text("stop token before the minimum", {**long, "stop_token_ids": [token], "min_tokens": 16}),
        _text("ignored end", {**long, "ignore_eos": True}),
        _chat("chat, stop string", {**long, "stop": piece[:1]}),
    ]


def sampling() -> list[Ask]:
    """Penalties, biases and filters, greedy and with a seed."""
    few = [263, 270, 300, 301, 310, 320]  # or no token would come twice
    again = {
        "prompt": "the the the the the the the",
        "max_tokens": 20,
        "logprobs": 3,
        "allowed_token_ids": few,
    }
    return [
        _text("presence penalty", {**again, "presence_penalty": 1.7}),
        _text("frequency penalty", {**again, "frequency_penalty": 1.3}),
        _text("repetition penalty", {**again, "repetition_penalty": 1.8}),
        _text("all penalties, seeded", {**again, **_SAMPLED, "presence_penalty": -1, "frequency_penalty": 2}),
        _text("biased", {"logit_bias": {"263": 6.5, "270": -100}}),
        _text("forbidden words", {"bad_words": [" la", "roup"]}),
        _text("allowed tokens", {"allowed_token_ids": [263, 270, 300, 301]}),
        _text("top k, seeded", {**_SAMPLED, "top_k": 7}),
        _text("top p, seeded", {**_SAMPLED, "top_p": 0.6}),
        _text("min p, seeded", {**_SAMPLED, "min_p": 0.2}),
        _text("all filters, seeded", {**_SAMPLED, "top_k": 30, "top_p": 0.9, "min_p": 0.02, "logprobs": 4}),
        _text("seeded, in steps", {**_SAMPLED, "prompt": _LONG}, v1=False),
        _chat("chat, seeded", {**_SAMPLED, "top_p": 0.8}),
    ]


def several() -> list[Ask]:
    """Several answers to a prompt, several prompts, beams."""
    short = {
        **_SAMPLED,
        "prompt": "One token crosses,",
    }  # three times in one step: V1 cuts no prompt with a seed
    return [
        _text("three answers", {**short, "n": 3}),
        _text("three greedy answers", {"n": 3}),
        _text("three answers, streamed", {**short, "n": 3, "stream": True, "max_tokens": 4}),
        _text("twenty answers", {**_SAMPLED, "n": 20, "max_tokens": 4}, v1=False),
        _text("prompts of two kinds", {"prompt": [[5, 77, 300], [260, 261]]}),
        _text("two beams", {"use_beam_search": True, "n": 2, "max_tokens": 6}),
        _chat("chat, two answers", {**_SAMPLED, "n": 2, "messages": [{"role": "user", "content": "hi"}]}),
    ]


_POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "name": {"enum": ["left", "right"]}},
    "required": ["x", "name"],
}


def grammars() -> list[Ask]:
    """Structured output of every kind."""
    schema = {"type": "json_schema", "json_schema": {"name": "point", "schema": _POINT}}
    return [
        _text("choice", {"structured_outputs": {"choice": ["yes", "no"]}}, grammar=True),
        _text("regular expression", {"structured_outputs": {"regex": "[ab]{5}-[0-9]{2}"}}, grammar=True),
        _text("schema", {"structured_outputs": {"json": _POINT}, "max_tokens": 40}, grammar=True),
        _text("grammar", {"structured_outputs": {"grammar": 'root ::= "<" [a-z]{3} ">"'}}, grammar=True),
        _chat("chat, schema", {"response_format": schema, "max_tokens": 40}, grammar=True),
        _chat(
            "chat, any object", {"response_format": {"type": "json_object"}, "max_tokens": 24}, grammar=True
        ),
        _chat(
            "chat, schema, streamed", {"response_format": schema, "max_tokens": 40, **_USAGE}, grammar=True
        ),
    ]


def tools() -> list[Ask]:
    """Tools in the chat template, chosen by the model, by force and by name; and a conversation with a call in it."""
    point = {"type": "function", "function": {"name": "move", "description": "Go.", "parameters": _POINT}}
    wait = {
        "type": "function",
        "function": {"name": "wait", "parameters": {"type": "object", "properties": {}}},
    }
    both = {"tools": [point, wait], "max_tokens": 96}
    named = {"type": "function", "function": {"name": "wait"}}
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "move", "arguments": '{"x": 3, "name": "left"}'},
    }
    talk = [
        {"role": "user", "content": "Go left."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
    ]
    return [
        _chat("tools, the model's choice", {**both, "tool_choice": "auto"}),
        _chat("tools, none", {**both, "tool_choice": "none"}),
        _chat("tools, required", {**both, "tool_choice": "required"}, grammar=True),
        _chat("tools, named", {**both, "tool_choice": named}, grammar=True),
        _chat("tools, required, streamed", {**both, "tool_choice": "required", **_USAGE}, grammar=True),
        _chat("tools, after a call", {**both, "messages": talk}),
        _chat("tools, another name", {**both, "tool_choice": {**named, "function": {"name": "fly"}}}),
    ]


def others() -> list[Ask]:
    """What is not about an answer: tokens, models, versions, and paths that do not exist."""
    said = [{"role": "user", "content": "hi"}]
    return [
        Ask("tokens of a text", "/tokenize", {"model": SERVED, "prompt": _SENTENCE, "return_token_strs": True}),
        Ask("tokens without specials", "/tokenize", {"prompt": "hi", "add_special_tokens": False}),
        Ask("tokens of a chat", "/tokenize", {"model": SERVED, "messages": said}),
        Ask("text of tokens", "/detokenize", {"model": SERVED, "tokens": [0, 263, 300, 301]}),
        Ask("text of an unknown token", "/detokenize", {"model": SERVED, "tokens": [10**9]}),
        _text("a priority", {"priority": 1}),
        Ask("text of no tokens", "/detokenize", {"model": SERVED, "tokens": []}),
        Ask("models", "/v1/models"),
        Ask("version", "/version"),
        Ask("health", "/health"),
        Ask("no such path", "/v1/nothing", {}),
        _text("another model", {"model": "nobody"}),
        _text("last tokens of a prompt", {"prompt": _LONG, "truncate_prompt_tokens": 20, "logprobs": 1}),
        _text("special tokens shown", {"skip_special_tokens": False, "allowed_token_ids": [0, 2, 300]}),
        _text("salted cache", {"cache_salt": "s", "prompt": _LONG}),
        _chat("chat, continued", {"messages": [*said, {"role": "assistant", "content": "So"}],
              "add_generation_prompt": False, "continue_final_message": True}),
        _chat("chat, parts", {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}),
    ]  # fmt: skip


def refused() -> list[Ask]:
    """Nonsense that the API checks and nonsense that reaches the engine's front: an error each, and no dead engine."""
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    return [
        _text("temperature below 0", {"temperature": -0.1}),
        _text("top p of 0", {"top_p": 0}),
        _text("top k of -2", {"top_k": -2}),
        _text("min p of 2", {"min_p": 2}),
        _text("penalty of 3", {"presence_penalty": 3}),
        _text("repetition penalty of 0", {"repetition_penalty": 0}),
        _text("minimum above maximum", {"min_tokens": 13}),
        _text("bias of no token", {"logit_bias": {"100000": 1}}),
        _text("allowed token that is none", {"allowed_token_ids": [100_000]}),
        _text("no allowed token", {"allowed_token_ids": []}),
        _text("empty stop", {"stop": ""}),
        _text("stop token that is none", {"stop_token_ids": ["x"]}),
        _text("seed that is none", {"seed": 2**80}),
        _text("too many log-probabilities", {"logprobs": 1000}),
        _text("too many of the prompt", {"prompt_logprobs": 1000}),
        _text("of the prompt, streamed", {"prompt_logprobs": 1, "stream": True}),
        _text("suffix", {"suffix": "end"}),
        _text("usage without a stream", {"stream_options": {"include_usage": True}}),
        _text("bad regular expression", {"structured_outputs": {"regex": "[a"}}),
        _text("bad grammar", {"structured_outputs": {"grammar": "root ::= ("}}),
        _text("bad schema", {"structured_outputs": {"json": {"type": "nothing"}}}),
        _text("two grammars", {"structured_outputs": {"regex": "a", "choice": ["a"]}}),
        _text("an adapter", {"model": "adapter"}),
        _text("embeddings for a prompt", {"prompt": None, "prompt_embeds": "AAAA"}),
        _text("too long", {"prompt": [5] * (MAX_MODEL_LEN + 1)}),
        _chat("chat, nothing said", {"messages": []}),
        _chat("chat, nobody", {"messages": [{"content": "hi"}]}),
        _chat("chat, a picture", {"messages": [{"role": "user", "content": [picture]}]}),
        _chat("chat, too many log-probabilities", {"logprobs": True, "top_logprobs": 1000}),
        _chat("chat, log-probabilities not asked for", {"top_logprobs": 2}),
        _chat("chat, tool of no list", {"tool_choice": "required"}),
        _chat("chat, unknown format", {"response_format": {"type": "poem"}}),
        _chat("chat, template of the client", {"chat_template": "{{ 1 }}"}),
        Ask("tokens of nothing", "/tokenize", {"model": SERVED}),
        Ask("text of a word", "/detokenize", {"model": SERVED, "tokens": ["x"]}),
        Ask("pooling", "/pooling", {"model": SERVED, "input": "hi"}),
        Ask("embeddings", "/v1/embeddings", {"model": SERVED, "input": "hi"}),
        Ask("scores", "/v1/score", {"model": SERVED, "text_1": "a", "text_2": "b"}),
    ]


PARTS: Mapping[str, Callable[[str, Sequence[int]], list[Ask]]] = {
    "streams": lambda _text, _tokens: streams(),
    "log-probabilities": lambda _text, _tokens: probabilities(),
    "stops": stops,
    "sampling": lambda _text, _tokens: sampling(),
    "several answers": lambda _text, _tokens: several(),
    "tools": lambda _text, _tokens: tools(),
    "other endpoints": lambda _text, _tokens: others(),
    "errors": lambda _text, _tokens: refused(),
    "grammars": lambda _text, _tokens: grammars(),
}
"""The parts of the API, each with what is asked about it."""
