"""A failure without a recording that explains it: what the lines of logs and kernels say, as far as they say it.

A line that only tells that somebody waited, lost a peer or was stopped is an effect and accuses nobody; nor does a line
about the network, which has two ends. Of the others the earliest is the cause; where they carry no time, those of one
kind are named together.
"""

import signal
from collections.abc import Iterator, Mapping, Sequence

from hangscope.diagnosis.accusation import LOW, MEDIUM, Accusation, Accused, Doubt, Grounds, Layer, doubts_where
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Asked, Cause
from hangscope.diagnosis.causes.shared.failure_lines import (
    FailureLines,
    failure_words,
    was_signalled,
)
from hangscope.diagnosis.causes.shared.outlived import lasting_errors, lasting_failures
from hangscope.diagnosis.evidence.answer import Says
from hangscope.diagnosis.verdict import CauseKind, UnrankedCulprit
from hangscope.model import AFTER_HANG, Failure, FailureKind, Trait
from hangscope.text import first_line, numbered, short

FAILURE_LINE = Grounds(
    "failure_line",
    Layer.SIGNS,
    MEDIUM,
    "a log says so; no recording shows what the ranks were doing",
    before={
        "everybody_inside": "test_edges.py::test_a_failure_goes_before_everybody_being_inside",
    },
)
FAILURE_OF_NOBODY = Grounds(
    "failure_of_nobody",
    Layer.LAST_RESORT,
    LOW,
    "a log tells of a failure and does not say whose it is",
    before={
        "not_collected": "test_edges.py::test_a_line_of_failure_goes_before_what_was_not_collected",
    },
)

_NAMES_A_PROCESS = (CauseKind.DEAD, CauseKind.GPU, CauseKind.FROZEN)
_NAMES_A_NODE = (FailureKind.CONTACT_LOST, FailureKind.NODE_NOT_READY)
# Of what engines say, a lock names what is waited for, and a wait alone says least.
_TELLS_MORE = {FailureKind.JIT_LOCK: -1, FailureKind.ENGINE_WAITS: 1}
# Failures this close to the first one may be its first sign elsewhere, or the other way round.
_TOGETHER_NS = 2_000_000_000


def propose(case: Case) -> Iterator[Accusation[FailureLines]]:
    """The first line of a failure that is nobody else's effect; where there is none, the effects."""
    lines = _earliest(_lines(case))
    if lines:
        yield _accusation(case, lines, min(lines, key=_sort_key))


def _accusation(case: Case, lines: list[Failure], first: Failure) -> Accusation[FailureLines]:
    kind = CauseKind.UNKNOWN if first.effect else first.kind.accuses
    own = _own_lines(lines, kind)
    both_ends = _both_ends(first, kind)
    ranks = sorted(set(both_ends)) if both_ends is not None else _accused(case, own, kind)
    operation = numbered(first.operation or "", first.seq)
    return Accusation(
        FAILURE_LINE if ranks else FAILURE_OF_NOBODY,
        kind,
        _with_first([*_beside(case, first), *lines], first, {rank: own.get(rank, first) for rank in ranks}),
        [Accused(rank, kind, operation) for rank in ranks],
        unranked=() if ranks or both_ends is not None else _unranked(first, kind),
        way=case.ports.over(None, *both_ends) if both_ends is not None else None,
        doubts=doubts_where(
            {
                Doubt.NO_RANK: not ranks,
                Doubt.SEVERAL_FAILED: len(ranks) > 1 and both_ends is None and not _of_one_node(own, ranks),
                Doubt.OTHERS_SAY_NOT_WHY: first.kind == FailureKind.LEFT_RUNNING and not _others_waited(case),
            }
        ),
        explains=case.waits.all,
        hang=case.hang.says is Says.YES or _shows_a_hang(lines, first, kind),
        conclusive=_is_conclusive(first, lines),
    )


