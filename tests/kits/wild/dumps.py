"""Dumps that mislead: of another attempt, cut, missing, copied, with a wrong clock."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace

from kits.job_files import Job, later, preparing, rank_logs, signalled, timed_out, trained
from kits.small_dumps import packed
from kits.wild.folder import GONE, HOUR, NOT_FINE, Folder, fine, hang, scene, unclear

# ---- dumps of another attempt, cut dumps, missing dumps --------------------------------------------------------------


def _other_attempt(job: Job, rank: int, back: float, steps: int, *, hung: bool) -> bytes:
    """What the attempt before left of this rank: `steps` calls, the last one hung or done, `back` seconds before this
    attempt began."""
    calls = trained(steps, job.name)
    if hung:
        calls[-1] = replace(calls[-1], state="started")
    shifted = later(calls, -back - steps)
    earlier = Job(job.world, -round(back), job.name, hung_s=-1.0, calls=dict.fromkeys(range(job.world), shifted))
    return earlier.dump(rank)


@scene
def one_dump_of_the_attempt_before() -> Iterator[Folder]:
    """Ranks 0 and 2 sit 600 s in #121, rank 1 never came, and rank 3's file is of the attempt before."""
    for back in (63.0, 1800.0, 5 * HOUR):
        for steps, hung in ((60, True), (60, False), (120, False), (121, True), (300, False), (300, True)):
            job = Job(4).waits((0, 2))
            files = job.dumps((0, 1, 2)) | {"nccl_trace_rank_3": _other_attempt(job, 3, back, steps, hung=hung)}
            label = f"{back:.0f}s-{steps}-{'hung' if hung else 'done'}"
            yield hang(f"old-dump-beside-absent-{label}", files, (1,), kinds=frozenset({"absent"}), never=NOT_FINE)
            alone = {name: data for name, data in files.items() if not name.endswith("_1")}
            yield unclear(f"old-dump-and-missing-one-{label}", alone, (1,), (1, 3), at_most="low", never=NOT_FINE)


