# SPDX-License-Identifier: Apache-2.0
"""Where the linker looks, and libraries read as files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from afd.doctor import elf, search
from afd.doctor.subject import Subject
from tests.unit.doctor.roots import Root, library


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path, "cpu")


def test_directories_come_in_the_order_of_the_linker(root: Root) -> None:
    root.env["LD_LIBRARY_PATH"] = "/a::/b"
    root.write("/etc/ld.so.conf", "include ld.so.conf.d/*.conf\n/c # why\n")
    found = search.search_path(root.subject())
    assert found[:4] == ["/a", "/b", "/usr/local/lib", "/c"] and found[-1] == "/usr/lib"


def test_a_configuration_that_includes_itself_ends(root: Root) -> None:
    root.write("/etc/ld.so.conf", "include /etc/ld.so.conf\n/c\n")
    assert "/c" in search.search_path(root.subject())


def test_what_a_library_needs_is_looked_for_in_depth(root: Root) -> None:
    top = root.write("/usr/lib/libtop.so", library(needs=("libmiddle.so",)))
    root.write("/usr/lib/libmiddle.so", library(needs=("libbottom.so",)))
    assert search.unresolved(root.subject(), top) == "libbottom.so"
    root.write("/usr/lib/libbottom.so", library(needs=("libtop.so",)))
    assert search.unresolved(root.subject(), top) == ""


def test_symbols_are_those_that_others_may_use(root: Root) -> None:
    path = root.write("/x.so", library(("offered",), wants=("wanted",)))
    assert elf.undefined(path, ["offered", "wanted", "absent"]) == ["wanted", "absent"]
    assert elf.machine(path) == os.uname().machine


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\n", b"\x7fELF", library()[:4] + bytes(60)])
def test_a_file_that_is_no_library_is_told_as_such(root: Root, content: bytes) -> None:
    path = root.write("/x.so", content)
    for read in (elf.machine, elf.needed, elf.offered):
        with pytest.raises(elf.NotELF, match=r"/x\.so"):
            read(path)


@pytest.mark.parametrize("cut", [100, 1000, 9000])
def test_a_library_that_is_cut_off_is_told_as_such(root: Root, cut: int) -> None:
    path = root.write("/x.so", library(("offered",))[:cut])
    with pytest.raises(elf.NotELF):
        elf.offered(path)


def test_links_lead_nowhere_outside_the_root(root: Root) -> None:
    subject = root.subject()
    for name, target in (("up", "../../../etc/passwd"), ("absolute", "/etc/passwd"), ("loop", "/loop")):
        root.path(f"/{name}").symlink_to(target)
    assert subject.path("/up") == subject.path("/absolute") == root.path("/etc/passwd")
    assert subject.path("/../../etc/passwd") == root.path("/etc/passwd")
    with pytest.raises(OSError, match="too many links"):
        subject.path("/loop")


def test_the_running_machine_is_read_as_it_is() -> None:
    assert Subject().path("/etc/../etc/passwd") == Path("/etc/../etc/passwd")
