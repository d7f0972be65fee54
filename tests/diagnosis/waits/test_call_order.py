"""Who left custom in a knot of waits, who is alone in waiting for nothing, and what is merely in flight."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace
from pathlib import Path

import pytest

import hangscope
from hangscope.diagnosis import Diagnosis, diagnose
from hangscope.model import Dump, Group, Job
from hangscope.reader import parallel
from kits.small_jobs import Op, job, recv, send

FIRST, LAST, WORLD = "stage 0", "stage 1", "default_pg"
STAGES = {FIRST: [0, 1, 2, 3], LAST: [4, 5, 6, 7]}
PAIRS = {f"pair {rank}": [rank, rank + 4] for rank in range(4)}


def accused(verdict: Diagnosis) -> list[int]:
    return [c.rank for c in verdict.culprits]


def one_step(rank: int) -> list[Op]:
    """Two pipeline stages of four ranks: activations forward, two gradients reduced, gradients of activations back."""
    pair = f"pair {rank % 4}"
    stage = FIRST if rank < 4 else LAST
    moves = (send, recv) if rank < 4 else (recv, send)
    other = rank + 4 if rank < 4 else rank - 4
    return [
        moves[0](pair, other, line=20),
        Op(stage, "all_gather", line=30),
        Op(stage, "reduce_scatter", line=40),
        moves[1](pair, other, line=50),
        Op(WORLD, "all_reduce", elements=1, line=60),
    ]


def stuck(op: Op) -> Op:
    return replace(op, state="started")


def pipelined(last: dict[int, list[Op]], **more: object) -> Job:
    """Six good steps, and then what each rank launched of the seventh."""
    steps = {rank: [op for _ in range(6) for op in one_step(rank)] + last[rank] for rank in range(8)}
    return job({**STAGES, **PAIRS, WORLD: list(range(8))}, steps, **more)  # type: ignore[arg-type]


def rest_waits(odd: int, its_calls: list[Op]) -> dict[int, list[Op]]:
    """Everybody else goes on as ever, and sticks where the odd rank is missed."""
    last: dict[int, list[Op]] = {}
    for rank in range(8):
        calls = one_step(rank)
        if rank == odd:
            last[rank] = its_calls
        elif rank < 4:
            last[rank] = [calls[0], stuck(calls[1])]
        elif rank == odd + 4:
            last[rank] = [stuck(calls[0])]
        else:
            last[rank] = [calls[0], stuck(calls[1])]
    return last


@pytest.mark.parametrize("odd", [0, 2])
@pytest.mark.parametrize("stacks", [True, False])
def test_extra_call_in_a_pipeline_blames_one_rank_and_no_stage(odd: int, stacks: bool) -> None:
    """A call that nobody else makes there starts a knot over all groups; the many who wait are no minority side."""
    extra = Op(WORLD, "barrier", elements=1, line=99, state="started")
    verdict = diagnose(pipelined(rest_waits(odd, [extra]), stacks=stacks))
    assert accused(verdict) == [odd]
    assert (verdict.kind, verdict.confidence) == ("mismatch", "high")
    assert "barrier" in verdict.headline
    assert any("other ranks, is send" in finding.text for finding in verdict.why)


def test_call_left_out_across_groups_is_named_with_its_line() -> None:
    """Rank 1 leaves two calls out and goes on to the end of the step, where the last stage waits for the others too."""
    last = {rank: [*one_step(rank)[:4], stuck(one_step(rank)[4])] for rank in range(4, 8)}
    last |= {rank: [one_step(rank)[0], stuck(one_step(rank)[1])] for rank in (0, 2, 3)}
    calls = one_step(1)
    verdict = diagnose(pipelined(last | {1: [calls[0], calls[3], stuck(calls[4])]}))
    assert (verdict.kind, accused(verdict)) == ("mismatch", [1])
    assert "skipped all_gather in step (train.py:30)" in verdict.headline
    assert verdict.operation is not None
    assert verdict.operation.name == "all_gather"


def test_call_left_out_long_before_the_hang_is_found() -> None:
    """A pair swallows a skip until the end of the step, a dozen calls later: nobody but rank 1 is accused."""
    pair = {"pair 0": [0, 1], "pair 1": [2, 3], WORLD: [0, 1, 2, 3]}
    step = [Op("", line=line) for line in (20, 30, 40, 20, 30, 40, 20, 30, 50, 60, 70, 80)]
    end = Op(WORLD, "barrier", elements=1, line=90)

    def rounds(rank: int) -> list[Op]:
        mine = [replace(op, group="pair 0" if rank < 2 else "pair 1") for op in step]
        done = [op for _ in range(4) for op in (*mine, end)]
        if rank == 0:
            return [*done, *mine[:-1], stuck(mine[-1])]
        if rank == 1:
            return [*done, *mine[1:], stuck(end)]  # it left the first call out
        return [*done, *mine, stuck(end)]

    verdict = diagnose(job(pair, {rank: rounds(rank) for rank in range(4)}))
    assert accused(verdict) == [1]


def test_two_calls_that_changed_places_are_a_deadlock() -> None:
    """The usual call comes later on the odd rank: order, not a call too many."""
    calls = one_step(1)
    last = rest_waits(1, [stuck(calls[4]), replace(calls[0], state="scheduled")])
    verdict = diagnose(pipelined(last))
    assert (verdict.kind, accused(verdict)) == ("deadlock", [1])


@pytest.mark.parametrize("first", [0, 1])
def test_two_ranks_that_leave_their_habit_at_once_are_a_deadlock(first: int) -> None:
    """One against one is no majority, whichever has the lower number: neither call is the one that does not belong."""
    habit = [Op(WORLD, line=80) for _ in range(20)]
    ranks = {first: [*habit, stuck(Op("a", line=36))], 1 - first: [*habit, stuck(Op("b", line=41))]}
    verdict = diagnose(job({WORLD: [0, 1], "a": [0, 1], "b": [0, 1]}, ranks))
    assert (verdict.kind, accused(verdict), verdict.confidence) == ("deadlock", [0, 1], "medium")


def of_torch_2_2(built: Job) -> Job:
    """The same job as torch 2.2 records it: no names, no members, one local number for all groups of a kind."""
    groups = tuple(
        Group(g.index, str(g.index + 1), "", g.members, g.backend, members_seen=True) if g.desc != WORLD else g
        for g in built.groups
    )
    dumps = {rank: tuple(_without_version(d) for d in of_rank) for rank, of_rank in built.dumps.items()}
    return replace(built, groups=groups, dumps=dumps)


def _without_version(dump: Dump) -> Dump:
    return replace(dump, version="")


def eight(odd: list[Op]) -> dict[int, list[Op]]:
    waiting = [Op("tp"), Op("dp"), Op("tp", state="started")]
    return {rank: list(waiting) for rank in range(7)} | {7: odd}


def test_only_rank_that_waits_in_nothing_is_the_absent_one_where_groups_are_unknown() -> None:
    """torch 2.2 does not say who is in a group; whoever is kept waiting is inside something all the same."""
    groups = {"tp": range(8), "dp": range(8)}
    verdict = diagnose(of_torch_2_2(job(groups, eight([Op("tp"), Op("dp")]))))
    assert (verdict.kind, accused(verdict), verdict.confidence) == ("absent", [7], "medium")


def test_only_idle_rank_of_a_small_job_is_named_too() -> None:
    """One of four is few enough."""
    waiting = [Op("tp"), Op("dp", state="started")]
    ranks = {0: waiting, 1: waiting, 2: [Op("tp")], 3: waiting}
    verdict = diagnose(of_torch_2_2(job({"tp": range(4), "dp": range(4)}, ranks)))
    assert (verdict.kind, accused(verdict), verdict.confidence) == ("absent", [2], "medium")


def test_only_gpu_that_has_not_started_is_stuck_where_groups_are_unknown() -> None:
    """All other GPUs have started what they wait in."""
    groups = {"tp": range(8), "dp": range(8)}
    verdict = diagnose(of_torch_2_2(job(groups, eight([Op("tp"), Op("dp"), Op("dp", state="scheduled")]))))
    assert (verdict.kind, accused(verdict), verdict.confidence) == ("gpu", [7], "medium")


def test_many_idle_ranks_among_unknown_groups_are_not_accused_of_being_alone() -> None:
    """Half of the ranks idle would rather mean that the dumps were taken at different times."""
    ranks = {r: [Op("tp"), Op("dp", state="started")] if r < 4 else [Op("tp"), Op("dp")] for r in range(8)}
    verdict = diagnose(of_torch_2_2(job({"tp": range(8), "dp": range(8)}, ranks)))
    assert verdict.confidence != "high"


def test_gpu_that_never_starts_what_its_root_has_sent_is_a_gpu_and_no_network() -> None:
    """A small broadcast is finished at its root before anybody receives it: the receiver's GPU is what is stuck."""
    verdict = diagnose(
        job({"tp": [0, 1]}, {0: [Op("tp"), Op("tp", "broadcast")], 1: [Op("tp"), Op("tp", "broadcast", "scheduled")]})
    )
    assert (verdict.kind, accused(verdict), verdict.confidence) == ("gpu", [1], "high")


