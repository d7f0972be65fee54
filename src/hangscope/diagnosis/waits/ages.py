"""How long operations had been waiting when the evidence was taken, and whether the job hangs at all.

Ages are of one operation each: that a pair has been stuck for minutes says nothing about six others who train.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from hangscope.diagnosis.align.alignment import Alignment
from hangscope.diagnosis.evidence.answer import Says
from hangscope.diagnosis.waits.progress import Progress, Unit
from hangscope.diagnosis.waits.wait_graph import IN_FLIGHT_S, Wait, Waits
from hangscope.model import UNKNOWN, Job

# Where something has hung for so long, what was launched just now belongs to ranks that run.
_LONG_AGO_S = 20.0
# Where half of the ranks that wait in it launched something this shortly before their dumps, they run.
_QUIET_S = 1.0
# So long an operation may be unfinished while ranks still launch new ones: steps of large jobs take that long.
_LONG_S = 60.0
# Two looks are seconds apart: a rank that stood still in both, and that others wait for so long, holds them up.
_STILL_S = 5.0


@dataclass(frozen=True, slots=True)
class Hang:
    """Whether the job hangs, and what says so.

    `age_known` is False where operations are unfinished and for how long is unknown: it may have been a moment.
    """

    says: Says
    why: str
    age_known: bool = True


def hang_of(alignment: Alignment, waits: Waits, lost: Collection[int]) -> Hang:
    """Whether the job hangs. Gives every wait its age, and leaves those out that are merely in flight.

    What waits for a rank that is `lost` (ended or frozen) is no such one, however young.
    """
    job = alignment.job
    _give_ages(alignment, waits)
    oldest = sorted(((w.age_s, n) for n, w in enumerate(waits.all) if w.age_s is not None), reverse=True)
    stuck_s = next((age_s for age_s, n in oldest if _is_stuck(alignment, waits, waits.all[n], age_s)), 0.0)
    if stuck_s >= _LONG_AGO_S:
        waits.drop([w for w in waits.all if w.in_flight and not any(rank in lost for rank in w.blockers)])
    return (
        _reported(job, waits.progress)
        or _came_to_an_end(job)
        or _moved(job, waits)
        or _captured_in_trouble(job, waits)
        or _unfinished_for(stuck_s)
        or _without_age(job, waits)
    )


def _give_ages(alignment: Alignment, waits: Waits) -> None:
    timed = [r for r in alignment.job.facts.watchdog if r.seq is not None]
    reported: dict[tuple[int, int | None], float] = {}
    """The longest that a rank's watchdog reported for a number: thousands of groups may have the same one."""
    for report in timed:
        if report.elapsed_ms is not None:
            key = (report.rank, report.seq)
            reported[key] = max(report.elapsed_ms / 1e3, reported.get(key, 0.0))
    for wait in waits.all:
        ages = [age for unit in wait.inside for age in _ages_s(alignment, unit, reported)]
        seen = [age for unit in wait.inside if (age := _seen_s(alignment, unit)) is not None]
        wait.age_s = max(ages or seen, default=None)
        wait.age_is_least = bool(seen) and not ages


# ---- what says by itself whether the job hangs -----------------------------------------------------------------------


def _reported(job: Job, progress: Progress) -> Hang | None:
    """By the watchdog. What was completed since, and more after it, hung in an attempt before."""
    reports = [r for r in job.facts.watchdog if r.kind in ("timeout", "async_error")]
    timeouts = {r.rank for r in reports if r.seq is None or progress.proven.get(progress.group_of(r), 0) <= r.seq}
    return Hang(Says.YES, f"PyTorch's watchdog reported it on {len(timeouts)} rank(s)") if timeouts else None


def _came_to_an_end(job: Job) -> Hang | None:
    """By how all ranks ended.

    A Python that ended without destroy_process_group() may signal a timeout to the others (torch 2.10 and later).
    """
    signals = [r.signalled_by for r in job.facts.watchdog if r.signalled_by is not None]
    ends = dict.fromkeys((rank for rank, _ in job.facts.clean_exits if not job.facts.errors), 0)
    ends |= {rank: p.exit_status for rank, p in job.processes.items() if p.exit_status is not None}
    if all(ends.get(rank) == 0 for rank in (*job.ranks, *signals)):
        return Hang(Says.NO, f"all {len(job.ranks)} ranks exited cleanly")
    if signals:
        return Hang(Says.YES, f"rank {signals[0]} signalled a timeout to the others")
    own = {r.rank for r in job.facts.watchdog if r.own_timeout}
    return Hang(Says.YES, f"{len(own)} rank(s) say that a collective of their own timed out") if own else None


