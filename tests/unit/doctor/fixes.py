# SPDX-License-Identifier: Apache-2.0
"""Does what a remedy says, word by word, to a tree: a person with a terminal, who reads and types."""

from __future__ import annotations

import re
import subprocess
import sys

from afd.doctor.check import GIB
from afd.doctor.subject import Space
from tests.unit.doctor.roots import Root


def apply(root: Root, remedy: str) -> None:
    """Do the first of the alternatives that says what to do. Raises AssertionError when none of them does."""
    for alternative in re.split(r"[;,]? or (?!newer)", remedy):
        if _do(root, alternative):
            return
    raise AssertionError(f"nobody could do this: {remedy}")


def _do(root: Root, text: str) -> bool:
    done = False
    for name in re.findall(r"--device (\S+)", text):
        root.node(name)
        done = True
    for source, target in re.findall(r"-v ([^\s:]+):([^\s:]+):ro", text):
        root.mount(source, target)
        done = True
    restarted = False
    for name, value in re.findall(r"--env (\w+)=([^\s,;]+)", text):
        root.env[name] = value
        done = restarted = True
    for name in re.findall(r"unset ([A-Z_]+)", text):
        del root.env[name]
        done = restarted = True
    for group in re.findall(r"--group-add (\d+)", text):
        root.groups.add(int(group))
        done = True
    for user, group in re.findall(r"--user (\d+):(\d+)", text):
        root.uid, root.groups = int(user), {int(group)}
        done = True
    for size in re.findall(r"--shm-size (\d+)g", text):
        root.space = Space(int(size) * GIB, int(size) * GIB)
        done = True
    for version in re.findall(r"upgrade the driver of the host to (\S+)", text):
        root.driver(version)
        done = True
    if "without --entrypoint" in text:
        root.image()
        done = True
    if "remove --privileged" in text:
        root.write("/proc/self/status", "CapEff:\t00000000a80425fb\n")
        done = True
    for command in re.findall(r"run: ([^;]+)", text):
        done = True
        if match := re.fullmatch(r"pip install '([\w.-]+?)(?:[=>]=([\d.]+\S*))?'", command):
            root.dist(match[1], match[2] or "9")
        elif match := re.fullmatch(r"pip uninstall (\S+)", command):
            root.undist(match[1])
        elif command == "make digests":
            pass  # it fills in a file that the next build reads
        else:
            # Nothing but these, and nothing outside the tree.
            assert re.match(r"chmod |rm |echo ", command) and str(root.root) in command, command
            subprocess.run(["sh", "-c", command], check=True, timeout=30, stdout=sys.stderr)
    if "make image SOC=" in text:
        assert f"SOC={root.soc}" in text or "SOC=…" in text
        root.image()
        if root.npu:
            root.mount("/etc/hccn.conf", "/etc/hccn.conf")
        done = True
    if restarted:
        root.first_process()
    return done
