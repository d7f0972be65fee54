"""Witnesses that contradict each other: attempts and jobs mixed, other faults beside a lost dump, colliding names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kits.job_files import (
    Call,
    Files,
    Job,
    later,
    preparing,
    rank_logs,
    ras_json,
    roster,
    signalled,
    timed_out,
    together,
    trained,
)
from kits.wild.folder import FINE, GONE, HOUR, NOT_FINE, Folder, fine, hang, scene, unclear

EIGHT = frozenset(range(8))
ABSENT = frozenset({"absent"})


def _attempt(
    world: int, steps: int, back: float, waiting: frozenset[int] = frozenset(), name: str = "all_reduce"
) -> Job:
    """A whole attempt that began `back` seconds before the present one."""
    job = Job(world, steps, name).waits(waiting)
    job.calls = {rank: later(calls, -back) for rank, calls in job.calls.items()}
    job.steps -= round(back)
    return job


# ---- attempts and jobs mixed -----------------------------------------------------------------------------------------


@scene
def another_program_an_hour_ago() -> Iterator[Folder]:
    """Rank 0's dump is of an attempt that ran other calls: they are no mismatch with those of now."""
    for odd, culprit in ((0, 1), (3, 0)):
        now = Job(4).waits(set(range(4)) - {culprit})
        then = _attempt(4, 120, HOUR, frozenset(range(4)), name="broadcast")
        files = now.dumps() | {f"nccl_trace_rank_{odd}": then.dump(odd)}
        yield hang(f"other-program-{odd}", files, (culprit,), kinds=ABSENT, never=(rf"\brank {odd} ran",))


@scene
def one_dump_of_the_attempt_after() -> Iterator[Folder]:
    """Seven dumps show who stayed away; the eighth was overwritten by a restart two hours later."""
    then = Job(8).waits(EIGHT - {1})
    for steps, hung in ((5, False), (40, True), (300, False)):
        calls = trained(steps)
        if hung:
            calls[-1] = replace(calls[-1], state="started")
        after = Job(8, steps, calls={rank: later(calls, 2 * HOUR) for rank in range(8)})
        after.steps += round(2 * HOUR)
        files = then.dumps() | {"nccl_trace_rank_3": after.dump(3)}
        yield hang(f"one-newer-dump-{steps}", files, (1,), kinds=ABSENT, never=NOT_FINE)


@scene
def half_of_each_attempt() -> Iterator[Folder]:
    """Four dumps of each of two attempts: the older four accuse nobody, the newer four show who stayed away."""
    then, now = _attempt(8, 90, 3 * HOUR, EIGHT - {2}), Job(8, 50).waits(EIGHT - {6})
    files = then.dumps(range(4)) | now.dumps(range(4, 8))
    made = hang("half-of-each", files, (6,), (), kinds=ABSENT | {"unknown"}, never=(*NOT_FINE, r"\brank 2 never"))
    yield replace(made, exits=frozenset({1, 3}))


@scene
def healthy_job_with_an_old_hang_beside_it() -> Iterator[Folder]:
    """The attempt before hung and left a node's dumps; the present one runs and shows it."""
    now = Job(8, hung_s=1)
    then = _attempt(8, 60, HOUR, EIGHT - {2})
    yield fine("old-hang-of-a-node", now.dumps() | then.dumps((0, 1)))
    ended = roster(dict.fromkeys(range(8), (0, 125.0)))
    done = now.dumps(range(2, 8)) | then.dumps((0, 1)) | ended
    yield fine("old-hang-of-a-node-finished", done)
    logs = {rank: timed_out(rank, 61, 61 - HOUR + 600) + "resumed from step 50\ntraining done\n" for rank in range(8)}
    yield fine("old-hang-in-the-logs", now.dumps() | ended | rank_logs(logs), never=(r"never launched",))


@scene
def dump_of_another_job() -> Iterator[Folder]:
    """Somebody's dump of a job of sixteen ranks lies in the folder of one of four."""
    now = Job(4).waits((0, 2, 3))
    other = Job(
        16, 30, "_all_gather_base", groups={"0": ("default_pg", tuple(range(16))), "7": ("fsdp", (8, 9, 10, 11))}
    )
    yield hang(
        "other-job-extra-file", now.dumps() | {"old/nccl_trace_rank_9": other.dump(9, -8 * HOUR)}, (1,), kinds=ABSENT
    )
    instead = now.dumps() | {"nccl_trace_rank_3": other.dump(3, -8 * HOUR)}
    yield hang("other-job-instead", instead, (1,), kinds=ABSENT, never=(r"\brank 3 ran",))