def test_large_step_in_flight_is_no_hang_while_ranks_that_wait_still_launch() -> None:
    """A stage may wait 20 s for its turn; that its peers launched something a moment ago says that the job runs."""
    ranks = {
        0: [Op("tp"), Op("pp", state="started")],
        1: [*[Op("tp") for _ in range(299)], Op("tp", state="started")],
        2: [*[Op("tp") for _ in range(299)], Op("tp", state="started")],
    }
    running = job({"tp": [1, 2], "pp": [0, 1]}, ranks, hung_s=20.0)
    verdict = diagnose(running)
    assert (verdict.hang, verdict.kind, accused(verdict)) == (False, "none", [])
    hung = job({"tp": [1, 2], "pp": [0, 1]}, {**ranks, 1: [Op("tp")], 2: [Op("tp")]}, hung_s=20.0)
    assert diagnose(hung).hang


def _ranks_read(folder: str) -> int:
    parallel.PARALLEL_BYTES = 0
    return len(hangscope.load([Path(folder)]).dumps)


def test_dumps_are_read_inside_a_worker_of_a_process_pool() -> None:
    """Such a worker may have no children; it reads alone instead of failing."""
    folder = Path(__file__).parents[2] / "cases" / "healthy"
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(_ranks_read, (str(folder),)) == 4
