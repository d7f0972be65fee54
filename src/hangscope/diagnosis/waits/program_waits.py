"""Which other programs an accused rank waits for, by the kernel's books: across sockets, pipes, locks and children."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

from hangscope.diagnosis.verdict import Finding
from hangscope.model import Job
from hangscope.sources.process_waits.chains import ENDS, Chain, ProcessGraph, Step
from hangscope.sources.process_waits.schema import NodeWaits, Target

_NO_HOLDER = ("idle", "works", "sleeps", "own", "unknown")
"""Ends that say where to look next, and not that this process is what holds the job up."""


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
}


def _waits(step: Step) -> str:
    if step.wait is None or step.target is None:
        return "waits"
    over = _OVER.get(step.target.kind, "for {}").format(step.target.what)
    return f"waits in {step.wait.call} {over}"


def _end(chain: Chain) -> str:
    """What the chain comes to, as far as it was seen."""
    last = chain.last
    if chain.end == "cycle":
        return "and so they wait for each other in a circle"
    if chain.end == "outside" and last.target is not None:
        return f"{last.target.what} is no process that was seen here"
    if chain.end == "dead" and last.target is not None:
        return _without_other_end(last.target)
    return f"{_process(last)} {ENDS[chain.end]}"


def _without_other_end(target: Target) -> str:
    if target.kind == "fifo":
        return "no process has opened it there"
    if target.kind == "semaphore":
        return "the process that changed it last is gone"
    return "there is no process at the other end any more"


def summary(rank: int, chain: Chain) -> str:
    """One sentence for the summary; empty where the end of the chain is not what holds the rank up."""
    held = _lock_held(chain)
    if held:
        return f"rank {rank} waits for {_process(chain.last)}, which holds {held} and {ENDS[chain.end]}"
    if chain.end in _NO_HOLDER:
        return ""
    if chain.end == "cycle":
        others = ", ".join(_process(step) for step in chain.steps if step.process is None or step.process.rank != rank)
        return f"rank {rank} and {others} wait for each other"
    if chain.end in ("outside", "dead"):
        return f"at the end of what rank {rank} waits for, {_end(chain)}"
    return f"rank {rank} waits for {_process(chain.last)}, which {ENDS[chain.end]}"


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
