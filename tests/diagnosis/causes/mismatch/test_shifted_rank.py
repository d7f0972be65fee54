"""shift: calls that lastingly meet the wrong ones of their group, while nothing hangs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hangscope.diagnosis import Diagnosis, diagnose
from hangscope.model import Operations, Process
from kits.small_jobs import SECOND, Op, job, send

D = "default_pg"
FORWARD = Op(D, line=37)
BACKWARD = Op(D, line=41)
STEP = (FORWARD, BACKWARD, BACKWARD)
ALL = (0, 1, 2, 3)


def steps(count: int = 60, *, at: int = 30, instead: tuple[Op, ...] = STEP, step: tuple[Op, ...] = STEP) -> list[Op]:
    """So many steps; `instead` of one of them something else."""
    return [op for number in range(count) for op in (instead if number == at else step)]


def verdict(ranks: dict[int, list[Op]], **more: Any) -> Diagnosis:
    return diagnose(job(more.pop("groups", {D: sorted(ranks)}), ranks, **more))


def said(found: Diagnosis) -> tuple[str, str, list[int], str]:
    return str(found.outcome), str(found.kind), [culprit.rank for culprit in found.culprits], found.confidence


def test_a_rank_that_left_its_backward_out_is_named_with_both_lines() -> None:
    """Rank 2 skips the backward of one step: same sizes, so everything goes on, and every later call meets another."""
    ranks = {rank: steps() for rank in ALL} | {2: steps(instead=(FORWARD,))}
    found = verdict(ranks)
    assert said(found) == ("desync", "shift", [2], "high")
    assert not found.hang
    assert found.exit_status == 0
    assert found.headline == (
        "since #92 rank 2 calls from step (train.py:37) what the others call from step (train.py:41)"
    )
    assert found.operation is not None
    assert found.operation.seq == 92
    assert found.culprits[0].where is not None
    assert found.culprits[0].where.line == 37
    assert any("left 2 calls out" in finding.text for finding in found.why)


def test_a_call_too_many_is_named_as_added() -> None:
    """Rank 1 makes one call that nobody else makes, and is one number behind ever since."""
    extra = Op(D, line=77)
    found = verdict({rank: steps() for rank in ALL} | {1: steps(instead=(FORWARD, extra, BACKWARD, BACKWARD))})
    assert said(found) == ("desync", "shift", [1], "high")
    assert any("made 1 call too many" in finding.text for finding in found.why)
    assert any("train.py:77" in finding.text and "added" in finding.text for finding in found.why)


def test_without_stacks_the_sizes_tell() -> None:
    """JSON dumps have no lines: where a call left out moves sizes, these show it."""
    step = (FORWARD, replace(BACKWARD, elements=64), replace(BACKWARD, elements=4))
    ranks = {rank: steps(step=step, instead=step) for rank in ALL} | {3: steps(step=step, instead=step[:1])}
    found = verdict(ranks, stacks=False)
    assert said(found) == ("desync", "shift", [3], "high")
    assert "where the others call" in found.headline


def test_a_ring_that_lost_the_beginning_says_so() -> None:
    """Only later steps are recorded: "or earlier", and by lines alone no more than medium."""
    late = {rank: steps(40) for rank in (0, 1)} | {2: steps(40)[2:]}
    first = {rank: {D: 900} for rank in (0, 1, 2)}
    found = verdict(late, first=first)
    assert said(found) == ("desync", "shift", [2], "medium")
    assert "or earlier" in found.headline


def test_what_is_in_flight_makes_no_hang_of_a_shifted_job_that_moves() -> None:
    """At the moment of the look the others are in a call that rank 2 has not launched yet: as at any other moment."""
    ranks = {rank: steps() for rank in ALL} | {2: steps(instead=(FORWARD,))}
    for rank in (0, 1, 3):
        ranks[rank][-1] = replace(ranks[rank][-1], state="started")
    moving = {rank: Process(rank, alive_at_end=True, moved=True) for rank in ALL}
    assert said(verdict(ranks, processes=moving))[:3] == ("desync", "shift", [2])


def test_two_halves_are_shown_and_nobody_is_accused() -> None:
    """Two of four skip the same call: nobody can say which side is right."""
    odd = steps(instead=(FORWARD,))
    found = verdict({0: steps(), 1: steps(), 2: odd, 3: odd})
    assert said(found) == ("desync", "shift", [], "medium")
    assert "ranks 2, 3" in found.headline
    assert "ranks 0, 1" in found.headline


def test_several_ranks_that_are_off_alike_are_all_named() -> None:
    """Two of five leave the same calls out: three agree against them."""
    odd = steps(instead=(FORWARD,))
    found = verdict({rank: steps() for rank in range(5)} | {1: odd, 4: odd})
    assert said(found) == ("desync", "shift", [1, 4], "medium")


def test_of_a_pair_the_sibling_groups_tell_who_is_off() -> None:
    """Tensor groups of two ranks: what the other pair runs at the same numbers is what this pair should run."""
    groups = {"tp": [0, 1], "tp ": [2, 3]}

    def in_group(ops: list[Op], group: str) -> list[Op]:
        return [replace(op, group=group) for op in ops]

    ranks = {rank: in_group(steps(), "tp" if rank < 2 else "tp ") for rank in ALL}
    ranks[2] = in_group(steps(instead=(FORWARD,)), "tp ")
    made = job(groups, ranks)
    meshes = tuple(replace(group, desc="mesh_tp") for group in made.groups)
    found = diagnose(replace(made, groups=meshes, ops=Operations(made.ops.columns, made.ops.tables, meshes)))
    assert said(found)[:3] == ("desync", "shift", [2])


def test_only_some_rings_are_there() -> None:
    """Of eight ranks three rings were saved: two against one, and what the others run could turn that."""
    ranks = {0: steps(), 5: steps(), 6: steps(instead=(FORWARD,))}
    found = verdict(ranks, groups={D: list(range(8))})
    assert said(found) == ("desync", "shift", [6], "high")
    alone = verdict({0: steps(), 6: steps(instead=(FORWARD,))}, groups={D: list(range(8))})
    assert alone.culprits == ()


def test_rings_of_other_lengths_and_moments_are_compared_at_common_numbers() -> None:
    """One ring begins later and one ends later: what both have decides."""
    ranks = {0: steps(61), 1: steps(60)[20:], 2: steps(60, instead=(FORWARD,))}
    made = job({D: [0, 1, 2]}, ranks, first={1: {D: 20}})
    for column in ("created_ns", "started_ns", "completed_ns"):
        made.ops.columns[column][made.ops.span(1)] += 2 * SECOND  # ten calls a second
    assert said(diagnose(made))[:3] == ("desync", "shift", [2])


HEALTHY = {
    "other lines on one rank": {0: [replace(op, line=op.line + 50) for op in steps()], 1: steps(), 2: steps()},
    "another file for each role": {r: [replace(op, line=op.line + 100 * r) for op in steps()] for r in ALL},
    "rank 0 logs from a line of its own": {
        0: steps(step=(FORWARD, Op(D, line=50), BACKWARD)),
        1: steps(step=(FORWARD, Op(D, line=52), BACKWARD)),
        2: steps(step=(FORWARD, Op(D, line=52), BACKWARD)),
    },
    "two ranks take turns": {
        0: steps(step=(FORWARD, BACKWARD), instead=(FORWARD, BACKWARD)),
        1: steps(step=(BACKWARD, FORWARD), instead=(BACKWARD, FORWARD)),
    },
    "four ranks take turns": {r: [Op(D, line=10 if number % 4 == r else 12) for number in range(160)] for r in ALL},
    "the root of a broadcast goes round": {
        r: [Op(D, "broadcast", line=10 if number % 3 == r else 12) for number in range(120)] for r in range(3)
    },
    "barriers from two lines": {
        0: [Op(D, "barrier", line=10 + number % 2) for number in range(100)],
        1: [Op(D, "barrier", line=11 - number % 2) for number in range(100)],
        2: [Op(D, "barrier", line=11 - number % 2) for number in range(100)],
    },
    "one call a step, and one less": {
        0: steps(step=(FORWARD,), instead=(FORWARD,)),
        1: steps(61, step=(FORWARD,), instead=(FORWARD,)),
        2: steps(60, step=(FORWARD,), instead=()),
    },
    "a whole step of like steps left out": {0: steps(), 1: steps(), 2: steps(61, instead=())},
    "off by one for a step, then back": {
        0: steps(),
        1: steps(),
        2: steps(at=30, instead=(BACKWARD, BACKWARD, FORWARD)),
    },
}


@pytest.mark.parametrize("name", HEALTHY)
def test_ranks_that_call_from_other_lines_are_no_shift(name: str) -> None:
    """Lines that differ by design, or that say nothing, never make a job desynchronised."""
    assert verdict(HEALTHY[name]).outcome != "desync"


def test_a_group_with_sends_is_not_compared() -> None:
    """A batch of sends may take a number of the collectives' on some ranks alone: numbers say nothing then."""
    ranks = {rank: [send(D, 1 - rank % 2), *steps()] for rank in ALL} | {2: [send(D, 3), *steps(instead=(FORWARD,))]}
    assert verdict(ranks).outcome != "desync"


