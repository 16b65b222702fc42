# SPDX-License-Identifier: Apache-2.0
"""Tests of a built image. They need an engine and the image, and fail without; `make test` does not run them.

The variables are those of `make image`: SOC (cpu), OS, ARCH, ENGINE; or IMAGE, any reference.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from afd import pins
from afd.errors import ConfigError
from afd.images import cell as matrix
from afd.images import manifest
from afd.images.manifest import Manifest
from afd.testing import golden
from afd.testing.smoke import Outcome
from afd.testing.smoke_record import write_record
from scripts import image as recipe
from tests.image.engine import Engine

Recorded = Callable[[str], AbstractContextManager[Outcome]]
"""What the fixture recorded gives to a test."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.image)


@pytest.fixture(scope="session")
def engine() -> Engine:
    """The engine, with the image under test in it."""
    given = {**os.environ, "SOC": os.environ.get("SOC") or "cpu"}
    try:
        name = recipe.engine_of(given)
        reference = given.get("IMAGE") or matrix.tag(
            recipe.checkout().version, recipe.chosen(pins.load(), given)
        )
    except ConfigError as error:
        pytest.fail(f"the tests of images need an engine: {error}", pytrace=False)
    if name == "buildah":
        pytest.fail("buildah runs no images: install podman or docker", pytrace=False)
    found = Engine(name, reference)
    if found("image", "inspect", reference).returncode:
        pytest.fail(
            f"{name} has no image {reference}: make image SOC={given['SOC']} ENGINE={name}, or IMAGE=…",
            pytrace=False,
        )
    return found


@pytest.fixture(scope="session")
def image(engine: Engine) -> Manifest:
    """What the image says about itself."""
    return manifest.decode(engine.python("print(open('/etc/afd/image.json').read())").encode())


@pytest.fixture
def recorded(request: pytest.FixtureRequest, image: Manifest) -> Recorded:
    """Watches a run and writes its record, a failed one too, when the option --records names a directory."""
    chosen: str | None = request.config.getoption("--records")

    @contextmanager
    def watch(suffix: str) -> Iterator[Outcome]:
        started, outcome = time.monotonic(), Outcome()
        try:
            yield outcome
        except BaseException as error:
            outcome.problems.append(f"{type(error).__name__}: {error}")
            raise
        finally:
            print("\n".join(outcome.held))
            if chosen is not None:
                made = write_record(
                    golden.layout(), outcome, started, Path(chosen), kind="image", suffix=suffix, image=image
                )
                print(f"record: {made}")

    return watch
