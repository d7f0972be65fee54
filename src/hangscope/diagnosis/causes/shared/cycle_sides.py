"""Ranks that make their calls in a different order than the rest, by what each is inside of, and how that is said."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hangscope.diagnosis.accusation import Accusation, Accused
from hangscope.diagnosis.case import Case
from hangscope.diagnosis.cause import Words
from hangscope.diagnosis.causes.shared.advice import BY_CALL, SAME_GROUPS, runs_on_gloo
from hangscope.diagnosis.causes.shared.sentences import called_in_by
from hangscope.diagnosis.phrases import ranks_text
from hangscope.diagnosis.verdict import CauseKind, Finding
from hangscope.diagnosis.waits.wait_graph import Wait
from hangscope.text import verb

_LISTED = 3


@dataclass(frozen=True, slots=True)
class Side:
    """Ranks that are inside of one operation."""

    wait: Wait
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sides:
    """A wait cycle: the ranks by what they are inside of. `tied`: neither side is in the minority."""

    sides: tuple[Side, ...]
    tied: bool


def accused_inside(case: Case, inside: Mapping[int, Wait]) -> list[Accused]:
    return [Accused(rank, CauseKind.DEADLOCK, case.names.wait_in_group(wait)) for rank, wait in sorted(inside.items())]


def cycle_words(case: Case, accusation: Accusation[Any], cycle: Sides, why: Sequence[Finding]) -> Words:
    sides = cycle.sides
    groups = list(dict.fromkeys(case.names.group(side.wait.group) for side in sides))
    over = f"over {len(groups)} groups" if len(groups) > 1 else f"in {groups[0]}"
    listed = "; ".join(f"{ranks_text(side.ranks)} in {case.names.wait_in_group(side.wait)}" for side in sides[:_LISTED])
    called = {rank: called_in_by(case, side.wait, rank) for side in sides for rank in side.ranks}
    headline, wrong = _headline(accusation.ranks, cycle, over, called)
    return Words(
        headline=headline,
        summary=f"Deadlock {over}: {listed}; {wrong}.",
        why=why,
        each={a.rank: f"is inside {a.operation}{called.get(a.rank, '')}" for a in accusation.accused},
        steps=_steps(case, accusation, cycle, groups),
    )


def _steps(case: Case, accusation: Accusation[Any], cycle: Sides, groups: list[str]) -> list[str]:
    if any(unit.makes_group_of for side in cycle.sides for unit in side.wait.inside):
        return [SAME_GROUPS]
    messages = [side for side in cycle.sides if side.wait.point_to_point]
    if messages and len(groups) == 1:
        return [BY_CALL["recv"]]
    order = f"code: make every rank {_same_order(case, accusation, groups)}"
    itself = "NCCL 2.26 and newer can order them itself: NCCL_LAUNCH_ORDER_IMPLICIT=1"
    return [order] if runs_on_gloo(case) else [order, itself]


def _headline(ranks: tuple[int, ...], cycle: Sides, over: str, called: Mapping[int, str]) -> tuple[str, str]:
    """The headline, and who is wrong. `called`: from where each rank called what it is inside of."""
    each_other = f"ranks wait for each other {over}"
    if cycle.tied:
        wrong = "neither side is in the minority"
        accused = [side for side in cycle.sides if not set(side.ranks).isdisjoint(ranks)]
        lines = [f"{ranks_text(s.ranks)}{called[s.ranks[0]]}" for s in accused if called[s.ranks[0]]]
        listed = f": {', '.join(lines[:_LISTED])}" if lines else ""
        return f"{each_other}{listed}; {wrong}", wrong
    order = f"{verb(ranks, 'makes its', 'make their')} calls in a different order than the rest"
    return (
        f"{ranks_text(ranks)}{called.get(ranks[0], '')} {order}; {each_other}",
        f"{ranks_text(ranks)} {order}",
    )


def _same_order(case: Case, accusation: Accusation[Any], groups: list[str]) -> str:
    if len(groups) == 1:
        return f"make its calls in {groups[0]} in the same order"
    missed = case.names.group(accusation.its_wait.group)
    return f"use these groups in the same order: {', then '.join(dict.fromkeys([missed, *groups]))}"
