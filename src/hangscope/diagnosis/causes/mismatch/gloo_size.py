"""mismatch, by how a rank ended: Gloo ends one that got more bytes than its call asked for."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from hangscope.diagnosis.accusation import MEDIUM, Accusation, Accused, Doubt, Grounds, Layer
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Cause, Words
from hangscope.diagnosis.causes.shared.sentences import who_did_what
from hangscope.diagnosis.evidence.code_lines import changeable_frames, function_line, line, shown, user_frame
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import CauseKind, Finding
from hangscope.diagnosis.waits.wait_graph import Wait
from hangscope.model import GLOO_SIZE, Frame, PythonError, Source
from hangscope.text import verb

ENDED_OVER_A_SIZE = Grounds(
    "ended_over_a_size",
    Layer.OTHER_CALLS,
    MEDIUM,
    "Gloo aborted the rank over a size mismatch; all others recorded the same call",
)

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a rank was when Gloo ended the job."""

    frames: tuple[Frame, ...]
    source: Source

    @property
    def path(self) -> tuple[Frame, ...]:
        return tuple(changeable_frames(self.frames))


@dataclass(frozen=True, slots=True)
class EndedOverASize:
    """What Gloo said to each rank that it ended, by rank, and where every rank was if one was at another line."""

    errors: tuple[PythonError, ...]
    places: Mapping[int, _Place] = field(default_factory=dict)


def propose(case: Case) -> Iterator[Accusation[EndedOverASize]]:
    """A rank that Gloo ended over a size. It is the odd one where all others recorded the same call there."""
    errors = {e.rank: e for e in case.job.facts.errors if e.type == GLOO_SIZE and e.rank is not None}
    if not errors:
        return
    waits = [wait for rank in errors for wait in case.waits.waits_on(rank)]
    wait = max(waits, key=lambda w: len(w.inside), default=None)
    # Of two ranks nobody can say which one is wrong; of more, the one that passed another size may be one not seen.
    pair = wait is not None and len(case.groups[wait.group].members or ()) == 2
    other_side = wait.waiters if wait is not None and pair and len(_alike(case, wait)) == 1 else ()
    accused = sorted({*errors, *other_side})
    agree = wait is not None and _others_agree(case, wait, set(errors))
    places = {} if agree else _places(case)
    odd = _elsewhere(case, places)
    yield Accusation(
        ENDED_OVER_A_SIZE,
        CauseKind.MISMATCH,
        EndedOverASize(tuple(error for _, error in sorted(errors.items())), places if odd else {}),
        [Accused(rank, CauseKind.MISMATCH) for rank in odd or accused],
        wait,
        doubts=() if agree else [Doubt.OTHER_SIDE_NOT_SEEN],
    )


def _places(case: Case) -> dict[int, _Place]:
    """Where each rank was that says so: in the exception over its lost peer, or at its abort."""
    lost = ((error.rank, error.frames[::-1], error.source) for error in case.job.facts.errors if error.frames)
    found = {rank: _Place(frames, source) for rank, frames, source in lost if rank is not None}
    return {rank: place for rank, place in found.items() if place.path}


def _elsewhere(case: Case, places: Mapping[int, _Place]) -> list[int]:
    """The one rank that was at another line than all the others, of three or more that are all known."""
    if len(places) < 3 or set(places) != set(case.job.ranks):
        return []
    paths = Counter(place.path for place in places.values())
    usual, count = paths.most_common(1)[0]
    return [rank for rank in sorted(places) if places[rank].path != usual] if count == len(places) - 1 else []


def _alike(case: Case, wait: Wait) -> set[int]:
    """The ranks that recorded the same call there. One that raised reads as completed, and waits in nothing."""
    inside = {unit.rank for unit in wait.inside}
    lane = case.alignment.lanes.get(wait.group)
    index = None if lane is None or wait.seq is None else lane.index_of(wait.seq)
    if lane is None or index is None:
        return inside
    rows = lane.rows_at(index)
    calls = case.alignment.call[rows]
    return inside | set(case.job.ops.column("rank")[rows].tolist()) if len(set(calls.tolist())) == 1 else inside


def _others_agree(case: Case, wait: Wait, ended: set[int]) -> bool:
    """Whether one rank alone was ended, and all others recorded the same call.

    Had one of the others passed another size, their dumps would disagree; how it is split no dump of Gloo says.
    """
    alike = _alike(case, wait) - ended
    all_others_inside = len(alike) >= 2 and set(wait.blockers) <= ended | alike
    return len(ended) == 1 and all_others_inside and "all_to_all" not in wait.name


def words(case: Case, accusation: Accusation[EndedOverASize]) -> Words:
    ranks = accusation.ranks
    errors = accusation.facts.errors
    if accusation.facts.places:
        return _words_of_lines(case, accusation)
    where = f" in {case.names.wait(accusation.wait)}" if accusation.wait is not None else ""
    what = verb(ranks, "expected a different size than a peer sent", "passed different sizes")
    compare = f"code: compare what {ranks_text(ranks)} and the others call there: the operation, its size and type"
    return who_did_what(
        case,
        accusation,
        f"{what}{where}",
        f": {errors[0].message}. Gloo aborts the process on that, and its peers lose their connection.",
        why=[Finding(f"rank {error.rank}: {error.message}", (error.source,)) for error in errors],
        steps=[f"{compare}, at {place}" if (place := _line_of(case, accusation)) else compare],
    )


def _words_of_lines(case: Case, accusation: Accusation[EndedOverASize]) -> Words:
    """Where a rank came to another line than the others, that is where to look."""
    places = accusation.facts.places
    odd = accusation.ranks[0]
    others = [rank for rank in places if rank != odd]
    here, there = user_frame(places[odd].frames), user_frame(places[others[0]].frames)
    assert here is not None
    assert there is not None
    sources = tuple(places[rank].source for rank in others[:2])
    return who_did_what(
        case,
        accusation,
        f"was in {function_line(here)} where the rest were in {function_line(there)}",
        f": {accusation.facts.errors[0].message}. Gloo aborts a process on that, and its peers lose their connection.",
        why=[
            *(Finding(f"rank {error.rank}: {error.message}", (error.source,)) for error in accusation.facts.errors),
            Finding(f"rank {odd} was here at the end", (places[odd].source,), shown(places[odd].frames, _SHOWN)),
            Finding(f"{ranks_text(others)} were here", sources, shown(places[others[0]].frames, _SHOWN)),
        ],
        steps=[f"code: find out why rank {odd} came to {line(here)}, and the rest to {line(there)}"],
        place=False,
    )


def _line_of(case: Case, accusation: Accusation[EndedOverASize]) -> str:
    """Where the first of those that were ended called it, by its traceback or its crash stack."""
    frames = [error.frames[::-1] for error in accusation.facts.errors]
    frames += [where.stack.frames for rank in accusation.ranks if (where := case.stacks.where(rank)) is not None]
    return next((line(frame) for each in frames if (frame := user_frame(each)) is not None), "")


CAUSE = Cause(propose, words, (ENDED_OVER_A_SIZE,))
