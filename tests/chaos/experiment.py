# SPDX-License-Identifier: Apache-2.0
"""One experiment: into the phase, the deed and its proof, what the group makes of it, and the next request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from afd.agent.leftovers import mapped_by, runs
from afd.errors import AFDError
from afd.support.records import Commits
from afd.testing.compare import compare_all
from afd.testing.completions import ask_all
from afd.testing.records import now
from afd.testing.stack import Group
from afd.topology import Role
from tests.chaos import faults, judging
from tests.chaos.cells import Cell, Fault, Phase
from tests.chaos.expected import END_S, KILLED, Expected, expected
from tests.chaos.faults import Deed
from tests.chaos.judging import Seen
from tests.chaos.results import SECONDS, Result, public
from tests.chaos.scene import PhaseMissedError, Scene, body, said, usage
from tests.chaos.stand import READY_S, Stand
from tests.chaos.traffic import DECODE, PROOFS, SERVED, Traffic

ATTEMPTS = 6
"""How often a deed may come too late for its phase. Nothing else is tried again."""
CLIENT_S = 3.0
"""How long a request may stay open when the group has ended, or when all that it waits for has been computed."""
GONE_S = 1.5
"""How long processes may take to be gone when their agent has ended. Without it, only the kernel ends them."""
SLACK_S = 15.0
"""How much longer than it should take an experiment looks on, to tell late from never."""
LONG_S = 90.0
"""The same where all requests may get their answers, which takes its time on a busy machine."""


def run(
    cell: Cell, stand: Stand, commits: Commits, attempt: Callable[[Cell, Stand], Trial] | None = None
) -> Result:
    """Do the experiment of a cell. What goes wrong is in the result, and so is each ``attempt`` that came too late."""
    began = time.monotonic()
    missed: list[str] = []
    while True:
        trial = (attempt or Trial)(cell, stand)
        trial.attempt()
        if not trial.missed or len(missed) + 1 == ATTEMPTS:
            break
        missed.append(trial.error)
    problems = ([trial.error] if trial.error else []) + trial.problems
    return Result(
        cell=str(cell),
        outcome="error" if trial.error else "failed" if problems else "passed",
        commit=commits.afd,
        dirty=commits.dirty,
        date=now(),
        duration_s=round(time.monotonic() - began, 1),
        proof=trial.deed.proof if trial.deed else "",
        survived=trial.seen.survived,
        noticed_s={str(role): round(at, SECONDS) for role, at in trial.seen.noticed.items()},
        ended_s={str(role): round(at, SECONDS) for role, at in trial.seen.ended.items()},
        codes={str(role): code for role, code in trial.seen.codes.items()},
        causes={str(role): public(words) for role, words in trial.seen.causes.items()},
        clients=str(trial.scene.traffic or "") if trial.scene else "",
        again_s=None if trial.again_s is None else round(trial.again_s, SECONDS),
        problems=tuple(public(problem) for problem in problems),
        attempts=len(missed) + 1,
        missed=tuple(public(words) for words in missed),
    )


def _more(now: tuple[int, int], before: tuple[int, int]) -> bool:
    """Whether there are more threads, or more sockets than the one with which Attention's agent asks its server for its
    health, some time after it is ready."""
    return now[0] > before[0] or now[1] > before[1] + 1


@dataclass
class Trial:
    """One attempt at a cell. Times are seconds after the deed."""

    cell: Cell
    stand: Stand
    error: str = ""
    """Why it did not come off; ``missed`` when that is only because the deed came too late."""
    missed: bool = False
    problems: list[str] = field(default_factory=list)
    scene: Scene | None = None
    deed: Deed | None = None
    seen: Seen = field(default_factory=Seen)
    again_s: float | None = None
    _groups: list[Group] = field(default_factory=list)
    _replaced: bool = False
    _healed: bool = False

    def attempt(self) -> None:
        """Do it, and leave nothing. A group that does not start, or does not get to the phase, has failed."""
        try:
            self.run()
        except AFDError as error:
            self.problems.append(f"{type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001 (what breaks an experiment is its result, and others follow)
            self.error = f"{type(error).__name__}: {error}"
            self.missed = isinstance(error, PhaseMissedError)
        finally:
            self.close()

    def run(self) -> None:
        """Raises AFDError for the group, PhaseMissedError and NoEffectError for the experiment."""
        cell, stand = self.cell, self.stand
        if cell.phase.serving:
            group = stand.take(cell)
        else:
            stand.rest()
            group = stand.make(cell)
        self._groups.append(group)
        self.scene = scene = Scene(cell, stand, group)
        scene.reach()
        self.deed = deed = self._do()
        scene.check(deed)
        if cell.phase is Phase.RENDEZVOUS:
            self._sequel_of_rendezvous()
        else:
            self._watch()
        self._heal()
        self._judge()
        self._after()

    # ---- the deed -----------------------------------------------------------------------------------------

    def _do(self) -> Deed:
        scene, cell = self.scene, self.cell
        assert scene is not None
        match cell.fault:
            case Fault.KILL | Fault.STOP:
                assert scene.victim is not None
                deed = (faults.kill if cell.fault is Fault.KILL else faults.stop)(scene.victim)
            case Fault.CLOSE:
                deed = (scene.connections or scene.connections_to_peers()).shut()
            case Fault.CUT:
                assert scene.stand.room is not None, "the network is cut in namespaces only"
                deed = faults.cut(scene.stand.room, scene.group.ports["rendezvous"])
            case Fault.FILL:
                assert scene.stand.room is not None, "shared memory is filled in namespaces only"
                deed = faults.fill()
        if cell.phase is Phase.IDLE and cell.fault in (Fault.STOP, Fault.FILL) and not cell.target.is_agent:
            # Nobody misses what nobody needs.
            scene.traffic = Traffic(scene.group.attention.api_url, DECODE)
        return deed

    def _heal(self) -> None:
        if self.deed is not None and not self._healed:
            self._healed = True
            self.deed.heal()

    # ---- what the group makes of it -------------------------------------------------------------------------

    def _sequel_of_rendezvous(self) -> None:
        """The peer comes. After a kill, so does the one that was killed, again."""
        scene, cell = self.scene, self.cell
        assert scene is not None and self.deed is not None
        first = cell.target.role or Role.FFN
        second = Role.FFN if first is Role.ATTENTION else Role.ATTENTION
        if cell.fault is Fault.KILL:
            self.seen.codes[first] = scene.group.roles[first].wait(2)
            self.seen.ended[first] = time.monotonic() - self.deed.at
            scene.group.directory = scene.group.directory / "again"
            scene.group.directory.mkdir(exist_ok=True)
            self.stand.start(scene.group, second, first)
            return
        self.stand.start(scene.group, second)
        self._watch()

    def _watch(self) -> None:
        """Look on until the group has done what it should, or clearly will not."""
        scene, deed = self.scene, self.deed
        assert scene is not None and deed is not None
        right = expected(self.cell)
        deadline = deed.at + right.bound_s + END_S + (LONG_S if right.may_survive else SLACK_S)
        while time.monotonic() < deadline:
            self._look(scene.group, deed)
            self._intervene(scene, right)
            if self._over(scene, right):
                return
            time.sleep(0.01)

    def _look(self, group: Group, deed: Deed) -> None:
        for role, process in group.roles.items():
            if role not in self.seen.ended and process.exit_code is not None:
                self.seen.ended[role] = time.monotonic() - deed.at
                self.seen.codes[role] = process.exit_code
            if role not in self.seen.causes and (found := said(group, role).cause(deed.clock)):
                self.seen.noticed[role], self.seen.causes[role] = max(0.0, found[0] - deed.clock), found[1]

    def _intervene(self, scene: Scene, right: Expected) -> None:
        """What somebody would do who looks after the group: a pod that is gone is started again, a network is repaired,
        and a machine that was stopped goes on, when the others have noticed."""
        cell = self.cell
        noticed = all(role in self.seen.noticed or role in self.seen.ended for role in right.notices)
        if right.notices and noticed and cell.fault in (Fault.CUT, Fault.STOP, Fault.FILL):
            self._heal()
        unharmed = right.may_survive and scene.traffic is None and not self.seen.causes
        if unharmed and all(body(scene.group, role).get("state") == "ready" for role in Role):
            # Nobody needed it so far.
            scene.traffic = Traffic(scene.group.attention.api_url, DECODE)
        if not right.notices and self.seen.ended:  # the peer waited in vain
            self._heal()
        if cell.rejoins and cell.fault is Fault.KILL and cell.target.is_agent and not self._replaced:
            role = cell.target.role
            assert role is not None
            if role in self.seen.ended:
                self._replaced = True
                scene.group.directory = scene.group.directory / "again"
                scene.group.directory.mkdir(exist_ok=True)
                self.stand.start(scene.group, role)

    def _over(self, scene: Scene, right: Expected) -> bool:
        """Whether nothing more is expected to happen."""
        if right.may_survive and scene.traffic is not None and scene.traffic.over:
            self.seen.survived = not scene.traffic.errors and not self.seen.causes
            if not self.seen.causes:
                drained = self.cell.phase is not Phase.DRAIN or len(self.seen.ended) == len(Role)
                return self.seen.survived and drained
        if not self.cell.rejoins:
            return len(self.seen.ended) == len(Role)
        if any(code != KILLED for code in self.seen.codes.values()):
            return len(self.seen.ended) == len(Role)  # it should have stayed
        return all(role in self.seen.causes for role in right.notices) and self._formed_again(scene)

    def _formed_again(self, scene: Scene) -> bool:
        bodies = [body(scene.group, role) for role in Role]
        if all(found.get("state") == "ready" and found["epoch"] != scene.epoch for found in bodies):
            assert self.deed is not None
            self.again_s = time.monotonic() - self.deed.at
            return True
        return False

    # ---- was it right ---------------------------------------------------------------------------------------

    def _judge(self) -> None:
        scene, deed, cell = self.scene, self.deed, self.cell
        assert scene is not None and deed is not None
        self.problems += judging.problems(cell, self.seen, str(scene.victim.pid) if scene.victim else "")
        if scene.traffic is not None:
            scene.traffic.join(CLIENT_S)
            self.problems += [f"{name}: its client hangs" for name in scene.traffic.hanging]
            self.problems += scene.traffic.wrong(self.stand.native)
        if judging.leaves_nothing(cell, self.seen):
            self.problems += [f"left behind: {left}" for left in self._left()]

    def _left(self) -> list[str]:
        """What is still there of the processes and files that were there before the deed, and should not be."""
        assert self.scene is not None
        traces, victim = self.scene.traces, self.scene.victim
        if self.cell.rejoins:
            # FFN's processes keep their weights when nothing was wrong with them, and with those what is theirs.
            stay = ("attention agent", "ffn agent", "attention launcher", "ffn launcher", "rank F")
            killed = victim if self.cell.fault in (Fault.KILL, Fault.STOP) else None
            if self.cell.fault is Fault.STOP and self.cell.target.is_agent:
                killed = None  # it goes on
            kept = {
                process
                for name, process in traces.processes.items()
                if name.startswith(stay) and process != killed and runs(process)
            }
            ranks = [p for name, p in traces.processes.items() if name.startswith("rank F") and p in kept]
            kept |= {below for process in ranks for below in process.children(recursive=True)}
            traces.processes = {n: p for n, p in traces.processes.items() if p not in kept}
            traces.shm -= set().union(*(mapped_by(process.pid) for process in kept))
        return traces.left_after(GONE_S)

    def _after(self) -> None:
        """The next request is right: of the same group when it has stayed, else of one on its ports."""
        scene, cell = self.scene, self.cell
        assert scene is not None
        group = scene.group
        stays = (
            self.seen.survived
            or cell.rejoins
            or (cell.phase is Phase.RENDEZVOUS and cell.fault is Fault.KILL)
        )
        if (self.seen.survived and cell.phase is Phase.DRAIN) or any(
            group.roles[role].exit_code is not None for role in group.roles
        ):
            stays = False
        if not stays:
            group.__exit__()
            group = self.stand.make(cell, scene.group)
            self._groups.append(group)
            self.stand.start(group)
        waited = self.stand.ready(group)
        self.again_s = waited if self.again_s is None else self.again_s
        answers = asyncio.run(
            ask_all(group.attention.api_url, SERVED, PROOFS, concurrency=1, timeout_s=READY_S)
        )
        native = [self.stand.native[question.name] for question in PROOFS]
        wrong = compare_all(PROOFS, native, answers).failures
        self.problems += [f"afterwards, {verdict.name}: {verdict.reason}" for verdict in wrong]
        self._judge_remains(scene, group, stays)
        self._groups.remove(group)
        self.stand.give(cell, group)

    def _judge_remains(self, scene: Scene, group: Group, stays: bool) -> None:
        """Directories of those that have ended are gone, those that stayed use no more than before."""
        names = self.stand.left_in_temporary()
        if stays and len(names) > max(len(scene.temporary), len(Role)):
            self.problems.append(f"temporary directories: {len(scene.temporary)} before, {len(names)} now")
        if not stays and (old := names & scene.temporary):
            self.problems.append(f"temporary directories are left: {', '.join(sorted(old))}")
        if not stays:
            return
        deadline = time.monotonic() + CLIENT_S
        for role, (threads, sockets) in scene.resources.items():
            process = group.roles[role].process
            if process.pid != scene.traces.pids[f"{role} agent"]:
                continue  # a new one
            while _more(found := usage(process.pid), (threads, sockets)) and time.monotonic() < deadline:
                time.sleep(0.05)
            if _more(found, (threads, sockets)):
                self.problems.append(
                    f"{role} agent: {threads} threads and {sockets} sockets before, {found[0]} and {found[1]} now"
                )

    def close(self) -> None:
        """Whatever is still up has no further use."""
        self._heal()
        for group in self._groups:
            group.__exit__()
