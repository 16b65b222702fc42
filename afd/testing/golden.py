# SPDX-License-Identifier: Apache-2.0
"""Golden answers: what native vLLM says to the questions of a smoke run, kept in a file.

``python -m afd.testing.golden --out FILE`` asks unmodified vLLM, one question at a time, and writes the file; an
image's build does that once. Whoever reads it must have the same model, weights included, and the same questions.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import click
import msgspec

from afd import pins
from afd.agent.model_files import resolve
from afd.errors import AFDError, ConfigError
from afd.testing.completions import Answer
from afd.testing.questions import MAX_MODEL_LEN, STEP_TOKENS
from afd.testing.reference import Reference
from afd.testing.smoke import ask_everything, questions
from afd.testing.stack import Layout, SharedLauncher
from afd.topology import Topology

MODEL = "builtin:tiny-deepseek-v2"
KEPT = 2
"""Of the likeliest tokens at each position: their gap says whether a difference is a tie."""


class GoldenAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """As :class:`Answer`; ``top`` holds the log-probabilities of the two likeliest tokens at each position."""

    name: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    top: tuple[tuple[float, ...], ...]
    text: str
    finish: str


class Golden(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``weights`` is a digest of the checkpoint's files, ``asked`` one of the questions."""

    schema: Literal[1] = 1
    model: str
    weights: str
    asked: str
    vllm: str
    runner: str
    dtype: str
    seconds: float
    answers: tuple[GoldenAnswer, ...]

    def for_comparison(self) -> list[Answer]:
        """The answers as :func:`afd.testing.compare.compare_all` takes them. Raises ConfigError when they are not to
        today's questions or not of this model."""
        for what, here, there in (
            ("questions", digest_of_questions(), self.asked),
            (f"weights of {self.model}", digest_of_weights(self.model), self.weights),
            ("version of vLLM", pins.load().vllm_version, self.vllm),
        ):
            if here != there:
                raise ConfigError(
                    f"the golden answers are for other {what} ({there}, here {here}); make them again: "
                    "python -m afd.testing.golden --out FILE"
                )
        return [
            Answer(a.name, list(a.tokens), list(a.logprobs), [list(t) for t in a.top], a.text, a.finish)
            for a in self.answers
        ]


def layout(model: str = MODEL, runner: str = "v2", dtype: str = "float32") -> Layout:
    """1A1F with what a smoke run gives to vLLM."""
    return Layout(
        model=model,
        runner=runner,
        topology=Topology(1, 1),
        vllm_args=(
            *("--dtype", dtype, "--max-model-len", str(MAX_MODEL_LEN)),
            *("--max-num-batched-tokens", str(STEP_TOKENS), "--max-num-seqs", "32"),
        ),
    )


def load(path: Path) -> Golden:
    """Raises ConfigError for a file that is missing or something else."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Golden)
    except OSError as error:
        raise ConfigError(f"golden answers {path}: {error.strerror or error}") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"golden answers {path}: {error}") from None


def digest_of_questions() -> str:
    """Of everything that is asked."""
    return _digest(repr(questions()).encode())


def digest_of_weights(model: str) -> str:
    """Of the files of a model that decide what it says."""
    directory = resolve(model)
    files = sorted([*directory.glob("*.safetensors"), directory / "config.json"])
    return _digest(*(path.read_bytes() for path in files))


def make(chosen: Layout, launcher: str | None = None) -> Golden:
    """Start native vLLM, forked from ``launcher`` or one of its own, ask it everything, end it. Raises AFDError."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="afd-golden-") as directory:
        answers = asyncio.run(_ask(chosen, Path(directory), launcher))
    return Golden(
        model=chosen.model,
        weights=digest_of_weights(chosen.model),
        asked=digest_of_questions(),
        vllm=pins.load().vllm_version,
        runner=chosen.runner,
        dtype=chosen.vllm_args[1],
        seconds=round(time.monotonic() - started, 1),
        answers=tuple(_kept(answer) for answer in answers),
    )


async def _ask(chosen: Layout, directory: Path, launcher: str | None) -> Sequence[Answer]:
    with ExitStack() as scope:
        if launcher is None:
            own = SharedLauncher(directory, chosen.runner)
            scope.callback(own.close)
            own.wait()
            launcher = own.path
        reference = await Reference.start(chosen, directory, launcher)
        try:
            await reference.ready(180)
            return await ask_everything(reference.url, chosen.served, together=False)
        finally:
            await reference.close()


def _kept(answer: Answer) -> GoldenAnswer:
    if len(answer.top) != len(answer.tokens) or any(len(top) < KEPT for top in answer.top):
        raise ConfigError(
            f"native vLLM gave no log-probabilities for {answer.name}, so ties could not be told"
        )
    return GoldenAnswer(
        name=answer.name,
        tokens=tuple(answer.tokens),
        logprobs=tuple(answer.logprobs),
        top=tuple(tuple(top[:KEPT]) for top in answer.top),
        text=answer.text,
        finish=answer.finish,
    )


def _digest(*contents: bytes) -> str:
    state = hashlib.sha256()
    for content in contents:
        state.update(len(content).to_bytes(8, "little") + content)
    return state.hexdigest()[:16]


@click.command()
@click.option(
    "--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The file to write."
)
@click.option("--model", default=MODEL, show_default=True)
@click.option("--runner", default="v2", type=click.Choice(["v1", "v2"]), show_default=True)
def main(out: Path, model: str, runner: str) -> None:
    """Ask native vLLM the questions of a smoke run, and keep its answers."""
    try:
        golden = make(layout(model, runner))
    except AFDError as error:
        print(f"afd: error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(msgspec.json.format(msgspec.json.encode(golden, order="sorted"), indent=1) + b"\n")
    tokens = sum(len(answer.tokens) for answer in golden.answers)
    print(f"{out}: {len(golden.answers)} answers, {tokens} tokens, {golden.seconds:g} s")


if __name__ == "__main__":
    main()