@scene
def one_old_dump_among_eight() -> Iterator[Folder]:
    """The culprit is seen by six others; the seventh's dump is old, cut, unreadable or not there."""
    for culprit, odd in ((5, 2), (0, 7), (7, 0)):
        for name in ("all_reduce", "_all_gather_base", "_reduce_scatter_base"):
            job = Job(8, name=name).waits(set(range(8)) - {culprit})
            good = job.dumps(set(range(8)) - {odd})
            whole = job.dump(odd)
            damaged: dict[str, bytes | None] = {
                "gone": None,
                "empty": b"",
                "cut-60": whole[: len(whole) * 6 // 10],
                "cut-95": whole[: len(whole) * 95 // 100],
                "garbage": b"\x00" * 512,
                "older": _other_attempt(job, odd, 400.0, 90, hung=True),
                "older-further": _other_attempt(job, odd, 400.0, 200, hung=False),
            }
            for how, data in damaged.items():
                files = good | ({} if data is None else {f"nccl_trace_rank_{odd}": data})
                label = f"eight-{name.strip('_')}-culprit{culprit}-{how}{odd}"
                yield hang(label, files, (culprit,), kinds=frozenset({"absent"}), never=(rf"\brank {odd} never",))


@scene
def culprit_and_witness_both_lost() -> Iterator[Folder]:
    """Two ranks without a usable dump: either may be the one, and nothing says which."""
    for missing in ((1, 3), (0, 1)):
        job = Job(4).waits(set(range(4)) - {missing[0]})
        files = job.dumps(set(range(4)) - set(missing))
        yield unclear(f"two-missing-{missing[0]}-{missing[1]}", files, missing, kinds=GONE | {"unknown", "network"})


@scene
def dumps_without_times() -> Iterator[Folder]:
    """Somebody took the times out of all dumps, or of one: the order of calls still tells."""
    for which in ((0,), (2,), (0, 1, 2, 3)):
        job = Job(4).waits((0, 1, 3))
        files = job.dumps()
        for rank in which:
            value = pickle.loads(files[f"nccl_trace_rank_{rank}"])
            for line in value["entries"]:
                line.update(time_created_ns=0, time_discovered_started_ns=None, time_discovered_completed_ns=None)
            files[f"nccl_trace_rank_{rank}"] = packed(value)
        yield hang(f"no-times-{'-'.join(map(str, which))}", files, (2,), kinds=frozenset({"absent"}), never=NOT_FINE)


# ---- clocks ----------------------------------------------------------------------------------------------------------


@scene
def clock_of_a_node_is_hours_off() -> Iterator[Folder]:
    """A wrong clock is a fact about the clock: the dumps of that node are of this attempt, as their numbers show."""
    for shift in (-5 * HOUR, 5 * HOUR, -63.0, 400.0):
        for culprit in (1, 6):
            job = Job(8).waits(set(range(8)) - {culprit})
            files = job.dumps(shift=dict.fromkeys(range(4, 8), shift))
            yield hang(f"clock-{shift:+.0f}s-culprit{culprit}", files, (culprit,), kinds=frozenset({"absent"}))
        healthy = Job(8, hung_s=1).dumps(shift=dict.fromkeys(range(4, 8), shift))
        yield fine(f"clock-{shift:+.0f}s-healthy", healthy)


# ---- several attempts in one folder ----------------------------------------------------------------------------------


@scene
def two_attempts_in_one_folder() -> Iterator[Folder]:
    """Dumps of both attempts, each in a folder of its own: the newer one counts, whichever is named first."""
    old = Job(4, steps=80).waits((0, 1, 3))  # there it was rank 2
    new = Job(4, steps=50).waits((0, 2, 3))  # now it is rank 1
    for back in (900.0, 20 * HOUR):
        for first, second in (("a", "b"), ("b", "a")):
            files = {f"{first}/{name}": data for name, data in old.dumps(shift=dict.fromkeys(range(4), -back)).items()}
            files |= {f"{second}/{name}": data for name, data in new.dumps().items()}
            yield hang(f"two-attempts-{back:.0f}s-{first}{second}", files, (1,), kinds=frozenset({"absent"}))


@scene
def old_dumps_beside_new_logs() -> Iterator[Folder]:
    """All dumps are of an attempt five hours ago, in which rank 1 stalled; the logs are of now, and it is rank 2."""
    job = Job(4).waits((0, 2, 3))
    now = 300 + 600.0
    logs = {rank: timed_out(rank, 301, now + rank) for rank in (0, 1, 3)}
    logs[2] = signalled(2, 0, now + 2, 300, 300) + preparing(2, now + 3)
    files = job.dumps(shift=dict.fromkeys(range(4), -5 * HOUR)) | rank_logs(logs)
    yield replace(
        hang("old-dumps-new-logs", files, (2,), (), kinds=frozenset({"absent", "unknown"}), exits=frozenset({1, 3})),
        at_most="medium",
        never=NOT_FINE,
    )


@scene
def log_of_two_attempts() -> Iterator[Folder]:
    """A log that was appended to: what the attempt before said accuses nobody now."""
    job = Job(4).waits((0, 1, 2))
    end = job.taken
    before = {rank: timed_out(rank, 57, end - 4 * HOUR) for rank in (1, 2, 3)} | {
        0: signalled(0, 1, end - 4 * HOUR, 56, 56)
    }
    now = {rank: timed_out(rank, 121, end) for rank in (0, 1, 2)} | {3: signalled(3, 0, end + 1, 120, 120)}
    logs = {rank: before[rank] + now[rank] for rank in range(4)}
    yield hang("appended-log", job.dumps() | rank_logs(logs), (3,), kinds=frozenset({"absent"}))


# ---- whose dump is it ------------------------------------------------------------------------------------------------


@scene
def copies() -> Iterator[Folder]:
    """The same file twice says nothing new; a file under another rank's name says nothing about that rank."""
    job = Job(4).waits((0, 1, 3))
    twice = job.dumps() | {f"backup/nccl_trace_rank_{rank}": job.dump(rank) for rank in range(4)}
    yield hang("every-dump-twice", twice, (2,), kinds=frozenset({"absent"}))
    both = job.dumps() | {f"json/nccl_trace_rank_{rank}.json": job.dump(rank, form="json") for rank in range(4)}
    yield hang("pickle-and-json", both, (2,), kinds=frozenset({"absent"}))
    victim = job.dumps() | {"nccl_trace_rank_3": job.dump(1)}
    yield hang("victims-dump-under-anothers-name", victim, (2,), kinds=frozenset({"absent"}))
    culprit = job.dumps() | {"nccl_trace_rank_3": job.dump(2)}
    yield replace(
        hang("culprits-dump-under-anothers-name", culprit, (2,), (2, 3), kinds=frozenset({"absent", "unknown"})),
        at_most="medium",
        exits=frozenset({1, 3}),
        gap_of=(3,),
    )
