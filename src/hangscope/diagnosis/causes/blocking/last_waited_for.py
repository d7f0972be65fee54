"""gpu, absent, frozen: by the black boxes, the rank for which all of NCCL's transfers wait in the end."""

from collections.abc import Iterator

from hangscope.diagnosis.accusation import MEDIUM, Accusation, Accused, Grounds, Layer
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.causes.shared.black_boxes import boxes_of, oldest_wait_of
from hangscope.diagnosis.causes.shared.sentences import who_did_what
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import CauseKind, Finding
from hangscope.diagnosis.waits.proxy_waits import AbsentRank, SilentRank, StuckGpu
from hangscope.text import numbered, verb

LAST_WAITED_FOR = Grounds(
    "last_waited_for",
    Layer.MISSED_RANKS,
    MEDIUM,
    "according to the black boxes, all transfers ultimately wait for this rank",
    before={
        "reported_missing": "test_edges.py::test_what_transfers_wait_for_goes_before_a_report",
    },
)

_Found = StuckGpu | AbsentRank | SilentRank
_KIND = {StuckGpu: CauseKind.GPU, AbsentRank: CauseKind.ABSENT, SilentRank: CauseKind.FROZEN}


def propose(case: Case) -> Iterator[Accusation[_Found]]:
    """The rank whose GPU does not go on, that never launched, or that is not scheduled any more."""
    found = case.transfers
    if isinstance(found, StuckGpu | AbsentRank | SilentRank):
        kind = _KIND[type(found)]
        accused = [Accused(found.rank, kind)]
        wait = oldest_wait_of(case, [found.rank])
        yield Accusation(LAST_WAITED_FOR, kind, found, accused, wait, explains=case.waits.all)


def words(case: Case, accusation: Accusation[_Found]) -> Words:
    found = accusation.facts
    did = _did(found)
    waiting = f"; {ranks_text(found.waiting)} {verb(found.waiting, 'waits', 'wait')} for it" if found.waiting else ""
    shows = f"rank {found.rank} {did}, according to its black box{waiting}"
    look = "its stack"
    if isinstance(found, StuckGpu):
        look = "nvidia-smi -q, dmesg | grep -i xid"
    elif isinstance(found, SilentRank):
        look = "/proc/PID/status, dmesg"
    return who_did_what(
        case,
        accusation,
        did,
        ": all transfers are waiting for it.",
        why=[Finding(shows, boxes_of(case, [found.rank]))],
        steps=[f"look at rank {found.rank}: {look}"],
    )


def _did(found: _Found) -> str:
    if isinstance(found, SilentRank):
        return "was no longer scheduled: it exited or is stopped"
    title = numbered(found.operation.func, found.operation.seq)
    if isinstance(found, StuckGpu):
        return f"has data and buffer space for {title}, but its GPU makes no progress"
    if found.replayed:
        return f"never replayed the CUDA graph whose {title or 'operation'} the others wait in"
    return f"never launched {title}"


CAUSE = Cause(propose, words, (LAST_WAITED_FOR,))
