# SPDX-License-Identifier: Apache-2.0
"""Words that nobody may read in what a role says: keys of the API, tokens of the hub and of the run.

vLLM logs its arguments when it starts, and its errors may quote them; a command line can be read by every user of the
machine. So what can travel in the environment does, and the rest is blanked out where it would be shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from afd.agent.vllm_arguments import VllmArguments
from afd.config import AFDConfig
from afd.errors import ConfigError, UnsupportedError

KEY_FLAG, KEY_VARIABLE = "--api-key", "VLLM_API_KEY"
HUB_FLAG, HUB_VARIABLES = "--hf-token", ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_VARIABLES = {KEY_FLAG: KEY_VARIABLE, HUB_FLAG: HUB_VARIABLES[0]}
SHORTEST = 4
"""Characters of a word that is worth to be hidden. To blank out every "a" would leave nothing to read."""
BLANK = "***"


class Secrets:
    """Blanks out some words."""

    def __init__(self, words: Iterable[str] = ()) -> None:
        # Long ones first: one may be the beginning of another.
        self._words = sorted({word for word in words if len(word) >= SHORTEST}, key=len, reverse=True)

    def hide(self, text: str) -> str:
        """``text`` without them."""
        for word in self._words:
            text = text.replace(word, BLANK)
        return text

    def __repr__(self) -> str:
        return f"Secrets({len(self._words)})"


def of_role(arguments: VllmArguments, environment: Mapping[str, str], config: AFDConfig) -> Secrets:
    """Those that a role knows."""
    words = [word for given in arguments.given if given.flag in _VARIABLES for word in given.values]
    words += [environment.get(name, "") for name in (KEY_VARIABLE, *HUB_VARIABLES)]
    try:
        words.append((config.token() or b"").decode("utf-8", "replace"))
    except ConfigError:  # told when the token is needed
        pass
    return Secrets(words)


def off_the_command_line(arguments: VllmArguments) -> tuple[list[str], dict[str, str]]:
    """Flags of vLLM to leave out, and the variables that say the same: one key of the API and a token of the hub.

    Several keys have no variable.
    """
    keys, tokens = arguments.values.get(KEY_FLAG, ()), arguments.values.get(HUB_FLAG, ())
    flags, variables = [], {}
    if len(keys) == 1:
        flags.append(KEY_FLAG)
        variables[KEY_VARIABLE] = keys[0]
    if len(tokens) == 1:  # without a value it means the user's login
        flags.append(HUB_FLAG)
        variables[HUB_VARIABLES[0]] = tokens[0]
    return flags, variables


def refuse_what_stays(arguments: VllmArguments) -> None:
    """Raises UnsupportedError for keys and tokens that :func:`off_the_command_line` has no variable for."""
    gone, _ = off_the_command_line(arguments)
    for given in arguments.given:
        if given.flag in _VARIABLES and given.flag not in gone and given.values:
            raise UnsupportedError(
                f"{given.flag}: give one value, once, or {_VARIABLES[given.flag]}; more would have to stay on command "
                "lines, which everybody on this machine can read"
            )


def command_line_without(
    command: Sequence[str], arguments: VllmArguments
) -> tuple[list[str], dict[str, str]]:
    """``command``, which contains vLLM's ``arguments``, as it has to be run again to show no secret to who looks at the
    processes of this machine, and the variables to run it with. The same command when there is nothing to hide."""
    flags, variables = off_the_command_line(arguments)
    words = list(command)
    for given in arguments.given:
        if given.flag in flags:
            at = _find(words, given.raw)
            del words[at : at + len(given.raw)]
    return words, variables


def _find(words: Sequence[str], part: Sequence[str]) -> int:
    """Where ``part`` begins in ``words``, for the last time."""
    return max(at for at in range(len(words)) if tuple(words[at : at + len(part)]) == tuple(part))
