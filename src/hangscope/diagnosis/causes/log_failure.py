"""A failure without a recording that explains it: what the lines of logs and kernels say, as far as they say it.

A line that only tells that somebody waited, lost a peer or was stopped is an effect and accuses nobody; nor does a line
about the network, which has two ends. Of the others the earliest is the cause; where they carry no time, those of one
kind are named together.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace

from hangscope.diagnosis.accusation import Accusation, Accused, Basis, Doubt, doubts_where
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.evidence.answer import Says
from hangscope.diagnosis.findings import quoted
from hangscope.diagnosis.hardware import stuck_link
from hangscope.model import Failure
from hangscope.text import first_line, numbered, short

# What a failure means; all others only say that something is wrong.
_MEANS = {
    "gpu": ("cuda_error", "xid", "ecc", "gpu_lost"),
    "dead": ("gpu_oom", "host_oom", "signal", "exit", "exception", "node_lost", "node_resource"),
    "network": ("nccl_system_error", "ib_error", "socket_error"),
    "mismatch": ("mismatch",),
    "absent": ("missing_ranks", "never_seen", "elsewhere"),
}
_KIND_OF = {failure: kind for kind, failures in _MEANS.items() for failure in failures}
# Lines that tell of a wait without an end; "other" only where it is an effect.
_WAITED = ("heartbeat_stuck", *_MEANS["absent"], "wait_timeout", "other")
_SHOWN = 4
# Failures this close to the first one may be its first sign elsewhere, or the other way round.
_TOGETHER_NS = 2_000_000_000


def reported_missing(case: Case) -> Iterator[Accusation]:
    """Ranks that PyTorch (a monitored barrier, the desync report) or all agents name as those that did not come."""
    found = [f for f in case.job.facts.failures if f.kind in _MEANS["absent"] and f.ranks]
    if found:
        yield _naming(case, Basis.REPORTED_MISSING, found, {f.ranks for f in found})


def reported_mismatch(case: Case) -> Iterator[Accusation]:
    """Ranks of which PyTorch itself says that they called something else. Of two sides nobody knows which is wrong."""
    found = [f for f in case.job.facts.failures if f.kind == "mismatch"]
    if found:
        sets = {f.ranks for f in found if f.rank is not None and f.rank not in f.ranks and len(f.ranks) == 1}
        yield _naming(case, Basis.REPORTED_MISMATCH, found, sets)


def _naming(case: Case, basis: Basis, found: list[Failure], sets: Collection[tuple[int, ...]]) -> Accusation:
    first, kind = found[0], _KIND_OF[found[0].kind]
    named = next(iter(sets)) if len(sets) == 1 else ()
    waits = [w for w in case.waits.all if w.seq == first.seq] or case.waits.all
    wait = max(waits, key=lambda w: len(w.inside), default=None)
    operation = numbered(first.operation or "", first.seq) or (case.names.wait(wait) if wait is not None else "")
    accused, doubts = [Accused(rank, kind, operation) for rank in named], () if named else [Doubt.NO_RANK]
    hang = case.hang.says is Says.YES or kind == "absent"
    return _accusation(case, Accusation(basis, kind, accused, wait, doubts=doubts, hang=hang), found)


def _accusation(case: Case, accusation: Accusation, lines: list[Failure]) -> Accusation:
    return replace(accusation, findings=[quoted(f) for f in lines[:_SHOWN]], detail=lines[0], explains=case.waits.all)


def failure_line(case: Case) -> Iterator[Accusation]:
    """The first line of a failure that is nobody else's effect; where there is none, the effects."""
    reported = [*case.job.facts.failures, *_raised(case)]
    lines = [f for f in reported if not f.effect]
    if not lines and case.hang.says is not Says.YES:
        lines = reported
    if not lines:
        return
    timed = [f.at_ns for f in lines if f.at_ns is not None]
    if len(timed) == len(lines):
        lines = [f for f in lines if f.at_ns is not None and f.at_ns <= min(timed) + _TOGETHER_NS]
    first = min(lines, key=lambda f: (f.kind not in _KIND_OF, f.operation is None, f.at_ns is None, f.at_ns or 0))
    kind = "unknown" if first.effect else _KIND_OF.get(first.kind, "unknown")
    alike = [f for f in lines if _KIND_OF.get(f.kind) == kind] or [first]
    ranks, link = sorted({f.rank for f in alike if f.rank is not None}), None
    if kind == "network" and first.rank is not None and first.peer_rank is not None:
        link = stuck_link.make(case, case.ports.over(None, first.rank, first.peer_rank), first.text)
        ranks = sorted({first.rank, first.peer_rank})
    elif kind in ("network", "unknown") or len(ranks) * 2 > max(len(case.job.ranks), 2):
        ranks = []
    by_rank = {f.rank: f for f in reversed(alike)}
    operation = numbered(first.operation or "", first.seq)
    accused = [Accused(r, kind, operation, text=short(by_rank.get(r, first).text, 120)) for r in ranks]
    doubts = doubts_where({Doubt.NO_RANK: not ranks, Doubt.SEVERAL_FAILED: len(ranks) > 1 and link is None})
    waited = any(f.kind in _WAITED for f in lines if f.kind != "other" or (f.effect and (f is first or f.operation)))
    hang = case.hang.says is Says.YES or (kind == "unknown" and waited)
    basis = Basis.FAILURE_LINE if ranks else Basis.FAILURE_OF_NOBODY
    found = Accusation(basis, kind, accused, link=link, doubts=doubts, hang=hang)
    yield _accusation(case, found, [first, *(f for f in lines if f is not first)])


def _raised(case: Case) -> list[Failure]:
    """Exceptions whose rank no line tells; those of a known rank are `ended.py`'s."""
    return [
        Failure("exception", f"{e.type}: {first_line(e.message)}".rstrip(": "), e.source, None, e.node, at_ns=e.at_ns)
        for e in case.job.facts.errors
        if e.rank is None and not e.consequence
    ]
