"""Records that mislead: counters alone, "completed" by an abort, stale ones, running jobs, hostile files."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace

from kits.job_files import (
    Call,
    Files,
    Job,
    rank_logs,
    roster,
    signalled,
    timed_out,
    trained,
    watchdog_ended,
    watchdog_stuck,
)
from kits.small_dumps import as_json, entry, group, packed, top
from kits.wild.folder import NOT_FINE, Folder, fine, hang, scene, unclear

# ---- dumps that say little, or the wrong thing -----------------------------------------------------------------------


def _counters_only(enqueued: int, completed: int, world: int, *, json: bool) -> bytes:
    status = {"last_enqueued_collective": enqueued, "last_started_collective": -1}
    status["last_completed_collective"] = completed
    value = top([], group("0", "default_pg", *range(world)), pg_status={"0": status})
    return as_json(value) if json else packed(value)


@scene
def counters_without_entries() -> Iterator[Folder]:
    """torch 2.7 to 2.10 write dumps without entries by default; their counters still show who is behind."""
    for json in (False, True):
        form = "json" if json else "pickle"
        files = {
            f"nccl_trace_rank_{rank}": _counters_only(41 if rank == 1 else 42, 41, 4, json=json) for rank in range(4)
        }
        yield replace(
            hang(f"counters-alone-behind-{form}", files, (1,), (), kinds=frozenset({"absent", "unknown"})),
            exits=frozenset({1, 3}),
            at_most="medium",
            outcomes=frozenset({"hang", "unknown"}),
            never=NOT_FINE,
            says=(r"rank 1",),
        )
        equal = {f"nccl_trace_rank_{rank}": _counters_only(42, 42, 4, json=json) for rank in range(4)}
        yield fine(f"counters-alone-equal-{form}", equal)
    logs = {rank: timed_out(rank, 42, 600.0) for rank in (0, 2, 3)} | {1: signalled(1, 0, 601.0, 41, 41)}
    files = {f"nccl_trace_rank_{rank}": _counters_only(41 if rank == 1 else 42, 41, 4, json=False) for rank in range(4)}
    yield hang("counters-and-logs", files | rank_logs(logs), (1,), kinds=frozenset({"absent"}))


@scene
def completed_by_an_abort() -> Iterator[Folder]:
    """Aborting a communicator ends its kernels, and the recorder reads that as completed; rank 1 never launched it."""
    for culprit in (1, 3):
        others = set(range(4)) - {culprit}
        job = Job(4).waits(others)
        for rank in others:
            job.calls[rank][-1] = replace(job.calls[rank][-1], state="completed")
        files = job.dumps()
        for rank in others:
            value = pickle.loads(files[f"nccl_trace_rank_{rank}"])
            value["entries"][-1].update(
                retired=False, time_discovered_completed_ns=value["entries"][-1]["time_created_ns"] + int(601e9)
            )
            files[f"nccl_trace_rank_{rank}"] = packed(value)
        logs = {rank: timed_out(rank, 121, job.taken) for rank in others}
        logs[culprit] = signalled(culprit, min(others), job.taken + 1, 120, 120)
        kinds = frozenset({"absent"})
        yield hang(
            f"completed-by-abort-{culprit}-logs", files | rank_logs(logs), (culprit,), kinds=kinds, never=NOT_FINE
        )
        yield replace(
            hang(f"completed-by-abort-{culprit}", files, (culprit,), (), kinds=kinds | {"unknown"}),
            exits=frozenset({1, 3}),
            outcomes=frozenset({"hang", "unknown"}),
        )


@scene
def watchdog_that_stopped_noticing() -> Iterator[Folder]:
    """Rank 2's record stands still at #80, but its peers completed forty all_reduce more, which need it: stale."""
    for why, line in (
        ("cuda", watchdog_ended(2, 85.0, "CUDA error: an illegal memory access was encountered")),
        ("stuck", watchdog_stuck(2, 565.0)),
        ("silent", ""),
    ):
        job = Job(4).waits((0, 1, 3))
        job.calls[2] = [replace(c, state="started") if at >= 79 else c for at, c in enumerate(job.calls[2])]
        files = job.dumps() | (rank_logs({2: line}) if line else {})
        kinds = frozenset({"absent", "gpu", "dead", "frozen", "unknown"})
        never = (r"does not arrive", r"network or hardware")
        if line:
            made = hang(f"stale-counter-{why}", files, (2,), kinds=kinds - {"unknown"}, never=never)
            yield replace(made, outcomes=frozenset({"hang", "crash"}))
        else:
            yield replace(
                hang(f"stale-counter-{why}", files, (2,), (), kinds=kinds, never=never), exits=frozenset({1, 3})
            )


