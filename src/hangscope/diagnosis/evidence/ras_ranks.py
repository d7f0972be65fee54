"""What NCCL's RAS says of single ranks: which it could not reach, and which launched another number of collectives."""

from __future__ import annotations

from collections import Counter

from hangscope.model import Job, RasRank, RasReport, Source

_LEAST_COUNTED = 3
_NAMED = 3


def lost_to_ras(job: Job, lives: set[int]) -> tuple[dict[int, Source], dict[int, Source]]:
    """Ranks that NCCL's RAS could not reach, and those that it considers dead, with the source.

    An answer that lacks a rank which shows life elsewhere, or most of the job, did not ask them: it says nothing.
    """
    by_pid = {process.pid: rank for rank, process in job.processes.items() if process.pid is not None}
    unreachable: dict[int, Source] = {}
    dead: dict[int, Source] = {}
    for report in job.facts.ras:
        entries = [entry for entry in report.ranks if _is_lost(entry)]
        lost = [(_rank_of(job, report, entry, by_pid), entry) for entry in entries]
        if any(rank in lives for rank, _ in lost) or len(entries) * 2 >= report.size:
            continue
        for rank, entry in lost:
            if rank is not None:
                unreachable.setdefault(rank, report.source)
            if rank is not None and entry.dead:
                dead.setdefault(rank, report.source)
    return unreachable, dead


def _is_lost(entry: RasRank) -> bool:
    return entry.missing or entry.unresponsive or entry.dead


def _rank_of(job: Job, report: RasReport, entry: RasRank, by_pid: dict[int, int]) -> int | None:
    """The rank in the job: of that process, else as the answer says, else as its largest communicator counts."""
    rank = by_pid.get(entry.pid) if entry.pid is not None else entry.global_rank
    return entry.rank if rank is None and report.size == job.world_size else rank


def odd_in_ras(job: Job) -> tuple[dict[int, str], Source] | None:
    """Ranks that NCCL's RAS could not reach, or that launched another number of collectives than most, and the answer.

    Counts only of the largest communicator that RAS knows: who waits in one group is behind in others, too.
    """
    lost, _ = lost_to_ras(job, set())
    if lost:
        return dict.fromkeys(sorted(lost), "did not answer NCCL's RAS"), lost[min(lost)]
    largest = max((max(report.size, report.largest) for report in job.facts.ras), default=0)
    last = {report.comm_id: report for report in job.facts.ras if report.size == largest}
    found = [(odd, report.source) for report in last.values() if (odd := _odd_counts(report))]
    return found[0] if len(found) == 1 else None


def _odd_counts(report: RasReport) -> dict[int, str]:
    members = [e for e in report.ranks if e.rank < report.size and e.counts]
    counts = {e.global_rank: dict(e.counts) for e in members if e.global_rank is not None}
    if len(counts) < max(_LEAST_COUNTED, report.size):
        return {}
    usual = dict(Counter(tuple(sorted(mine.items())) for mine in counts.values()).most_common(1)[0][0])
    odd: dict[int, str] = {}
    for rank, mine in counts.items():
        names = sorted(name for name in {*mine, *usual} if mine.get(name, 0) != usual.get(name, 0))
        if names:
            times = ", ".join(f"{n} {mine.get(n, 0)} times, not {usual.get(n, 0)}" for n in names[:_NAMED])
            odd[rank] = f"launched {times}, by NCCL's RAS"
    return odd if len(odd) * 2 < len(counts) else {}