def test_a_size_that_differs_in_every_step_is_a_mismatch_that_goes_on() -> None:
    """NCCL reduces it without a word: outcome desync, kind mismatch; once is what it was before, a wrong result."""
    odd = (FORWARD, BACKWARD, replace(BACKWARD, elements=99))
    found = verdict({0: steps(), 1: steps(), 2: steps(step=odd, instead=odd)})
    assert said(found) == ("desync", "mismatch", [2], "high")
    assert "60 times since #3" in found.headline
    once = verdict({0: steps(), 1: steps(), 2: steps(instead=odd)})
    assert said(once)[:3] == ("wrong", "mismatch", [2])


def test_a_type_that_two_halves_pass_differently_accuses_nobody() -> None:
    """Two ranks in bfloat16, two in float: both sides are shown."""
    odd = tuple(replace(op, dtype="BFloat16") for op in STEP)
    half = steps(step=odd, instead=odd)
    found = verdict({0: steps(), 1: steps(), 2: half, 3: half})
    assert said(found) == ("desync", "mismatch", [], "medium")


@pytest.mark.parametrize("missing", [1, 2])
def test_a_shifted_job_that_hangs_at_its_end_keeps_pointing_at_the_shifted_rank(missing: int) -> None:
    """At the end of the data the others have calls that rank 2 never makes: the cause is still what it left out."""
    odd = steps(instead=STEP[: 3 - missing])
    ranks = {rank: steps() for rank in ALL}
    for rank in (0, 1, 3):
        ranks[rank][-missing] = replace(ranks[rank][-missing], state="started")
        ranks[rank] = ranks[rank][: len(ranks[rank]) - missing + 1]
    found = verdict({**ranks, 2: odd}, hung_s=300.0)
    assert found.hang
    assert [culprit.rank for culprit in found.culprits] == [2]
    assert found.kind == "mismatch"
