"""The slow rank: who it is, what it costs, and that nobody else is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hangscope
from hangscope.diagnosis import Diagnosis, diagnose
from hangscope.model import Job
from hangscope.simulate.events.event_engine import EventEngine
from hangscope.simulate.events.job_run import JobRun
from hangscope.simulate.faults.fault_plan import FaultPlan
from hangscope.simulate.program.healthy_job import HealthyJob
from hangscope.simulate.simulated_job import Simulated
from hangscope.simulate.spec.job_layout import Groups
from hangscope.simulate.spec.job_spec import Spec
from kits.small_jobs import Op, job

TP1, TP2, DP1, DP2, D = "TP1", "TP2", "DP1", "DP2", "default_pg"
ROUNDS = 10


def accused(verdict: Diagnosis) -> list[int]:
    return [c.rank for c in verdict.culprits]


# ---- simulated: the delay is known ---------------------------------------------------------------------------------


def slowed(spec: Spec, rank: int, variant: str, late_ms: float, folder: Path) -> tuple[Diagnosis, float]:
    """The verdict on a job with one late rank, and by which share its steps really became longer."""
    program = HealthyJob(spec)
    plan = FaultPlan("slow", variant, rank, hang=False, culprits=[rank])
    (plan.late_cpu_ns if variant == "cpu" else plan.late_gpu_ns)[rank] = int(late_ms * 1e6)
    run, healthy = (JobRun(program, p, steps_after=0) for p in (plan, FaultPlan("none", "stopped", hang=False)))
    Simulated(run).write(folder)
    with_it, without = (r.step_begins(3) - r.step_begins(1) for r in (run, healthy))
    return hangscope.diagnose(hangscope.load([folder])), 1 - without / with_it


LAYOUTS = {
    "data": Spec(ranks=8),
    "overlap": Spec(ranks=8, overlap=True),
    "tensor": Spec(ranks=16, tp=8),
    "ddp": Spec(ranks=8, tp=2, data_parallel="ddp"),
    "experts": Spec(ranks=8, tp=2, ep=4),
    "batches": Spec(ranks=8, data_parallel="coalesced"),
    "pipeline": Spec(ranks=16, tp=2, pp=4, microbatches=3),
    "plain pipeline": Spec(ranks=16, tp=2, pp=4, microbatches=3, plain_p2p=True),
    "pipeline without tensor": Spec(ranks=16, pp=4, data_parallel="ddp", microbatches=4),
    "skewed": Spec(ranks=16, gpus_per_node=4, clock_skew_ms=400),
}


@pytest.mark.parametrize("variant", ["cpu", "gpu"])
@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_figures_are_those_of_the_delay(layout: str, rank: int, variant: str, tmp_path: Path) -> None:
    """Whoever is late, root of the broadcast or not, is named alone, with what the steps became longer as its cost."""
    late_ms = 60.0
    verdict, share = slowed(replace(LAYOUTS[layout], entries=400, layers=4), rank, variant, late_ms, tmp_path)
    assert (verdict.kind, verdict.hang, accused(verdict)) == ("slow", False, [rank])
    top = verdict.lateness[0]
    assert top.rank == rank
    # A late GPU has part of its delay while the next batch is loaded, and a late CPU while the GPU computes.
    assert late_ms * 0.8 < top.late_ms_median < late_ms * 1.05
    assert top.share_of_step == pytest.approx(share, abs=0.03)
    assert 3 <= top.times_last <= top.operations
    assert all(item.share_of_step < 0.03 for item in verdict.lateness[1:])


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_what_a_pipeline_hides_is_not_held_against_anybody(stage: int, tmp_path: Path) -> None:
    """Behind the first stage a short delay fits into the wait for the first transfer; what is beyond that costs."""
    spec = Spec(ranks=32, tp=2, pp=4, layers=8, microbatches=3, entries=600, seed=stage)
    rank = 8 * stage + 3
    verdict, share = slowed(spec, rank, "cpu", 10, tmp_path / "short")
    assert share == pytest.approx(0, abs=0.001)
    assert verdict.kind == "none"
    verdict, share = slowed(spec, rank, "cpu", 40, tmp_path / "long")
    assert accused(verdict) == [rank]
    assert 0.1 < verdict.lateness[0].share_of_step == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize("data_parallel", ["ddp", "fsdp"])
@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (1, 2)])
def test_a_throttled_gpu(data_parallel: str, tp: int, pp: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slower at everything, with gradients reduced beside the computation: a third is found, a few percent are not
    blown up to a straggler by being seen in every bucket."""
    for factor, named in ((1.03, []), (1.35, [3])):

        def engine(groups: Groups, ops: Any, starts: Any, gaps: Any, by: float = factor, **more: Any) -> EventEngine:
            changed = [[int(gap * (by if rank == 3 else 1)) for gap in mine] for rank, mine in enumerate(gaps)]
            return EventEngine(groups, ops, starts, changed, **more)

        monkeypatch.setattr("hangscope.simulate.events.job_run.EventEngine", engine)
        spec = Spec(ranks=8 * pp, tp=tp, pp=pp, data_parallel=data_parallel, overlap=True, layers=16, entries=1500)
        run = JobRun(HealthyJob(spec), FaultPlan("none", "stopped", hang=False), steps_after=0)
        folder = tmp_path / str(factor)
        Simulated(run).write(folder)
        assert accused(hangscope.diagnose(hangscope.load([folder]))) == named