def _beside(case: Case, first: Failure) -> list[Failure]:
    """Who held the memory of the node, beside who was killed for it."""
    if first.kind is not FailureKind.HOST_OOM:
        return []
    return [line for line in case.job.facts.failures if line.kind is FailureKind.MEMORY_HELD]


def _unranked(first: Failure, kind: CauseKind) -> Sequence[UnrankedCulprit]:
    """What the line accuses by a node, a device or an engine's name alone; a line about the network has two ends."""
    accuses = kind in _NAMES_A_PROCESS or first.kind in _NAMES_A_NODE
    device = first.device or (first.detail if first.kind in (FailureKind.XID, FailureKind.GPU_LOST) else None)
    named = (first.node, first.local_rank, first.pid, device, first.task, first.role)
    if first.effect or first.rank is not None or not accuses or all(each is None for each in named):
        return ()
    node, local_rank, pid, device, task, role = named
    return [UnrankedCulprit(node, local_rank, pid, device, task, role, short(first.text, 120))]


def _of_one_node(own: Mapping[int, Failure], ranks: Sequence[int]) -> bool:
    """Whether all of them were lost with one node, or with one pod: that is one failure."""
    lost = {own[rank].node for rank in ranks if rank in own and own[rank].kind.is_of(Trait.OF_NODE)}
    return len(lost) == 1 and all(rank in own for rank in ranks)


def _shows_a_hang(lines: Sequence[Failure], first: Failure, kind: CauseKind) -> bool:
    if first.kind == FailureKind.LEFT_RUNNING or first.detail == AFTER_HANG:
        return True
    return kind is CauseKind.UNKNOWN and _says_that_it_waited(lines, first)


def _is_conclusive(first: Failure, lines: Sequence[Failure]) -> bool:
    """Whether the line says what became of the job, or of what an engine waits for where another says that it hung."""
    if first.kind in (FailureKind.JIT_LOCK, FailureKind.KV_TRANSFER) and any(
        line.kind == FailureKind.ENGINE_STUCK for line in lines
    ):
        return True
    return not first.kind.is_of(Trait.OPEN_END) or first.code == -signal.SIGHUP or first.detail == AFTER_HANG


def _with_first(lines: Sequence[Failure], first: Failure, own: Mapping[int, Failure]) -> FailureLines:
    return FailureLines((first, *(line for line in lines if line is not first)), own)


def _lines(case: Case) -> list[Failure]:
    reported = [*lasting_failures(case.job.facts), *_raised(case)]
    causes = [failure for failure in reported if not failure.effect]
    if _only_gave_up(case, causes):
        causes = []
        reported = [failure for failure in reported if failure.effect]
    return _one_story(causes) if causes or case.hang.says is Says.YES else reported


def _only_gave_up(case: Case, causes: Sequence[Failure]) -> bool:
    """Whether all that failed is that several exited, where they say that they had waited: nobody was first."""
    exited = [failure for failure in causes if failure.kind == FailureKind.EXIT]
    return len(exited) > 1 and len(exited) == len(causes) and _others_waited(case)


def _others_waited(case: Case) -> bool:
    """Whether ranks say that they gave up waiting for somebody, or lost somebody."""
    facts = case.job.facts
    gave_up = any(error.consequence for error in facts.errors)
    return gave_up or any(failure.effect and failure.kind.is_of(Trait.WAITED) for failure in facts.failures)


def _one_story(causes: list[Failure]) -> list[Failure]:
    """A node that failed explains all else, and a pod that was evicted or deleted, or a kill for memory, that
    others exited. A task that was left running is what the others gave up on, unless one of them says why it ended."""
    nodes = [failure for failure in causes if failure.kind in (FailureKind.NODE_FAILED, FailureKind.NODE_SILENT)]
    if nodes:
        return [failure for failure in nodes if failure.node is not None] or nodes
    causes = _without_reactions(causes)
    running = [failure for failure in causes if failure.kind == FailureKind.LEFT_RUNNING]
    explained = any(failure.kind not in (FailureKind.LEFT_RUNNING, FailureKind.EXIT) for failure in causes)
    return (
        running
        if running and not explained
        else [failure for failure in causes if failure.kind != FailureKind.LEFT_RUNNING]
    )


