"""absent, outside of torch.distributed: by the black boxes, the ranks that never launched what their peers have."""

from collections.abc import Iterator

from hangscope.diagnosis.accusation import MEDIUM, Accusation, Accused, Doubt, Grounds, Layer, doubts_where
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.causes.shared.black_boxes import boxes_of
from hangscope.diagnosis.causes.shared.sentences import who_did_what
from hangscope.diagnosis.evidence.code_lines import shown
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import CauseKind, Finding
from hangscope.diagnosis.waits.launch_counts import BehindInLaunches
from hangscope.diagnosis.waits.proxy_waits import NotKnown
from hangscope.text import numbered, verb

BEHIND_IN_LAUNCHES = Grounds(
    "behind_in_launches",
    Layer.MISSED_RANKS,
    MEDIUM,
    "by the black boxes, the other members of a communicator have launched more",
)
_FRAMES_SHOWN = 4


def propose(case: Case) -> Iterator[Accusation[BehindInLaunches]]:
    """Where neither a recorder nor a transfer shows anybody waiting: inside one node, past torch.distributed."""
    found = case.behind_in_launches
    if found is not None and not case.waits.all and isinstance(case.transfers, NotKnown):
        seen = case.stacks.of_all(found.ranks)
        doubts = doubts_where({Doubt.STACK_NOT_SEEN: len(seen) < len(found.ranks)})
        accused = [Accused(rank, CauseKind.ABSENT, _title(found)) for rank in found.ranks]
        yield Accusation(BEHIND_IN_LAUNCHES, CauseKind.ABSENT, found, accused, doubts=doubts)


def words(case: Case, accusation: Accusation[BehindInLaunches]) -> Words:
    found = accusation.facts
    names = ranks_text(found.ranks)
    did = f"never launched {_title(found)}"
    last = f"#{found.last}" if found.last >= 0 else "none"
    others = ranks_text(found.waiting)
    text = (
        f"{names} {did} of NCCL communicator {found.operation.comm}, whose last there is {last}; {others} launched it"
    )
    findings = [Finding(text, boxes_of(case, found.ranks))]
    for rank, stack in case.stacks.of_all(found.ranks).items():
        findings.append(Finding(f"rank {rank} is here", (stack.source,), shown(stack.frames, _FRAMES_SHOWN)))
    return who_did_what(
        case,
        accusation,
        did,
        f": {others} {verb(found.waiting, 'waits', 'wait')} for {verb(found.ranks, 'it', 'them')}.",
        why=findings,
        steps=[f"code: see what {names} {verb(found.ranks, 'does', 'do')} instead of calling it"],
    )


def _title(found: BehindInLaunches) -> str:
    return numbered(found.operation.func, found.operation.seq)


CAUSE = Cause(propose, words, (BEHIND_IN_LAUNCHES,))
