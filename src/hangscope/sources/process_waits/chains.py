"""From one process along its waits to the one that does not move: what holds it up, in whatever language.

A wait is followed where the kernel names the other end. An event loop that watches many connections waits for none of
them in particular, a server that waits for work waits for nobody: neither leads anywhere. What a chain ends at says
itself how sure it is; the chain is as sure as its weakest step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hangscope.sources.process_waits.schema import NodeWaits, SeenProcess, Target, Wait

MOST_STEPS = 32
POLLS = 3
"""A thread that is given a core more often than so between two looks asks again and again."""
WORKS_S = 0.2
"""Seconds of CPU between two looks."""
ENDS: Mapping[str, str] = {
    "stopped": "is stopped",
    "disk": "sleeps uninterruptibly in the kernel",
    "zombie": "has ended, and its parent has not asked for its status",
    "dead": "is gone",
    "works": "is at work",
    "sleeps": "sleeps for a time",
    "idle": "waits for work",
    "own": "waits for a thread of its own",
    "outside": "is no process that is seen here",
    "cycle": "waits for one that waits for it",
    "file": "is in a call on a file",
    "unknown": "does not show what it waits for",
}
"""What a chain may end with."""
_FIRM = ("inode", "lock", "owner", "parent")
_PLACE = ("tcp", "udp", "unix", "pipe", "fifo", "lock", "semaphore", "queue", "child", "file")

Place = tuple[str, int]
"""(node, pid)."""


@dataclass(frozen=True, slots=True)
class Step:
    """One process of a chain, and what it waits in; the last one's wait leads nowhere."""

    node: str
    process: SeenProcess | None
    wait: Wait | None = None
    target: Target | None = None


@dataclass(frozen=True, slots=True)
class Chain:
    steps: tuple[Step, ...]
    end: str
    """One of ENDS, about the last step; about its target where that is `outside` or `dead`."""
    sure: bool
    """Whether every step rests on what the kernel says of both ends, seen blocked at two looks."""
    why_not: tuple[str, ...] = field(default=())

    @property
    def last(self) -> Step:
        return self.steps[-1]


