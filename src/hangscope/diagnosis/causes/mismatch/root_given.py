"""mismatch, rooted operations: ranks are inside of one broadcast, and were asked which root each of them passed."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hangscope.diagnosis.accusation import HIGH, Accusation, Accused, Doubt, Grounds, Layer
from hangscope.diagnosis.align.agreement import ROOTED
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.causes.shared.sentences import called_in_by, who_did_what
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import CauseKind, Finding
from hangscope.diagnosis.waits.wait_graph import Wait
from hangscope.model import CallArguments
from hangscope.text import verb

ROOTS_DIFFER = Grounds(
    "roots_differ",
    Layer.OTHER_CALLS,
    HIGH,
    "the calls that the ranks are in were given different roots",
    before={
        "other_line": "test_edges.py::test_roots_that_were_asked_go_before_another_line",
    },
)
_TO_ROOT = ("reduce", "gather")


@dataclass(frozen=True, slots=True)
class Roots:
    """Rank -> what its call was given, of those inside; `odd` are those whose root cannot be right, or all (`tied`)."""

    calls: Mapping[int, CallArguments]
    odd: tuple[int, ...]
    tied: bool
    to_root: bool

    def root(self, rank: int) -> int | None:
        call = self.calls[rank]
        return call.dst if self.to_root else call.src

    @property
    def others(self) -> tuple[int, ...]:
        return tuple(rank for rank in sorted(self.calls) if rank not in self.odd)


def propose(case: Case) -> Iterator[Accusation[Roots]]:
    """Ranks that passed another root than the rest to the operation that they are all inside of."""
    for wait in case.waits.all:
        found = _differing(case, wait) if not wait.point_to_point and wait.name in ROOTED else None
        if found is not None:
            yield Accusation(
                ROOTS_DIFFER,
                CauseKind.MISMATCH,
                found,
                [Accused(rank, CauseKind.MISMATCH) for rank in found.odd],
                wait,
                doubts=[Doubt.TWO_SIDES] if found.tied else (),
                explains=[wait],
            )


def _differing(case: Case, wait: Wait) -> Roots | None:
    to_root = wait.name.lstrip("_").startswith(_TO_ROOT)
    calls: dict[int, CallArguments] = {}
    newest = sorted(case.job.facts.calls, key=lambda call: call.sample)
    for call in newest:
        named = wait.name.lstrip("_").startswith(call.function) or call.function.startswith(wait.name)
        if call.rank in wait.waiters and named and (call.dst if to_root else call.src) is not None:
            calls[call.rank] = call
    roots = {rank: call.dst if to_root else call.src for rank, call in calls.items()}
    if len(set(roots.values())) < 2:
        return None
    # Whoever was to send it has left, and never sent it: it did not take itself for the root.
    left = tuple(rank for rank, root in sorted(roots.items()) if root in wait.finished and not to_root)
    votes = Counter(roots.values()).most_common()
    fewer = tuple(rank for rank, root in sorted(roots.items()) if root != votes[0][0])
    tied = not left and votes[0][1] == votes[1][1]
    odd = left if left and len(left) < len(roots) else tuple(sorted(roots)) if tied else fewer
    return Roots(calls, odd, tied, to_root)


def words(case: Case, accusation: Accusation[Roots]) -> Words:
    found = accusation.facts
    wait = accusation.its_wait
    word = "dst" if found.to_root else "src"
    title = case.names.wait(wait)
    here = called_in_by(case, wait, found.odd[0])
    by_root: dict[int | None, list[int]] = {}
    for rank in sorted(found.calls):
        by_root.setdefault(found.root(rank), []).append(rank)
    each = {rank: f"passed {word}={found.root(rank)} to {title}" for rank in found.calls}
    if found.tied:
        sides = ", ".join(f"{ranks_text(ranks)} {word}={root}" for root, ranks in by_root.items())
        what = f"passed different roots to {title}{here}: {sides}"
    else:
        roots = "/".join(str(root) for root in dict.fromkeys(map(found.root, found.odd)))
        theirs = "/".join(str(root) for root in dict.fromkeys(map(found.root, found.others)))
        what = f"passed {word}={roots} to {title}{here}, {ranks_text(found.others)} {word}={theirs}"
    return who_did_what(
        case,
        accusation,
        what,
        ": they wait for different ranks.",
        why=[
            Finding(
                f"{ranks_text(ranks)} {verb(ranks, 'is', 'are')} inside {title} with {word}={root}",
                (found.calls[ranks[0]].source,),
            )
            for root, ranks in by_root.items()
        ],
        steps=[f"code: pass the same {word} to this call on every rank"],
        each={rank: each[rank] for rank in accusation.ranks},
        place=False,
    )


CAUSE = Cause(propose, words, (ROOTS_DIFFER,))
