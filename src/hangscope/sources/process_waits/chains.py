"""From one process along its waits to the one that does not move: what holds it up, in whatever language.

A wait is followed where the kernel names the other end. An event loop that watches many connections waits for none of
them in particular, a server that waits for work waits for nobody: neither leads anywhere. What a chain ends at says
itself how sure it is; the chain is as sure as its weakest step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hangscope.sources.process_waits.schema import DATABASE, NodeWaits, SeenProcess, Target, Wait

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
    "alone": "waits for a lock that nobody can release: it has no other thread",
    "store": "keeps the job's store: nobody has set what is waited for",
    "outside": "is no process that is seen here",
    "cycle": "waits for one that waits for it",
    "file": "is in a call on a file",
    "unknown": "does not show what it waits for",
}
"""What a chain may end with."""
_FIRM = ("inode", "lock", "owner", "parent", "accept")
_PLACES = {"tcp", "udp", "unix", "pipe", "fifo", "lock", "semaphore", "queue", "child", "mount", "title"}

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
        if start not in self.processes:
            return None
        own = self._own_of(start)
        if not self._leading(start, None, own):
            return None
        steps: list[Step] = []
        doubts: list[str] = []
        at = start
        came: Target | None = None
        visited: list[Place] = []
        while len(steps) < MOST_STEPS:
            process = self.processes.get(at)
            visited.append(at)
            leading = self._leading(at, came, own)
            end = _own_end(process)
            if end and not (end == "disk" and any(lead.target.kind == "mount" for lead in leading)):
                return _chain([*steps, Step(at[0], process)], end, doubts)
            if not leading:
                return _chain([*steps, Step(at[0], process, *self._resting(at, came))], self._rest(at, came), doubts)
            if len({lead.others for lead in leading}) > 1:
                doubts.append(f"process {at[1]} waits for several at once")
            wait, target, others = leading[0].wait, leading[0].target, leading[0].others
            doubts += [leading[0].doubt] if leading[0].doubt else []
            if wait.woke > POLLS and wait.name != _GLOO_THREAD:
                doubts.append(f"process {at[1]} asks again and again")
            if target.sure and target.sure not in _FIRM:
                doubts.append(_DOUBTS.get(target.sure, f"known by {target.sure} alone"))
            steps.append(Step(at[0], process, wait, target))
            if not others:
                return _chain(steps, self._nobody(target), doubts)
            others = self._that_reads(others, target)
            if len(others) > 1 and target.kind != "child":
                doubts.append(f"{len(others)} processes hold the other end of {target.what}")
            following = next((other for other in others if other not in visited), None)
            if following is None:
                back = visited.index(others[0])
                return _chain(steps[back:], "cycle", doubts)
            at = following
            came = target
        return _chain(steps, "unknown", [*doubts, "the chain is longer than is followed"])

    def _leading(self, place: Place, came: Target | None, own: frozenset[Place]) -> list[_Lead]:
        """The waits of a process that lead to another one or out of the job.

        The main thread's own wait counts first. Where it waits for another thread of its process, as in a library with
        a thread for its connections, those threads are asked, and where we came by a connection, any thread may be the
        one that serves it; both is a doubt. A thread that only has a connection while the main one is elsewhere says
        nothing. Where we came by a connection, a thread that waits to read from that same one waits for us, and leads
        back. `own`: processes that are no news, of which a rank's own collectives speak.
        """
        waits = sorted(self.waits_of(place), key=lambda wait: (not wait.main, wait.thread))
        main = [lead for wait in waits if wait.main for lead in self._leads(place, wait, came, frozenset())]
        if main:
            return main
        resting = next((wait for wait in waits if wait.main), None)
        if came is None and (resting is None or not _waits_for_thread(resting)):
            return self._by_title(place)
        if came is not None and any(_is_store_server(wait, came) for wait in waits):
            return []
        known = own if came is None else frozenset()
        # A thread that serves connections is asked only where another one waits for it, and not for work.
        asked = came is None or any(_waits_for_thread(wait) and wait.place and not wait.idles for wait in waits)
        others = [
            lead
            for wait in waits
            if not wait.main and (asked or not wait.any_of) and not (came is not None and self._serves(place, wait))
            for lead in self._leads(place, wait, came, known)
        ]
        if came is None and resting is not None:
            others = [lead for lead in others if _may_serve(lead.wait, resting)]
        if not others:
            return self._by_title(place)
        doubt = (
            "it is not known which of its threads serves" if came is not None else "it waits for a thread of its own"
        )
        return [replace(lead, doubt=f"process {place[1]}: {doubt}") for lead in others]

    def _serves(self, place: Place, wait: Wait) -> bool:
        """Whether a thread waits for the next request on a connection that its process has accepted: for work."""
        process = self.processes[place]
        if wait.name == _GLOO_THREAD or process.command.startswith(DATABASE):
            return False
        ports = {address.rpartition(":")[2] for address in process.listens}
        names = {target.what for each in self.waits_of(place) for target in each.targets if target.kind == "listen"}
        return any(
            (target.kind == "tcp" and target.local.rpartition(":")[2] in ports)
            or (target.kind == "unix" and target.what in names)
            for target in wait.targets
        )

    def _leads(self, place: Place, wait: Wait, came: Target | None, own: frozenset[Place]) -> list[_Lead]:
        """Where one thread's wait leads, if anywhere: of a set of descriptors only to the one process behind them."""
        if _serves_itself(wait):
            return []
        found = []
        for target in _meant(wait, self.processes.get(place)):
            others = tuple(other for other in self._others(place, target) if other not in own)
            if came is not None and (_is_same_connection(target, came)):
                continue
            if target.pids and (set(target.pids) == {place[1]} or not others):
                continue  # both ends are its own, as those by which an event loop is woken up
            if others or target.gone or (target.peer and not _is_idle_end(target)):
                found.append(_Lead(wait, target, others))
        if wait.any_of and len({lead.others for lead in found}) > 1:
            return []  # it waits for none of them in particular
        return found[:1]

    def _by_title(self, place: Place) -> list[_Lead]:
        """A process of Postgres that says that it waits for a lock: the one other that can hold it."""
        process = self.processes.get(place)
        waits = self.waits_of(place)
        if process is None or not waits or not _WAITS_FOR_LOCK.match(process.command):
            return []
        holders = tuple(
            (place[0], other.pid)
            for (node, _), other in self.processes.items()
            if node == place[0] and other.parent == process.parent and _MAY_HOLD_LOCK.match(other.command)
        )
        target = Target("title", "a lock of the database", tuple(pid for _, pid in holders), "title")
        return [_Lead(waits[0], target, holders)] if len(holders) == 1 else []

    def _others(self, place: Place, target: Target) -> tuple[Place, ...]:
        here = tuple((place[0], pid) for pid in target.pids if pid != place[1])
        if here or not target.peer:
            return here
        return tuple(other for other in self._holders.get((target.peer, target.local), ()) if other != place)

    def _nobody(self, target: Target) -> str:
        if target.gone:
            return "dead"
        return "outside"

    def _own_of(self, start: Place) -> frozenset[Place]:
        """The ranks of the job, where we start at one: connections among them are the collectives'."""
        if self.processes[start].rank is None:
            return frozenset()
        return frozenset(place for place, process in self.processes.items() if process.rank is not None)

    def _that_reads(self, others: tuple[Place, ...], target: Target) -> tuple[Place, ...]:
        """Of several that hold the other end of a connection, those of which a thread waits to read from it: children
        inherit what their parents have open."""
        if len(others) < 2 or not target.local:
            return others
        readers = [
            other
            for other in others
            if any(_is_same_connection(each, target) for wait in self.waits_of(other) for each in wait.targets)
        ]
        return tuple(readers) or others

    def _resting(self, place: Place, came: Target | None) -> tuple[Wait | None, Target | None]:
        """What the last process of a chain is in itself: the thread that is busy for the one before, if one is."""
        waits = sorted(self.waits_of(place), key=lambda wait: (not wait.main, wait.thread))
        wait = self._busy_thread(waits, came) or (waits[0] if waits else None)
        return wait, wait.targets[0] if wait is not None and len(wait.targets) == 1 else None

    def _busy_thread(self, waits: Sequence[Wait], came: Target | None) -> Wait | None:
        """A thread of a server that sleeps in the program's own code, while the others wait for work."""
        if came is None or len(waits) < 2:
            return None
        sleeps = [wait for wait in waits if not wait.main and wait.place and _kinds(wait) == {"timer"}]
        return sleeps[0] if len(sleeps) == 1 else None

    def _rest(self, place: Place, came: Target | None) -> str:
        """What a process is that waits for no other."""
        process = self.processes[place]
        waits = self.waits_of(place)
        if process.cpu_s >= WORKS_S or process.state == "R":
            return "works"
        if not process.visible or not waits:
            return "unknown"
        if came is not None and any(_is_store_server(wait, came) for wait in waits):
            return "store"
        main = next((wait for wait in waits if wait.main), waits[0])
        kinds = _kinds(main)
        if kinds == {"futex"} and process.threads == 1 and not main.timed:
            return "alone"
        if self._busy_thread(waits, came) is not None:
            return "sleeps"
        serves = [wait for wait in waits if wait.any_of or any(target.kind == "listen" for target in wait.targets)]
        back = any(_is_same_connection(target, came) for wait in waits for target in wait.targets) if came else False
        if came is not None and kinds != {"timer"} and (serves or back):
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
    "address": "known by the address alone: UDP has no connections",
    "device": "known as the only file system in user space alone",
    "title": "known by the titles of the server's processes alone",
}
_STORE_THREAD = "pt_tcpstore"
_GLOO_THREAD = "gloo_tcp_loop"
_WAITS_FOR_LOCK = re.compile(r"postgres: .* waiting$")
_MAY_HOLD_LOCK = re.compile(r"postgres: .*(?:\(\d+\)|\[local\]) (?!idle$)(?!.* waiting$)")


