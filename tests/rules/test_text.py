# SPDX-License-Identifier: Apache-2.0
"""Rules about the text of the files: license, length, hosts, paths, versions, names."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from afd import pins
from tests.rules import text
from tests.rules.sources import ROOT, Source, checkout, clean, python

ALL = checkout()
AFD = python(ALL)
TESTS = python(ALL, "tests/")


def _versions() -> dict[str, str]:
    pinned = pins.load()
    return {
        "AFD": (ROOT / "VERSION").read_text(encoding="utf-8").strip(),
        "vLLM": pinned.vllm_version,
        "vLLM's commit": pinned.vllm_commit,
        "vLLM-Ascend's commit": pinned.ascend_commit,
        "uv": pinned.uv,
        **{f"torch ({name})": row.torch for name, row in pinned.platforms.items()},
        "supervisor": pinned.supervisor,
        "the operators' commit": pinned.images.operators.commit,
        **{
            f"{what} of CANN {row.version}": version
            for row in pinned.images.canns.values()
            for what, version in {
                "the version": row.version,
                "torch": row.torch,
                "torch-npu": row.torch_npu,
                "Triton Ascend": row.triton_ascend,
                "transformers": row.transformers,
                "mooncake": row.mooncake,
            }.items()
        },
    }


def test_every_source_file_says_its_license_at_the_top() -> None:
    clean(text.without_license(ALL))


def test_no_file_is_longer_than_a_person_wants_to_read() -> None:
    clean(text.too_long(ALL))


def test_no_file_names_the_host_of_a_package_registry() -> None:
    clean(text.registry_hosts(ALL))


def test_no_file_names_an_absolute_path_of_one_machine() -> None:
    clean(text.machine_paths(ALL))


def test_no_file_carries_a_note_about_unfinished_work() -> None:
    clean(text.unfinished(ALL))


def test_a_version_is_written_in_one_place_only() -> None:
    clean(text.repeated_versions(ALL, _versions()))


def test_attributes_are_accessed_directly_except_on_untyped_input() -> None:
    clean(text.dynamic_attributes(AFD))


def test_ascend_packages_are_named_in_leaves_only() -> None:
    clean(text.ascend_names(AFD))


def test_every_test_is_named_by_a_sentence() -> None:
    clean(text.short_test_names(TESTS))


def test_no_test_is_skipped() -> None:
    clean(text.skipped_tests(TESTS))


@pytest.mark.parametrize(
    ("rule", "path", "content"),
    [
        (text.skipped_tests, "tests/unit/test_a.py", "pytest.sk" + "ip('not here')"),
        (
            text.skipped_tests,
            "tests/unit/test_a.py",
            "@pytest.mark.sk" + "ipif(True, reason='')\ndef f(): ...",
        ),
        (
            text.skipped_tests,
            "tests/unit/test_a.py",
            "from pytest import importorsk" + "ip\nimportorsk" + "ip('x')",
        ),
        (text.without_license, "afd/a.py", '"""A module."""\n'),
        (text.without_license, "afd/a.c", "\n\n\n/* " + text.SPDX + " */\n"),
        (text.too_long, "docs/a.md", "a\n" * (text.MAX_LINES + 1)),
        (text.registry_hosts, "requirements/a.txt", "--index-url https://files.python" + "hosted.org/simple"),
        (text.machine_paths, "README.md", "cd /" + "work/main"),
        (text.machine_paths, "Makefile", "CACHE := /" + "root/.cache"),
        (text.unfinished, "afd/a.py", "# TO" + "DO: later"),
        (text.dynamic_attributes, "afd/control/a.py", "getattr(x, 'y')"),
        (text.dynamic_attributes, "afd/control/a.py", "any(map(hasattr, x, y))"),
        (text.ascend_names, "afd/attention/mixin.py", "if device == 'torch_npu': pass"),
        (text.ascend_names, "afd/models/a.py", "importlib.import_module('vllm_ascend')"),
        (text.ascend_names, "afd/models/a.py", "from vllm_ascend import x"),
        (text.ascend_names, "afd/models/a.py", "rebind('vllm_ascend.ops', f=g)"),
        (text.short_test_names, "tests/unit/test_a.py", "async def test_two_words(): ..."),
    ],
)
def test_a_file_that_breaks_a_rule_is_found(
    rule: Callable[[tuple[Source, ...]], list[str]], path: str, content: str
) -> None:
    (found,) = rule((Source(path, content),))
    assert found.startswith(path)


@pytest.mark.parametrize(
    ("rule", "path", "content"),
    [
        (text.without_license, "docs/a.md", "No license line needed."),
        (text.too_long, "requirements/cpu.txt", "a\n" * 5000),
        (text.machine_paths, "afd/a.py", "build/wo" + "rk/main and /workspace/x and docs/home/index"),
        (text.dynamic_attributes, "afd/config/kinds.py", "getattr(config, 'hidden_size')"),
        (text.ascend_names, "afd/ffn/ascend.py", "import torch_npu"),
        (text.ascend_names, "afd/images/manifest.py", "torch_npu: str"),
        (text.ascend_names, "afd/cli/doctor.py", "wanted = manifest.torch_npu"),
        (text.ascend_names, "afd/control/a.py", "versions = {'vllm_ascend': pins.load().ascend_commit}"),
        (text.short_test_names, "tests/unit/test_a.py", "def test_three_whole_words(): ..."),
        (text.skipped_tests, "tests/unit/test_a.py", "Counts(skipped=0)  # a word about sk" + "ip"),
    ],
)
def test_a_file_that_keeps_a_rule_is_not_reported(
    rule: Callable[[tuple[Source, ...]], list[str]], path: str, content: str
) -> None:
    assert rule((Source(path, content),)) == []


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("needs vllm 4.5.6.", 1),
        ("vllm==4.5.6+cpu", 1),
        ("tag v4.5.6", 1),
        ("4.5.61 and 14.5.6 and 1.4.5.6 and 4.5.6.7", 0),
        ("at " + "abcdef012" + " it was", 1),
    ],
)
def test_a_repeated_version_is_found_but_not_inside_a_longer_one(content: str, expected: int) -> None:
    versions = {"vLLM": "4.5.6", "its commit": "abcdef012" + "0" * 31}
    assert len(text.repeated_versions((Source("docs/a.md", content),), versions)) == expected


def test_a_version_may_stand_in_a_lock() -> None:
    assert text.repeated_versions((Source("requirements/a.txt", "4.5.6"),), {"vLLM": "4.5.6"}) == []