@scene
def two_files_of_one_rank() -> Iterator[Folder]:
    """Where NCCL groups were made by hand, each node's processes number their files from 0: two claim to be rank 0."""
    job = Job(4).waits((0, 1, 3))
    files = {f"node-{rank // 2}/nccl_trace_rank_{rank % 2}": job.dump(rank) for rank in range(4)}
    yield unclear("colliding-names", files, (0,), (2,), kinds=GONE | {"unknown", "mismatch"})


# ---- other faults beside a lost dump ---------------------------------------------------------------------------------


@scene
def gpu_that_never_starts_beside_a_lost_dump() -> Iterator[Folder]:
    """Rank 2's kernel never started while its peers' did; of rank 0 nothing usable is left."""
    job = Job(4).waits((0, 1, 3)).waits((2,), state="scheduled")
    yield hang("gpu-all", job.dumps(), (2,), kinds=frozenset({"gpu"}))
    yield hang("gpu-one-gone", job.dumps((1, 2, 3)), (2,), kinds=frozenset({"gpu"}))
    old = job.dumps((1, 2, 3)) | {"nccl_trace_rank_0": _attempt(4, 70, HOUR, frozenset({0})).dump(0)}
    yield hang("gpu-one-old", old, (2,), kinds=frozenset({"gpu"}))


@scene
def everybody_inside() -> Iterator[Folder]:
    """All have launched and started: a network or a GPU. With one dump missing not even that is known."""
    job = Job(4).waits(range(4))
    kinds = frozenset({"network", "gpu", "unknown"})
    yield replace(
        unclear("all-inside", job.dumps(), kinds=kinds), outcomes=frozenset({"hang"}), exits=frozenset({1, 3})
    )
    for missing in (0, 3):
        files = job.dumps(set(range(4)) - {missing})
        never = (rf"rank {missing} never launched",)
        yield unclear(f"all-inside-but-{missing}", files, (missing,), kinds=kinds | GONE, at_most="low", never=never)