@dataclass(frozen=True, slots=True)
class _Lead:
    """A wait that leads on, and to which processes."""

    wait: Wait
    target: Target
    others: tuple[Place, ...]
    doubt: str = ""


def _kinds(wait: Wait) -> set[str]:
    return {target.kind for target in wait.targets}


def _waits_for_thread(wait: Wait) -> bool:
    """Whether a thread waits for another one of its process: in a lock, or to be woken up by it."""
    return bool(wait.targets) and all(
        target.kind == "eventfd" or (target.kind in ("futex", "pipe") and not target.pids) for target in wait.targets
    )


def _may_serve(thread: Wait, main: Wait) -> bool:
    """Whether the main thread may wait for that thread: for a logger's it does not, while it is in a collective."""
    if not main.place or "eventfd" in _kinds(main):
        return True  # no Python that is known; or a library in C that has its threads wake the caller up, as ZMQ's
    if main.idles:
        return bool(thread.place) and not thread.any_of and not thread.idles
    return bool(main.says) or thread.name == _GLOO_THREAD


def _is_store_server(wait: Wait, came: Target) -> bool:
    """Whether it is the thread that keeps PyTorch's store, and the connection is one of its."""
    return wait.name.startswith(_STORE_THREAD) and any(_is_same_connection(target, came) for target in wait.targets)


def _serves_itself(wait: Wait) -> bool:
    return wait.name.startswith(_STORE_THREAD)


def _own_end(process: SeenProcess | None) -> str:
    if process is None:
        return "unknown"
    return {"T": "stopped", "t": "stopped", "D": "disk", "Z": "zombie", "X": "dead"}.get(process.state, "")


def _meant(wait: Wait, process: SeenProcess | None) -> list[Target]:
    """What a wait is about; nothing where it is about time, or about work to come."""
    places = {"tcp", "unix"} if process is not None and process.command.startswith(DATABASE) else _PLACES
    targets = [target for target in wait.targets if target.kind in places or (target.kind == "futex" and target.pids)]
    if wait.any_of:
        # A client's own wake-up beside its connection says nothing; who also listens waits for work. Gloo's thread
        # listens by the way.
        work = {"inotify", "timer"} if wait.name == _GLOO_THREAD else {"listen", "inotify", "timer"}
        return [] if work & _kinds(wait) else targets
    return targets


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
