"""Which other programs an accused rank waits for, by the kernel's books: across sockets, pipes, locks and children."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import CauseKind, Finding
from hangscope.model import Job
from hangscope.sources.process_waits.chains import ENDS, Chain, ProcessGraph, Step
from hangscope.sources.process_waits.schema import KEY, NodeWaits, Target
from hangscope.text import verb

_NO_HOLDER = ("idle", "works", "own", "unknown", "store")
"""Ends that say where to look next, and not that this process is what holds the job up."""


MOST_ASKED = 64


def who_may_wait(job: Job, kind: CauseKind, accused: Sequence[int], *, hang: bool) -> tuple[int, ...]:
    """The ranks whose waits for other programs may explain a verdict: who is absent, and of a hang that nothing else
    explains, all that were seen."""
    if kind is CauseKind.ABSENT:
        return tuple(accused)
    return _seen(job) if hang and kind is CauseKind.UNKNOWN else ()


def who_may_ask_the_store(job: Job, kind: CauseKind, accused: Sequence[int]) -> tuple[int, ...]:
    """The ranks of which it is worth saying that they wait for a key: also where nobody can tell whether it hangs."""
    return _seen(job) if kind is CauseKind.UNKNOWN else who_may_wait(job, kind, accused, hang=True)


def _seen(job: Job) -> tuple[int, ...]:
    seen = {process.rank for node in job.facts.programs for process in node.waits.processes}
    return tuple(sorted(rank for rank in seen if rank is not None))[:MOST_ASKED]


class ProgramWaits:
    """The chains of waits that begin at ranks."""

    def __init__(self, job: Job) -> None:
        self._nodes: Mapping[str, NodeWaits] = {seen.node: seen.waits for seen in job.facts.programs}
        self._sources = {seen.node: seen.source for seen in job.facts.programs}

    @cached_property
    def _graph(self) -> ProcessGraph:
        return ProcessGraph(self._nodes)

    def of(self, ranks: Iterable[int]) -> dict[int, Chain]:
        """By rank, where its waits for other programs lead. A rank that waits for another rank is no news here."""
        if not self._nodes:
            return {}
        found = {}
        for rank in ranks:
            place = self._graph.place_of_rank(rank)
            chain = self._graph.follow(place) if place is not None else None
            if chain is not None and not _is_among_ranks(chain):
                found[rank] = chain
        return found

    def store_keys(self, ranks: Iterable[int]) -> list[Finding]:
        """The keys of the job's store that ranks wait for, each with who does and where."""
        found: dict[tuple[str, str], list[int]] = {}
        nodes: dict[str, None] = {}
        for rank in ranks:
            place = self._graph.place_of_rank(rank)
            for wait in self._graph.waits_of(place) if place is not None else ():
                if place is not None and wait.main and wait.says.startswith(KEY):
                    found.setdefault((wait.says, wait.place), []).append(rank)
                    nodes[place[0]] = None
        sources = tuple(self._sources[node] for node in nodes if node in self._sources)
        return [
            Finding(f"{ranks_text(who)} {verb(who, 'waits', 'wait')} for {key}, in {at}: nobody has set it", sources)
            for (key, at), who in found.items()
        ]

    def finding(self, rank: int, chain: Chain) -> Finding:
        """Where the chain begins and what it comes to; each step, and what makes it less certain, as a line below."""
        leading = chain.steps if chain.end in ("cycle", "outside", "dead") else chain.steps[:-1]
        hops = [f"{_process(each)} {_waits(each)}" for each in leading]
        nodes = dict.fromkeys(each.node for each in chain.steps)
        return Finding(
            f"rank {rank} {_waits(chain.steps[0])}; {_end(chain)}",
            tuple(self._sources[node] for node in nodes if node in self._sources),
            (*(hops if len(hops) > 1 else ()), *(f"not certain: {why}" for why in chain.why_not)),
        )


def _is_among_ranks(chain: Chain) -> bool:
    """Whether all that it goes through are ranks: what they wait in is what recorders and stacks are about."""
    behind = chain.steps[1:]
    return bool(behind) and all(step.process is not None and step.process.rank is not None for step in behind)