def _moved(job: Job, waits: Waits) -> Hang | None:
    """By two looks. A host that launches on behind an operation that its peers never launched makes no progress."""
    moved = {rank for rank, process in job.processes.items() if process.moved is True}
    for wait in waits.all:
        if _blockers_are_still(job, wait):
            moved.difference_update(wait.waiters)
    many = len(moved) * 2 > len(job.ranks)
    return Hang(Says.NO, f"{len(moved)} ranks made progress between two samples") if many else None


def _blockers_are_still(job: Job, wait: Wait) -> bool:
    """Whether two looks saw every rank that the wait is for at the same place, and it has lasted some time."""
    if wait.age_s is None or wait.age_s < _STILL_S:
        return False
    seen = [job.processes.get(rank) for rank in wait.blockers]
    return bool(seen) and all(process is not None and process.moved is False for process in seen)


def _captured_in_trouble(job: Job, waits: Waits) -> Hang | None:
    trouble = job.under_run and bool(waits.all)
    return Hang(Says.YES, f"the evidence was captured because of a {job.reason}") if trouble else None


def _unfinished_for(stuck_s: float) -> Hang | None:
    return Hang(Says.YES, f"an operation had been unfinished for {stuck_s:.1f} s") if stuck_s else None


# ---- ages ------------------------------------------------------------------------------------------------------------


def _ages_s(alignment: Alignment, unit: Unit, reported: dict[tuple[int, int | None], float]) -> Iterator[float]:
    """How long a rank had been waiting, as its watchdog and its dump say."""
    if not unit.point_to_point and (unit.rank, unit.seq) in reported:
        yield reported[unit.rank, unit.seq]
    created = alignment.job.ops.column("created_ns")[unit.row] if unit.row is not None else UNKNOWN
    dumped = alignment.dumped_ns.get(unit.rank, UNKNOWN)
    if created >= 0 and dumped > 0:
        yield (dumped - int(created)) / 1e9
    elif created > 0 and (seen_ns := _captured_ns(alignment.job)) > int(created):
        yield (seen_ns - int(created)) / 1e9


def _seen_s(alignment: Alignment, unit: Unit) -> float | None:
    """For how long it was seen there, by looks: it came there before the first of them."""
    process = alignment.job.processes.get(unit.rank)
    return process.stood_s or None if process is not None and process.waits_in else None


def _captured_ns(job: Job) -> int:
    """When it was captured as it stood: Gloo's dumps do not say when they were written (torch 2.8-2.15)."""
    taken = job.reason == "snapshot" or (job.under_run and job.reason == "stall")
    return job.captured_at_ns or UNKNOWN if taken else UNKNOWN


def _is_stuck(alignment: Alignment, waits: Waits, wait: Wait, age_s: float) -> bool:
    """Whether the ranks inside launch nothing more, nor do most that they wait for, directly or through others."""
    if age_s < IN_FLIGHT_S or age_s >= _LONG_S:
        return age_s >= IN_FLIGHT_S
    if _blockers_are_still(alignment.job, wait):
        return True
    others = waits.awaited_by(wait.waiters)
    # Where most ranks that wait in anything still launch, the job runs in long steps; not so long, though.
    everyone = [rank for rank, found in waits.of.items() if found and age_s < _LONG_AGO_S]
    return all(_quiet_s(alignment, ranks) >= _QUIET_S for ranks in (wait.waiters, others, everyone))


def _quiet_s(alignment: Alignment, ranks: Collection[int]) -> float:
    """How long before its dump the middle one of these ranks last launched something, each on its own clock."""
    dumped = alignment.dumped_ns
    last = alignment.launched_ns
    quiet = [dumped[r] - last[r] for r in ranks if last.get(r, UNKNOWN) > 0 and dumped[r] > 0]
    return float(np.median(quiet)) / 1e9 if quiet else _LONG_S


def _without_age(job: Job, waits: Waits) -> Hang:
    """Nothing is old, as far as that is known."""
    known = [w.age_s for w in waits.all if w.age_s is not None]
    without = {r for w in waits.all for r in w.blockers} - set(job.dumps)
    if known and without and job.reason != "snapshot":
        # A rank that died takes the others down within moments, so that their dumps are young.
        why = f"operations are unfinished, and rank {min(without)}, which they wait for, left no dump"
        return Hang(Says.YES, why, age_known=False)
    # In a hang every operation that waits is old: one whose dumps have no stamp is as young as the rest.
    if known:
        return Hang(Says.NO, f"the oldest unfinished operation was {max(known):.2f} s old")
    if not waits.all:
        return Hang(Says.NO, "no operation is unfinished")
    return Hang(Says.YES, "operations are unfinished, and nothing says how long they have been", age_known=False)
