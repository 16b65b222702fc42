# SPDX-License-Identifier: Apache-2.0
"""afd/images/page.py: the lines that start a container come from the rows."""

from __future__ import annotations

import shlex

from afd import pins
from afd.images import page

IMAGES = pins.load().images


def options(parts: list[str], name: str) -> list[str]:
    """The values of every option ``name`` in the command."""
    words = shlex.split(" ".join(parts))
    return [words[i + 1] for i, word in enumerate(words) if word == name]


def test_a_container_gets_its_cards_and_every_node_and_mount_of_its_row() -> None:
    for soc in IMAGES.socs.values():
        parts = page.docker_run(soc, "image", (2, 5))
        assert options(parts, "--device") == ["/dev/davinci2", "/dev/davinci5", *soc.device_nodes]
        assert options(parts, "-v") == [*(f"{p}:{p}:ro" for p in soc.mounts), "/models:/models:ro"]
        assert parts[-1] == "image doctor"
        assert "--privileged" not in " ".join(parts)


def test_only_the_row_that_asks_for_it_shares_the_network_of_the_host() -> None:
    found = {name for name, soc in IMAGES.socs.items() if "--net=host" in page.docker_run(soc, "i")}
    assert found == {"a5"}


def test_under_the_ascend_runtime_a_container_names_its_cards_and_brings_nothing() -> None:
    parts = page.runtime_run("image", (0, 3))
    assert options(parts, "-e") == ["ASCEND_VISIBLE_DEVICES=0,3"]
    assert options(parts, "--device") == []


def test_the_page_shows_every_image_and_says_that_none_ran_on_a_device() -> None:
    text = page.render(pins.load(), "1.2.3")
    assert text.count("| `afd:1.2.3-") == 14
    assert "Nothing here has run on an NPU" in text
    assert text.count("docker run --rm") == 2 * len(IMAGES.socs)