def _without_reactions(causes: list[Failure]) -> list[Failure]:
    """Without exits, where one was taken away: the others lost it."""
    taken = any(failure.kind.is_of(Trait.TAKEN_AWAY) for failure in causes)
    return [failure for failure in causes if failure.kind != FailureKind.EXIT] if taken else causes


def _raised(case: Case) -> list[Failure]:
    """Exceptions whose rank no line tells; those of a known rank are `end_seen.py`'s."""
    errors = [e for e in lasting_errors(case.job.facts) if e.rank is None and not e.consequence]
    texts = [": ".join((e.type, first_line(e.message))).rstrip(": ") for e in errors]
    lines = "\n".join(failure.text for failure in case.job.facts.failures)
    return [
        Failure(FailureKind.EXCEPTION, text, e.source, None, e.node, at_ns=e.at_ns)
        for e, text in zip(errors, texts, strict=True)
        if text not in lines
    ]


def _earliest(lines: list[Failure]) -> list[Failure]:
    """Those that came with the first one; all of them where one carries no time."""
    times = [line.at_ns for line in lines if line.at_ns is not None]
    if not times or len(times) < len(lines):
        return lines
    return [line for line in lines if (line.at_ns or 0) <= min(times) + _TOGETHER_NS or _names_other_end(line)]


def _names_other_end(line: Failure) -> bool:
    """Whether it names the other end of a transfer that failed, which the first line about it seldom does."""
    return line.kind == FailureKind.KV_TRANSFER and line.peer_node is not None


def _sort_key(line: Failure) -> tuple[bool, bool, bool, bool, bool, bool, int, bool, bool, int]:
    """What the scheduler did first, then a signal to the launcher; an end that only followed last, then what names a
    reason, then a line that says what it means, then one that names the operation, or the other end of a transfer, then
    the earliest."""
    return (
        line.kind != FailureKind.CANCELLED,
        not was_signalled(line),
        line.effect and line.kind.is_of(Trait.END),
        not line.explains or line.kind == FailureKind.OTHER,
        line.kind.accuses is CauseKind.UNKNOWN,
        line.operation is None,
        _TELLS_MORE.get(line.kind, 0),
        line.kind == FailureKind.KV_TRANSFER and line.peer_node is None,
        line.at_ns is None,
        line.at_ns or 0,
    )


def _both_ends(first: Failure, kind: CauseKind) -> tuple[int, int] | None:
    """The two ranks that a line about the network names."""
    if kind is CauseKind.NETWORK and first.rank is not None and first.peer_rank is not None:
        return first.rank, first.peer_rank
    return None


def _own_lines(lines: Sequence[Failure], kind: CauseKind) -> dict[int, Failure]:
    """Each rank's first line of that kind."""
    own: dict[int, Failure] = {}
    for line in lines:
        if line.kind.accuses is not kind or line.kind.is_of(Trait.TAKEN_TWICE):
            continue
        named = line.ranks if line.kind.is_of(Trait.END) and line.rank is None else (line.rank,)
        for rank in named:
            if rank is not None:
                own.setdefault(rank, line)
    return own


def _accused(case: Case, own: Mapping[int, Failure], kind: CauseKind) -> list[int]:
    """The ranks that report it; nobody where that is the network, not understood, or most of the job."""
    most = len(own) * 2 > max(len(case.job.ranks), 2)
    return [] if most or kind in (CauseKind.NETWORK, CauseKind.UNKNOWN) else sorted(own)


def _says_that_it_waited(lines: Sequence[Failure], first: Failure) -> bool:
    meant = [f for f in lines if f.kind != FailureKind.OTHER or (f.effect and (f is first or f.operation))]
    return any(line.kind.is_of(Trait.WAITED) for line in meant)


CAUSE = Cause(propose, failure_words, (FAILURE_LINE, FAILURE_OF_NOBODY), Asked.ALWAYS)