class ProcessGraph:
    """The processes and waits of all nodes, with connections between nodes joined by their addresses."""

    def __init__(self, nodes: Mapping[str, NodeWaits]) -> None:
        self.processes: dict[Place, SeenProcess] = {}
        self._waits: dict[Place, list[Wait]] = {}
        self._holders: dict[tuple[str, str], list[Place]] = {}
        self._listeners: dict[str, list[Place]] = {}
        self._hidden = any(node.not_visible for node in nodes.values())
        for name, node in sorted(nodes.items()):
            for process in node.processes:
                place = (name, process.pid)
                self.processes[place] = process
                for local, peer in process.sockets:
                    self._holders.setdefault((local, peer), []).append(place)
            for wait in node.waits:
                self._waits.setdefault((name, wait.pid), []).append(wait)

    def place_of_rank(self, rank: int) -> Place | None:
        found = [place for place, process in self.processes.items() if process.rank == rank]
        return found[0] if len(found) == 1 else None

    def waits_of(self, place: Place) -> list[Wait]:
        return self._waits.get(place, [])

    # ---- following ---------------------------------------------------------------------------------------------------

    def follow(self, start: Place) -> Chain | None:
        """The chain from a process; None where it is not seen, or waits for no other program."""
        if start not in self.processes or not self._leading(start, None):
            return None
        steps: list[Step] = []
        doubts: list[str] = []
        at = start
        came: Target | None = None
        visited: list[Place] = []
        while len(steps) < MOST_STEPS:
            process = self.processes.get(at)
            visited.append(at)
            end = _own_end(process)
            if end:
                return _chain([*steps, Step(at[0], process)], end, doubts)
            leading = self._leading(at, came)
            if not leading:
                return _chain([*steps, Step(at[0], process, *self._resting(at))], self._rest(at, came), doubts)
            if len({others for _, _, others in leading}) > 1:
                doubts.append(f"process {at[1]} waits for several at once")
            wait, target, others = leading[0]
            if wait.woke > POLLS:
                doubts.append(f"process {at[1]} asks again and again")
            if target.sure and target.sure not in _FIRM:
                doubts.append(_DOUBTS.get(target.sure, f"known by {target.sure} alone"))
            steps.append(Step(at[0], process, wait, target))
            if not others:
                return _chain(steps, self._nobody(target), doubts)
            if len(others) > 1:
                doubts.append(f"{len(others)} processes hold the other end of {target.what}")
            following = next((other for other in others if other not in visited), None)
            if following is None:
                back = visited.index(others[0])
                return _chain(steps[back:], "cycle", doubts)
            at = following
            came = target
        return _chain(steps, "unknown", [*doubts, "the chain is longer than is followed"])

    def _leading(self, place: Place, came: Target | None) -> list[tuple[Wait, Target, tuple[Place, ...]]]:
        """The waits of a process that lead to another one or out of the job, the main thread's first.

        Where we came by a connection, a thread that waits to read from that same one waits for us, and leads back.
        """
        found = []
        for wait in sorted(self.waits_of(place), key=lambda wait: (not wait.main, wait.thread)):
            target = _meant(wait)
            if target is None:
                continue
            others = self._others(place, target)
            if came is not None and _is_same_connection(target, came):
                continue
            if target.pids and set(target.pids) == {place[1]}:
                continue  # both ends are its own, as those by which an event loop is woken up
            if others or target.gone or (target.peer and not _is_idle_end(target)):
                found.append((wait, target, others))
        return found

    def _others(self, place: Place, target: Target) -> tuple[Place, ...]:
        here = tuple((place[0], pid) for pid in target.pids if pid != place[1])
        if here or not target.peer:
            return here
        return tuple(other for other in self._holders.get((target.peer, target.local), ()) if other != place)

    def _nobody(self, target: Target) -> str:
        if target.gone:
            return "dead"
        return "outside"

    def _resting(self, place: Place) -> tuple[Wait | None, Target | None]:
        """What the last process of a chain is in itself."""
        waits = sorted(self.waits_of(place), key=lambda wait: (not wait.main, wait.thread))
        wait = waits[0] if waits else None
        return wait, wait.targets[0] if wait is not None and len(wait.targets) == 1 else None

    def _rest(self, place: Place, came: Target | None) -> str:
        """What a process is that waits for no other."""
        process = self.processes[place]
        waits = self.waits_of(place)
        if process.cpu_s >= WORKS_S or process.state == "R":
            return "works"
        if not process.visible or not waits:
            return "unknown"
        main = next((wait for wait in waits if wait.main), waits[0])
        kinds = {target.kind for target in main.targets}
        serves = [wait for wait in waits if wait.any_of or any(target.kind == "listen" for target in wait.targets)]
        if came is not None and (serves or any(_is_same_connection(t, came) for w in waits for t in w.targets)):
            return "idle"
        if kinds == {"timer"}:
            return "sleeps"
        if kinds == {"file"}:
            return "file"
        return "own" if kinds == {"futex"} else "unknown"


_DOUBTS = {
    "listens": "known by the port alone: the connection has not been accepted, or its other end is not seen",
    "mapping": "known by the memory that they share alone",
    "last": "known as the last that changed it alone",
}


def _own_end(process: SeenProcess | None) -> str:
    if process is None:
        return "unknown"
    return {"T": "stopped", "t": "stopped", "D": "disk", "Z": "zombie", "X": "dead"}.get(process.state, "")


def _meant(wait: Wait) -> Target | None:
    """The one thing that a wait is about; None where it is about several, about time, or about work to come."""
    targets = [target for target in wait.targets if target.kind in _PLACE or (target.kind == "futex" and target.pids)]
    if wait.any_of:
        # A client's own wake-up beside its connection says nothing; several connections say nothing either.
        others = [target for target in wait.targets if target.kind in ("listen", "inotify", "timer")]
        return targets[0] if len(targets) == 1 and not others else None
    return targets[0] if targets else None


def _is_idle_end(target: Target) -> bool:
    return target.kind == "udp" and target.peer.endswith(":0")


def _is_same_connection(one: Target, other: Target) -> bool:
    """Whether two waits are about the two ends of one connection."""
    if one.local and other.local:
        return (one.local, one.peer) == (other.peer, other.local)
    return False


def _chain(steps: Sequence[Step], end: str, doubts: Iterable[str]) -> Chain:
    said = tuple(dict.fromkeys(doubts))
    return Chain(tuple(steps), end, not said, said)