# ---- jobs that run, jobs that are done -------------------------------------------------------------------------------


@scene
def snapshots_of_running_jobs() -> Iterator[Folder]:
    """Calls that are milliseconds old are work, not waiting; a dump taken earlier is behind, not hung."""
    for world in (2, 4, 8):
        job = Job(world, hung_s=0.015).waits(range(1, world))
        yield fine(f"running-{world}", job.dumps())
        early = Job(world, steps=120, hung_s=1.0)
        early.calls[world - 1] = early.calls[world - 1][:90]
        yield fine(f"one-dump-30s-older-{world}", early.dumps())
        quick = Job(world, hung_s=0.015).waits(range(world))
        quick.calls[0] = quick.calls[0][:91]
        yield fine(f"one-dump-30s-older-others-inside-{world}", quick.dumps())


@scene
def finished_jobs() -> Iterator[Folder]:
    """Everybody completed everything and exited with status 0: that is OK, and may be said so."""
    job = Job(4, hung_s=1)
    ended = roster({rank: (0, 125.0 + 0.1 * rank) for rank in range(4)})
    yield fine("finished", job.dumps() | ended | rank_logs(dict.fromkeys(range(4), "training done\n")), sure=True)
    yield fine("finished-one-dump-missing", job.dumps((0, 1, 3)) | ended)
    yield fine("finished-one-log-missing", job.dumps() | ended | rank_logs({0: "done\n", 1: "done\n", 3: "done\n"}))


@scene
def one_more_call_than_the_rest() -> Iterator[Folder]:
    """Ranks finish and exit with status 0, and one alone calls one more barrier: it is the odd one, and nobody died."""
    for world, odd in ((4, 3), (4, 0), (8, 5)):
        rest = set(range(world)) - {odd}
        job = Job(world).waits((odd,), name="all_reduce_barrier")
        ends: dict[int, tuple[int | None, float | None]] = {rank: (0, 121.0 + 0.1 * rank) for rank in rest}
        ends[odd] = (-6, 790.0)
        logs = dict.fromkeys(rest, "training done\n") | {odd: timed_out(odd, 121, job.taken)}
        never = (*NOT_FINE, *(rf"\brank {rank} (?:is gone|died|ended|exited by itself)" for rank in rest))
        kinds = frozenset({"mismatch", "unknown"})
        told = {
            "all": job.dumps() | roster(ends) | rank_logs(logs),
            "own-dump": job.dumps((odd,)) | roster(ends) | rank_logs(logs),
            "roster": job.dumps((odd,)) | roster(ends),
            "logs": rank_logs(logs) | roster(ends),
        }
        for label, files in told.items():
            yield replace(
                hang(f"one-more-barrier-{world}-{odd}-{label}", files, (odd,), (), kinds=kinds, never=never),
                exits=frozenset({1, 3}),
            )


@scene
def one_that_left_early() -> Iterator[Folder]:
    """The other way round: one exits with status 0 in the middle, and the others wait for it."""
    for world, odd in ((4, 3), (4, 0), (8, 5)):
        rest = set(range(world)) - {odd}
        job = Job(world).waits(rest)
        ends: dict[int, tuple[int | None, float | None]] = {rank: (-6, 790.0 + rank) for rank in rest}
        ends[odd] = (0, 120.5)
        files = job.dumps(rest) | roster(ends) | rank_logs({rank: timed_out(rank, 121, job.taken) for rank in rest})
        made = hang(f"left-early-{world}-{odd}", files, (odd,), kinds=frozenset({"dead"}))
        yield replace(made, outcomes=frozenset({"hang", "crash"}))


# ---- a part of the job hangs -----------------------------------------------------------------------------------------


@scene
def a_pair_stuck_beside_six_that_train() -> Iterator[Folder]:
    """Ranks 6 and 7 are 90 s in a call of their own; the six others' newest call is 15 ms old, and hangs nothing."""
    groups = {"0": ("default_pg", tuple(range(8))), "1": ("six", (0, 1, 2, 3, 4, 5)), "2": ("pair", (6, 7))}
    for absent in ((), (7,)):
        calls = {}
        for rank in range(8):
            begun = trained(3)
            if rank < 6:
                calls[rank] = begun + trained(147, group="1", start=3) + [Call(150 - 0.015, group="1", state="started")]
            else:
                stuck = [] if rank in absent else [Call(60, group="2", state="started")]
                calls[rank] = begun + trained(57, group="2", start=3) + stuck
        job = Job(8, steps=150, hung_s=0.0, groups=groups, calls=calls)
        never = (r"\b8 ranks have waited", r"\branks? 0-5 (?:wait|have waited)", r"\bsix\b.*does not arrive")
        if absent:
            yield hang("pair-one-absent", job.dumps(), (7,), kinds=frozenset({"absent"}), never=never, operation="pair")
        else:
            kinds = frozenset({"network", "gpu", "unknown"})
            made = unclear(
                "pair-both-inside", job.dumps(), (6, 7), (6,), (7,), kinds=kinds, never=never, operation="pair"
            )
            yield replace(made, outcomes=frozenset({"hang"}))