@scene
def groups_in_another_order() -> Iterator[Folder]:
    """Rank 1 uses the second group first. With one more dump cut behind its counters, three still show it."""
    everybody = tuple(range(4))
    groups = {"0": ("first", everybody), "1": ("second", everybody)}
    calls = {rank: trained(30) + trained(30, group="1", start=30) for rank in range(4)}
    for rank in range(4):
        calls[rank] = [*calls[rank], Call(60, group="1" if rank == 1 else "0", state="started")]
    job = Job(4, steps=60, groups=groups, calls=calls)
    kinds = frozenset({"deadlock", "mismatch"})
    yield hang("order-all", job.dumps(), (1,), kinds=kinds)
    for lost in (0, 3):
        whole = job.dump(lost)
        for label, data in (("cut", whole[: len(whole) * 2 // 3]), ("early", whole[:600])):
            files = job.dumps(set(range(4)) - {lost}) | {f"nccl_trace_rank_{lost}": data}
            yield hang(f"order-{label}{lost}", files, (1,), kinds=kinds, never=(rf"\brank {lost} never",))


@scene
def exception_of_now_beside_a_dump_of_then() -> Iterator[Folder]:
    """Rank 4's log ends with its own exception; its dump is of the attempt before and shows it further than anybody."""
    job = Job(8).waits(EIGHT - {4})
    old = _attempt(8, 400, 2 * HOUR).dump(4)
    raised = (
        '[rank4]: Traceback (most recent call last):\n[rank4]:   File "/workspace/train.py", line 88, in step\n'
        '[rank4]:     raise ValueError("bad sample 1203")\n[rank4]: ValueError: bad sample 1203\n'
    )
    logs = {rank: timed_out(rank, 121, job.taken) for rank in EIGHT - {4}} | {4: raised}
    files = job.dumps(EIGHT - {4}) | {"nccl_trace_rank_4": old} | rank_logs(logs)
    made = hang("exception-and-old-dump", files, (4,), kinds=frozenset({"dead"}), says=(r"ValueError",))
    yield replace(made, outcomes=frozenset({"hang", "crash"}))


@scene
def culprits_own_dump_is_the_lost_one() -> Iterator[Folder]:
    """Only the culprit's dump is lost: it may be named, for nothing is known of it alone, but not surely."""
    job = Job(8).waits(EIGHT - {5})
    whole = job.dump(5)
    lost: dict[str, Files] = {
        "gone": {},
        "cut": {"nccl_trace_rank_5": whole[:100]},  # before its counters
        "old": {"nccl_trace_rank_5": _attempt(8, 400, HOUR).dump(5)},
    }
    for label, files in lost.items():
        made = unclear(f"culprit-{label}", job.dumps(EIGHT - {5}) | files, (5,), kinds=GONE | {"unknown", "network"})
        yield replace(made, outcomes=frozenset({"hang"}))


# ---- logs and answers alone ------------------------------------------------------------------------------------------


@scene
def every_log_says_the_same() -> Iterator[Folder]:
    """All four time out in the same call: everybody launched it, and nobody was left behind."""
    logs = {rank: timed_out(rank, 42, 700.0 + 0.1 * rank) for rank in range(4)}
    never = (r"never launched", r"frozen", r"is gone")
    kinds = frozenset({"network", "gpu", "unknown"})
    for label, files in (("files", rank_logs(logs)), ("together", {"job.out": together(logs)})):
        yield replace(unclear(f"same-timeout-{label}", files, kinds=kinds, never=never), exits=frozenset({1, 3}))


@scene
def rank_of_a_group_in_a_log() -> Iterator[Folder]:
    """Rank 13 is number 1 of its group of two: what it waits in says nothing about rank 1."""
    text = timed_out(13, 42, 700.0)
    text = text.replace("[PG ID 0 PG GUID 0(default_pg) Rank 13]", "[PG ID 3 PG GUID 7(tp) Rank 1]").replace(
        "[Rank 13]", "[Rank 1]"
    )
    never = (r"\brank 1\b", r"\branks [01]\b", r"everybody", r"\ball \d+ (?:members|ranks)")
    made = unclear("group-local-rank", {"out.log": text.encode()}, kinds=frozenset({"unknown"}), never=never)
    yield replace(made, says=(r"rank 13\b",), outcomes=frozenset({"hang"}))


@scene
def counts_of_ras_alone() -> Iterator[Folder]:
    """RAS heard of everybody: one has launched one call less, or all are equal."""
    made = hang("ras-counts-behind", ras_json(8, (), {5: 120}), (5,), (), kinds=ABSENT | {"unknown"})
    yield replace(made, at_most="medium", exits=frozenset({1, 3}), outcomes=frozenset({"hang", "unknown"}))
    equal = unclear("ras-counts-equal", ras_json(8, ()), kinds=FINE)
    yield replace(equal, outcomes=frozenset({"unknown", "ok"}), exits=frozenset({0, 3}))


@scene
def cancelled_by_its_user() -> Iterator[Folder]:
    """A job that ran until its user cancelled it: every process was ended from outside, and nobody is to blame."""
    job = Job(4, hung_s=1)
    ends: dict[int, tuple[int | None, float | None]] = dict.fromkeys(range(4), (-15, 121.0))
    text = "slurmstepd: error: *** JOB 48121 ON gpu-00 CANCELLED AT 2026-09-21T14:15:21 ***\n"
    logs = dict.fromkeys(range(4), "step 119 loss 1.9\n")
    files = job.dumps() | roster(ends) | rank_logs(logs) | {"slurm-48121.out": text.encode()}
    outcomes = frozenset({"ok", "unknown", "crash"})
    yield replace(unclear("cancelled", files), outcomes=outcomes, exits=frozenset({0, 1, 3}))


@scene
def one_that_speaks_late() -> Iterator[Folder]:
    """Rank 2 answers the signal a minute after the others: slow to answer is alive."""
    logs = {rank: timed_out(rank, 42, 700.0 + 0.1 * rank) for rank in (0, 1, 3)}
    logs[2] = signalled(2, 0, 765.0, 41, 41) + preparing(2, 766.0)
    never = (r"frozen", r"reacted to nothing", r"answers? nothing")
    yield hang("answers-late", rank_logs(logs), (2,), kinds=ABSENT, never=never)