def _process(step: Step) -> str:
    process = step.process
    if process is None:
        return "a process that is gone"
    who = f"rank {process.rank}, pid {process.pid}" if process.rank is not None else f"process {process.pid}"
    return f"{who} ({process.command or process.name})"


_OVER = {
    "tcp": "over TCP with {}",
    "udp": "over UDP with {}",
    "unix": "over the Unix socket {}",
    "pipe": "for the other end of a pipe",
    "fifo": "for the other end of the FIFO {}",
    "lock": "for the lock on {}",
    "child": "for {}",
    "semaphore": "for {}",
    "queue": "for {}",
    "futex": "for {}",
    "file": "in a call on {}",
    "mount": "for {}",
    "title": "for {}",
}
_NAMES = ":53"
"""The port of name servers."""


def _waits(step: Step) -> str:
    if step.wait is None or step.target is None:
        return "waits"
    over = _OVER.get(step.target.kind, "for {}").format(step.target.what)
    if step.target.peer.endswith(_NAMES):
        over = f"for the name server (DNS) at {step.target.peer}"
    says = f" for {step.wait.says}" if step.wait.says else ""
    at = f", in {step.wait.place}" if step.wait.place else ""
    return f"waits{says} in {step.wait.call} {over}{at}"


def _end(chain: Chain) -> str:
    """What the chain comes to, as far as it was seen."""
    last = chain.last
    if chain.end == "cycle":
        return "and so they wait for each other in a circle"
    if chain.end == "outside" and last.target is not None:
        return f"{last.target.what} is no process that was seen here"
    if chain.end == "dead" and last.target is not None:
        in_memory = last.wait is not None and last.wait.call.startswith("futex")
        return _without_other_end(last.target, in_memory=in_memory)
    return f"{_process(last)} {_rests(chain)}"


def _rests(chain: Chain) -> str:
    """What the last process does, and where in its own code."""
    wait = chain.last.wait
    at = f", in {wait.place}" if wait is not None and wait.place and chain.end in ("sleeps", "own", "alone") else ""
    return f"{ENDS[chain.end]}{at}"


def _without_other_end(target: Target, *, in_memory: bool) -> str:
    if in_memory:
        return "no other process has it open any more"
    if target.kind == "fifo":
        return "no process has opened it there"
    if target.kind == "semaphore":
        return "the process that changed it last is gone"
    return "there is no process at the other end any more"


def summary(rank: int, chain: Chain) -> str:
    """One sentence for the summary; empty where the end of the chain is not what holds the rank up."""
    waits = "seems to wait" if chain.why_not else "waits"
    held = _lock_held(chain)
    if held:
        return f"rank {rank} {waits} for {_process(chain.last)}, which holds {held} and {_rests(chain)}"
    if chain.end in _NO_HOLDER:
        return ""
    if chain.end == "cycle":
        others = ", ".join(_process(step) for step in chain.steps if step.process is None or step.process.rank != rank)
        return f"rank {rank} and {others} wait for each other"
    if chain.end in ("outside", "dead"):
        return f"at the end of what rank {rank} waits for, {_end(chain)}"
    return f"rank {rank} {waits} for {_process(chain.last)}, which {_rests(chain)}"


def _lock_held(chain: Chain) -> str:
    """The lock through which a chain comes to its last process: that one holds it, whatever it does."""
    before = chain.steps[-2].target if len(chain.steps) > 1 and chain.end not in ("cycle", "outside", "dead") else None
    return f"the lock on {before.what}" if before is not None and before.kind == "lock" else ""


def step(rank: int, chain: Chain) -> str:
    """What to look at next."""
    last = chain.last
    if chain.end == "outside" and last.target is not None:
        return f"other programs: find out what runs at {last.target.what}; rank {rank} waits for it"
    if chain.end == "dead" or last.process is None:
        return f"other programs: find out what should be at the other end; rank {rank} waits for it"
    where = f" on {last.node}" if last.node else ""
    if chain.end == "cycle":
        return f"other programs: {' and '.join(_process(each) for each in chain.steps)} wait for each other{where}"
    return f"other programs: look at {_process(last)}{where}; {_why_there(chain, rank)}"


def _why_there(chain: Chain, rank: int) -> str:
    holds = chain.end not in _NO_HOLDER or _lock_held(chain)
    return f"rank {rank} waits for it" if holds else f"the waits of rank {rank} lead there"