@scene
def oldest_hang_is_explained_first() -> Iterator[Folder]:
    """Two groups hang; the second only since the first one's victims stayed away from it."""
    groups = {"0": ("default_pg", tuple(range(6))), "1": ("left", (0, 1, 2))}
    calls = {rank: trained(100) for rank in range(6)}
    for rank in (0, 1):
        calls[rank] = [*calls[rank], Call(100, group="1", state="started")]
    for rank in (3, 4, 5):
        calls[rank] = [*calls[rank], Call(130, state="started")]
    files = Job(6, steps=100, hung_s=600, groups=groups, calls=calls).dumps()
    yield hang("victims-of-victims", files, (2,), kinds=frozenset({"absent"}), operation="left")


# ---- hostile files ---------------------------------------------------------------------------------------------------

_HOSTILE: dict[str, bytes] = {
    "calls": b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00trueq\x00\x85q\x01Rq\x02.",
    "class": b"\x80\x02}(X\x07\x00\x00\x00versioncposix\nsystem\nu.",
    "entries": b"\x80\x02}(X\x07\x00\x00\x00entriescbuiltins\nexec\nX\x01\x00\x00\x001\x85Ru.",
    "deep": b"\x80\x02" + b"]" * 5000 + b".",
    "long": b"\x80\x02}(X\x07\x00\x00\x00entries\x8b\xff\xff\xff\x7f",
    "memo": b"\x80\x02}(X\x07\x00\x00\x00entriesr\xff\xff\xff\x7f\x00u.",
}


@scene
def hostile_folders() -> Iterator[Folder]:
    """Six dumps, every one of which is refused: nothing was seen, so nothing is fine."""
    six = {f"nccl_trace_rank_{rank}": data for rank, data in enumerate(_HOSTILE.values())}
    exits = frozenset({2, 3})
    outcomes = frozenset({"unknown"})
    yield Folder("hostile-only", six, ((),), frozenset({"unknown"}), outcomes, exits, never=NOT_FINE)
    named = {f"upload-{name}.bin2": data for name, data in _HOSTILE.items()}
    yield Folder("hostile-other-names", named, ((),), frozenset({"unknown"}), outcomes, exits, never=NOT_FINE)
    job = Job(4).waits((0, 2, 3))
    for name, data in _HOSTILE.items():
        files = job.dumps((0, 1, 2)) | {"nccl_trace_rank_3": data}
        yield hang(f"hostile-{name}-beside-good", files, (1,), kinds=frozenset({"absent"}))


def _bare(seqs: dict[int, int]) -> Files:
    """Dumps as torch 2.2 wrote them: a list of entries, microseconds, no members."""
    files = {}
    for rank, last in seqs.items():
        lines = []
        for seq in range(1, last + 1):
            line = entry(seq - 1, seq, "nccl:all_reduce")
            hung = seq == 61
            lines.append(
                {
                    "pg_id": 0,
                    "seq_id": seq,
                    "profiling_name": "nccl:all_reduce",
                    "time_created_us": line["time_created_ns"] // 1000,
                    "input_sizes": [[8]],
                    "output_sizes": [[8]],
                    "state": "scheduled" if hung else "completed",
                    "retired": not hung,
                    "frames": [],
                }
            )
        files[f"nccl_trace_rank_{rank}"] = packed(lines)
    return files


@scene
def dumps_of_torch_2_2() -> Iterator[Folder]:
    """The oldest format names no members, so a rank without a dump cannot even be counted."""
    yield hang("torch-2.2-absent", _bare({0: 61, 1: 61, 2: 60, 3: 61}), (2,), kinds=frozenset({"absent"}))
    cut = _bare({0: 61, 1: 61, 2: 60, 3: 61})
    cut["nccl_trace_rank_3"] = cut["nccl_trace_rank_3"][: len(cut["nccl_trace_rank_3"]) // 2]
    yield hang("torch-2.2-absent-one-cut", cut, (2,), kinds=frozenset({"absent"}), never=(r"\brank 3 never",))