def test_late_launches_are_seen_without_timing(tmp_path: Path) -> None:
    """Only what the watchdog's sweep cannot explain; a lateness that lasts over many calls is counted once."""
    verdict, share = slowed(Spec(ranks=8, timing=False, entries=300), 5, "cpu", 500, tmp_path / "late")
    assert (verdict.kind, accused(verdict), verdict.confidence) == ("slow", [5], "medium")
    assert verdict.lateness[0].share_of_step == pytest.approx(share, abs=0.1)
    verdict, _ = slowed(Spec(ranks=8, timing=False, entries=300), 5, "gpu", 500, tmp_path / "gpu")
    assert verdict.kind == "none"


# ---- by hand: what is evidence and what is not -----------------------------------------------------------------------


def timed(groups: dict[str, list[int]], calls: dict[int, list[str]], duration: Callable[[int, int, int], float]) -> Job:
    """Rounds of a second in which every rank calls its groups in turn; durations by (rank, number in round, round)."""
    made = job(groups, {rank: [Op(group) for group in mine] * ROUNDS for rank, mine in calls.items()})
    columns = made.ops.columns
    for rank, mine in calls.items():
        for index, row in enumerate(range(made.ops.span(rank).start, made.ops.span(rank).stop)):
            number, place = divmod(index, len(mine))
            columns["duration_ms"][row] = duration(rank, place, number)
            columns["created_ns"][row] = 10**18 + int(1e9 * (number + place / 10))
    return made


def alone(durations: Sequence[Sequence[float]]) -> Diagnosis:
    """One group of as many ranks as there are lists; each list has the durations of the rounds, over and over."""
    ranks = list(range(len(durations)))
    return diagnose(timed({D: ranks}, {r: [D] for r in ranks}, lambda r, _, n: durations[r][n % len(durations[r])]))


def test_who_passes_lateness_on_is_not_blamed() -> None:
    """Rank 3 is late for 2 in one group and for 1 in another, and 2 therefore for 0: everybody but 3 waited."""
    calls = {0: [TP1, DP1], 1: [TP1, DP2], 2: [TP2, DP1], 3: [TP2, DP2]}
    waits = {(2, 0): 400.0, (0, 1): 400.0, (1, 1): 400.0}
    groups = {TP1: [0, 1], TP2: [2, 3], DP1: [0, 2], DP2: [1, 3]}
    verdict = diagnose(timed(groups, calls, lambda rank, place, _: 1 + waits.get((rank, place), 0.0)))
    assert (verdict.kind, accused(verdict)) == ("slow", [3])
    assert verdict.confidence == "medium"  # of two ranks nobody can say how much they differ by chance
    assert [item.rank for item in verdict.lateness] == [3]
    assert verdict.lateness[0].late_ms_median == pytest.approx(400)
    assert verdict.lateness[0].share_of_step == pytest.approx(0.4, abs=0.05)


def test_one_rank_that_comes_last_every_time() -> None:
    """The plain case, and two of them at once."""
    ranks = list(range(7))
    groups, calls = {D: ranks, DP1: ranks}, {r: [D, DP1] for r in ranks}
    verdict = diagnose(timed(groups, calls, lambda rank, place, _: 1.0 if place or rank == 2 else 300.0))
    assert (accused(verdict), verdict.confidence) == ([2], "high")
    verdict = diagnose(timed(groups, calls, lambda rank, place, _: 1.0 if place or rank in (1, 2) else 300.0))
    assert accused(verdict) == [1, 2]


def test_one_line_after_the_other_may_be_one_lateness() -> None:
    """Buckets that overlap with the backward pass show the same small lateness each: named only if it is large, and
    then with an upper bound."""
    assert alone([[300], [300], [1], [300], [300]]).kind == "none"
    verdict = alone([[500], [500], [1], [500], [500]])
    assert (accused(verdict), verdict.confidence) == ([2], "medium")
    assert "up to 50%" in verdict.headline


@pytest.mark.parametrize(
    "durations",
    [
        [[500, 1, 500, 500], [1, 500, 500, 500], [500, 500, 1, 500], [500, 500, 500, 1]],  # each is last in its turn
        [[300] * 9 + [2000], [300] * 9 + [2000], [300] * 10, [300] * 9 + [2000]],  # one hiccup
        [[20], [21], [5], [20]],  # too little to matter
        [[450], [300], [250], [700], [900]],  # all differ
        [[500], [1], [1], [1]],  # most of them are late: one is early
    ],
)
def test_what_is_no_straggler(durations: list[list[float]]) -> None:
    verdict = alone(durations)
    assert (verdict.kind, accused(verdict)) == ("none", [])


def test_other_work_is_not_compared() -> None:
    """Two stages meet in one group: the one with more calls spends more time inside, by nature."""
    calls = {0: [D, DP1], 1: [D, DP1], 2: [D], 3: [D]}
    verdict = diagnose(timed({D: [0, 1, 2, 3], DP1: [0, 1]}, calls, lambda _, place, __: 1 + 300.0 * place))
    assert verdict.kind == "none"


def test_an_operation_without_a_duration_spoils_only_its_own_stretch() -> None:
    """What the watchdog had not swept when the dump was taken has none."""
    made = timed({D: [0, 1, 2, 3]}, {r: [D] for r in range(4)}, lambda r, _, __: 1.0 if r == 2 else 500.0)
    last = [made.ops.span(rank).stop - 1 for rank in range(4)]
    made.ops.columns["duration_ms"][last] = np.nan
    verdict = diagnose(made)
    assert (accused(verdict), verdict.lateness[0].times_last) == ([2], ROUNDS - 2)
