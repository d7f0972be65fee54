"""absent, from stacks alone: most ranks stand at one line, a few stand elsewhere. It says where to look, no more."""

from __future__ import annotations

from collections import Counter

from hangscope.diagnosis.case import Case, Draft
from hangscope.diagnosis.verdict import Finding
from hangscope.diagnosis.words import plural, ranks_text, sentence
from hangscope.model import ThreadStack

_LEAST_RANKS = 3
_FEW = 4
"""At most one rank in so many may stand elsewhere: more than that are roles, not culprits."""
_COLLECT = "switch the flight recorder on, which says what each rank waits in: `hangscope env` prints how"


def apart(case: Case) -> Draft | None:
    """Ranks whose main thread stands elsewhere than most others', where nothing else was recorded."""
    stacks = _main_stacks(case)
    if len(stacks) < _LEAST_RANKS or len(stacks) < len(case.job.ranks):
        return None
    # Ranks of different roles come to the same wait by different lines: then the innermost one is compared alone.
    found = _odd(case, stacks, 8) or _odd(case, stacks, 1)
    if found is None:
        return None
    usual, odd, places = found
    count = len(stacks) - len(odd)
    there = usual[0].split("  ")[0]
    here = places[odd[0]][0].split("  ")[0] if places[odd[0]] else "an unknown place"
    one = len(odd) == 1
    what = f"{'stands' if one else 'stand'} at {here}, the other {plural(count, 'rank')} at {there}"
    first = next(rank for rank, place in places.items() if place == usual)
    return Draft(
        kind="absent",
        headline=f"{ranks_text(odd)} {what}",
        summary=f"{sentence(case.whom(odd))} {what}: probably they wait for "
        f"{'it' if one else 'them'}. Only stacks were found, which do not say who waits for whom.",
        confidence="low",
        rule="absent: from stacks alone, a few ranks stand elsewhere than the rest",
        culprits=dict.fromkeys(odd, "stands elsewhere than the other ranks"),
        why=[
            *(
                Finding(f"rank {r} stands here", (stacks[r].source,), case.user_frames(stacks[r].frames, 4))
                for r in odd[:3]
            ),
            Finding(
                f"{plural(count, 'rank')} like rank {first} stand here",
                (stacks[first].source,),
                case.user_frames(stacks[first].frames, 4),
            ),
        ],
        next_steps=[f"code: see what {ranks_text(odd)} {'does' if one else 'do'} at {here}", _COLLECT],
    )


def _odd(
    case: Case, stacks: dict[int, ThreadStack], depth: int
) -> tuple[tuple[str, ...], list[int], dict[int, tuple[str, ...]]] | None:
    """Where most stand, who stands elsewhere, and every rank's place, by so many frames of the user's code."""
    places = {rank: case.user_frames(stack.frames, depth) for rank, stack in stacks.items()}
    usual = Counter(places.values()).most_common(1)[0][0]
    odd = sorted(rank for rank, place in places.items() if place != usual)
    return (usual, odd, places) if usual and odd and len(odd) * _FEW <= len(stacks) else None


def only_stacks(case: Case) -> Draft | None:
    """The last word where nothing but stacks was found: who stands apart, or that this does not say."""
    stacks = _main_stacks(case)
    if not stacks:
        return None
    places = Counter(case.user_frames(stack.frames, 1) for stack in stacks.values()).most_common(3)
    where = "; ".join(f"{plural(n, 'rank')} at {place[0].split('  ')[0]}" for place, n in places if place)
    return apart(case) or Draft(
        kind="unknown",
        headline=f"only stacks of {plural(len(stacks), 'rank')} were found; nobody stands apart",
        summary=f"Only stacks were found, and they do not say who waits for whom: {where}.",
        confidence="low",
        rule="unknown: stacks alone, and no few ranks that stand apart from the rest",
        why=[Finding(f"main threads stand here: {where}", (next(iter(stacks.values())).source,))],
        next_steps=[_COLLECT],
    )


def _main_stacks(case: Case) -> dict[int, ThreadStack]:
    return {rank: stack for rank in case.job.ranks if (stack := case.main_stack(rank)) is not None}
