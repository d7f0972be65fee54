"""Logs and answers that mislead: witnesses that heard of few, launchers that tear down, excerpts."""
# ruff: noqa: E501  (log lines are quoted whole)

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kits.job_files import (
    Job,
    caught,
    counted,
    prefixed,
    preparing,
    rank_logs,
    ras,
    ras_json,
    recorder_off,
    roster,
    signalled,
    timed_out,
    together,
)
from kits.wild.folder import GONE, NOT_FINE, Folder, fine, hang, scene, unclear

# ---- witnesses that heard of few -------------------------------------------------------------------------------------


@scene
def ras_that_heard_of_few() -> Iterator[Folder]:
    """RAS lacks six of eight ranks, all of which wrote dumps: it is RAS that is cut off, not they."""
    missing = (2, 3, 4, 5, 6, 7)
    never = (r"frozen", r"answers? nothing", r"is gone")
    for form, answer in (("text", ras(8, missing)), ("json", ras_json(8, missing))):
        for culprit in (5, 2):
            job = Job(8).waits(set(range(8)) - {culprit})
            files = job.dumps() | answer
            kinds = frozenset({"absent"})
            yield hang(f"ras-of-two-absent{culprit}-{form}", files, (culprit,), kinds=kinds, never=never)
            without = job.dumps(set(range(8)) - {culprit}) | answer
            made = hang(f"ras-of-two-no-dump{culprit}-{form}", without, (culprit,), (), kinds=GONE | {"unknown"})
            yield replace(made, at_most="medium", exits=frozenset({1, 3}))
        yield fine(f"ras-of-two-healthy-{form}", Job(8, hung_s=1).dumps() | answer, never=never)
        few = Job(8).waits((0, 1)).dumps((0, 1)) | answer
        yield unclear(f"ras-of-two-and-their-dumps-{form}", few, missing, kinds=GONE | {"unknown"}, at_most="low")
        logs = {rank: timed_out(rank, 121, 720.0 + rank) for rank in range(8) if rank != 5}
        logs[5] = signalled(5, 0, 721.0, 120, 120) + preparing(5, 722.0)
        files = rank_logs(logs) | answer
        yield hang(f"ras-of-two-logs-{form}", files, (5,), kinds=frozenset({"absent"}), never=never)
        yield unclear(f"ras-of-two-alone-{form}", answer, never=(*never, r"\branks? \d.* never launched"))


@scene
def ras_that_heard_of_all_but_one() -> Iterator[Folder]:
    """The other way round: RAS lacks one rank, which also left nothing else, and its peers wait for it."""
    job = Job(8).waits(set(range(8)) - {5})
    files = job.dumps(set(range(8)) - {5}) | ras_json(8, (5,))
    yield hang("ras-lacks-one", files, (5,), kinds=frozenset({"dead", "frozen"}))


@scene
def ranks_that_prepared_to_dump() -> Iterator[Folder]:
    """A rank that printed anything at the timeout is alive: behind, not frozen."""
    for silent in (2, 0):
        first = 1 if silent == 0 else 0
        others = set(range(4)) - {silent}
        logs = {rank: timed_out(rank, 42, 700.0 + rank) for rank in others}
        never = (r"reacted to nothing", r"frozen", r"answers? nothing")
        full = logs | {silent: signalled(silent, first, 701.5, 41, 41) + preparing(silent, 702.0)}
        yield hang(
            f"prepared-with-counters-{silent}", rank_logs(full), (silent,), kinds=frozenset({"absent"}), never=never
        )
        bare = logs | {silent: preparing(silent, 702.0)}
        for label, files in (("files", rank_logs(bare)), ("together", {"slurm-1.out": together(bare)})):
            yield replace(
                hang(f"prepared-{label}-{silent}", files, (silent,), (), kinds=frozenset({"absent", "unknown"})),
                at_most="medium",
                exits=frozenset({1, 3}),
                never=never,
            )


# ---- launchers -------------------------------------------------------------------------------------------------------


@scene
def killed_after_the_aborts() -> Iterator[Folder]:
    """The launcher kills what is left once the watchdogs gave up: that is teardown, whoever it names."""
    full = {rank: timed_out(rank, 42, 700.0 + 0.1 * rank) for rank in range(6)}
    short = {rank: caught(rank, 42, 700.0 + 0.1 * rank) + counted(rank, 42, 700.7, 45, 41) for rank in range(6)}
    behind = {rank: signalled(rank, 0, 701.5, 41, 41) for rank in (6, 7)}
    launchers = {
        "srun": "srun: error: gpu-00: tasks 0-7: Killed\n",
        "srun-one": "srun: error: gpu-00: tasks 0-5: Aborted (core dumped)\nsrun: error: gpu-00: tasks 6-7: Killed\n",
        "slurmstepd": "slurmstepd: error: *** STEP 48121.0 ON gpu-00 CANCELLED AT 2026-09-21T14:00:00 ***\n"
        "srun: error: gpu-00: tasks 0-7: Killed\n",
        "torchrun": "W0921 14:00:00.000000 80000 torch/distributed/elastic/multiprocessing/api.py:900] Sending process "
        "4006 closing signal SIGTERM\nW0921 14:00:00.000000 80000 torch/distributed/elastic/multiprocessing/api.py:900] "
        "Sending process 4007 closing signal SIGTERM\n",
    }
    never = (r"\bdied\b", r"is gone", r"ended by SIGKILL", r"\bdead: ")
    for label, text in launchers.items():
        for length, waited in (("whole", full), ("short", short)):
            logs = waited | behind
            told = {
                "files": rank_logs(logs) | {"launcher.log": text.encode()},
                "together": {"slurm-48121.out": together(logs) + text.encode()},
                "prefixed": {"slurm-48121.out": prefixed(logs) + text.encode()},
            }
            for layout, files in told.items():
                name = f"teardown-{label}-{length}-{layout}"
                yield hang(name, files, (6, 7), kinds=frozenset({"absent"}), never=never)
    ends: dict[int, tuple[int | None, float | None]] = {rank: (-9, 765.0 + 0.01 * rank) for rank in range(8)}
    job = Job(8, steps=41).waits(range(6))
    files = job.dumps() | rank_logs(full | behind) | roster(ends)
    yield hang("teardown-roster", files, (6, 7), kinds=frozenset({"absent"}), never=never)


@scene
def killed_before_the_aborts() -> Iterator[Folder]:
    """The other way round: one task was killed, and the others lost it."""
    job = Job(8).waits(set(range(8)) - {5})
    first = "srun: error: gpu-00: task 5: Killed\n"
    logs = {rank: timed_out(rank, 121, job.taken + rank) for rank in range(8) if rank != 5} | {5: ""}
    files = job.dumps(set(range(8)) - {5}) | rank_logs(logs) | {"slurm-1.out": first.encode()}
    made = hang("task-killed-first", files, (5,), kinds=frozenset({"dead"}))
    yield replace(made, outcomes=frozenset({"hang", "crash"}))


@scene
def table_of_torchrun_after_a_timeout() -> Iterator[Folder]:
    """torchrun calls the first process that ended the root cause; one that aborted over a timeout is a victim."""
    table = (
        "E0921 14:00:01.000000 80000 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -6) "
        "local_rank: 0 (pid: 4000) of binary: /usr/bin/python3\n"
        "============================================================\ntrain.py FAILED\n"
        "------------------------------------------------------------\nFailures:\n  <NO_OTHER_FAILURES>\n"
        "------------------------------------------------------------\nRoot Cause (first observed failure):\n[0]:\n"
        "  time      : 2026-09-21_14:00:01\n  host      : gpu-00\n  rank      : 0 (local_rank: 0)\n"
        "  exitcode  : -6 (pid: 4000)\n  error_file: <N/A>\n  traceback : Signal 6 (SIGABRT) received by PID 4000\n"
        "============================================================\n"
    )
    logs = {rank: timed_out(rank, 42, 700.0 + 0.1 * rank) for rank in (0, 1, 3)}
    logs[2] = signalled(2, 0, 701.5, 41, 41) + preparing(2, 702.0)
    never = (r"\bdied\b", r"rank 0 (?:ended|aborted|is gone|was ended)")
    kinds = frozenset({"absent"})
    yield hang("torchrun-table", rank_logs(logs) | {"torchrun.log": table.encode()}, (2,), kinds=kinds, never=never)
    alone = rank_logs({0: logs[0]}) | {"torchrun.log": table.encode()}
    yield unclear("torchrun-table-one-log", alone, never=(*never, r"everybody"))


# ---- excerpts --------------------------------------------------------------------------------------------------------


@scene
def one_log_with_the_recorder_off() -> Iterator[Folder]:
    """The first thing that people have: rank 3 waited ten minutes in #42, nothing is known of the others."""
    never = (r"everybody", r"\ball 1\b", r"a GPU or the network", r"\b(?:rank|ranks) [0-24-9]")
    for name in ("all_reduce", "broadcast", "_all_gather_base"):
        text = caught(3, 42, 700.0, name=name) + counted(3, 42, 700.001, 45, 41) + recorder_off(3, 701.0)
        for file in ("rank_3.log", "out.log", "slurm-48121.out"):
            made = unclear(f"excerpt-{name.strip('_')}-{file}", {file: text.encode()}, never=never)
            yield replace(
                made,
                kinds=frozenset({"unknown"}),
                outcomes=frozenset({"hang"}),
                exits=frozenset({3}),
                says=(r"rank 3\b", r"#42\b"),
                first_step=r"TORCH_(?:NCCL_TRACE|FR)_BUFFER_SIZE|flight recorder",
                not_ruled_out=("dead", "frozen", "absent", "network", "gpu"),
            )


@scene
def logs_of_some_ranks() -> Iterator[Folder]:
    """The logs of two of eight ranks: both wait in #42, and of the other six nothing is known."""
    text = {rank: timed_out(rank, 42, 700.0 + rank) for rank in (2, 5)}
    never = (r"everybody", r"all \d+ (?:members|ranks|processes)", r"frozen", r"is gone")
    made = unclear("logs-of-two", rank_logs(text), never=never)
    yield replace(made, kinds=frozenset({"unknown"}), not_ruled_out=("dead", "frozen", "absent"))
    logs = {rank: timed_out(rank, 42, 700.0 + rank) for rank in (0, 1, 3)}
    behind = logs | {2: signalled(2, 0, 702.0, 41, 41)}
    del behind[3]
    yield hang("innocents-log-missing", rank_logs(behind), (2,), kinds=frozenset({"absent"}))


FAILURES: dict[str, tuple[str, tuple[int, ...], str]] = {
    # name: (the text, the rank that it names, what must be said of it)
    "cuda-error": (
        "[rank5]: RuntimeError: CUDA error: an illegal memory access was encountered\n",
        (5,),
        r"illegal memory access|CUDA error",
    ),
    "remote-error": (
        "[rank6]: torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error, NCCL "
        "version 2.28.9\n[rank6]: ncclRemoteError: A call failed possibly due to a network error or a remote process "
        "exiting prematurely.\n",
        (),
        r"ncclRemoteError|remote",
    ),
    "desync": (
        "[rank0]:[E0921 14:25:20.000000123 ProcessGroupNCCL.cpp:1300] [Rank 0] - To our best knowledge, the lagging/dead/"
        "mismatched ranks that caused the desync are:\n  [3] joined but didn't finish collective #42 (count from 1)\n",
        (3,),
        r"\b3\b",
    ),
    "ecc": (
        "[1790000.2] NVRM: Xid (PCI:0000:1b:00): 94, pid=4001, name=python3, Contained: SM (0x1). RST: No, D-RST: No\n",
        (),
        r"Xid|94",
    ),
    "xid": (
        "[1790000.123456] NVRM: Xid (PCI:0000:9d:00): 79, pid=4005, name=python3, GPU has fallen off the bus.\n",
        (),
        r"Xid|fallen off",
    ),
    "oom-killer": (
        "[1790000.1] Out of memory: Killed process 4005 (python3) total-vm:180000000kB, anon-rss:120000000kB, "
        "file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:250000kB oom_score_adj:0\n",
        (),
        r"[Oo]ut of memory|memory|4005",
    ),
    "nccl-system-error": (
        "[rank2]: torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/"
        "ProcessGroupNCCL.cpp:3690, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.28.9\n"
        "[rank2]: ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\n",
        (2,),
        r"ncclSystemError|system error",
    ),
    "ib-completion": (
        "gpu-00:4005:4100 [5] transport/net_ib.cc:2100 NCCL WARN NET/IB: Got completion from peer 10.0.0.7<40000> with "
        "status=12 opcode=0 len=0 vendor err 129 (Recv) localGid fe80::1 remoteGids fe80::2 hca mlx5_3\n",
        (),
        r"status=12|10\.0\.0\.7|mlx5_3|completion",
    ),
    "store-clients": (
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/3 clients joined.\n",
        (),
        r"1/3|1 of 3|clients",
    ),
    "heartbeat": (
        "[rank4]:[E0921 13:25:20.000000123 ProcessGroupNCCL.cpp:1790] [PG ID 0 PG GUID 0(default_pg) Rank 4] "
        "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued "
        "collectives.\n",
        (4,),
        r"watchdog|stuck",
    ),
    "segfault": ("srun: error: gpu-00: task 5: Segmentation fault (core dumped)\n", (5,), r"[Ss]egmentation|SIGSEGV"),
}


@scene
def failures_without_a_collective() -> Iterator[Folder]:
    """Text that shows a failure is never called OK, and the rank that it names is the rank that is named."""
    for name, (text, ranks, said) in FAILURES.items():
        yield Folder(
            f"failure-{name}",
            {"job.log": f"step 1 loss 2.31\nstep 2 loss 2.11\n{text}".encode()},
            (ranks, ()) if ranks else ((),),
            outcomes=frozenset({"crash", "hang", "unknown"}),
            exits=frozenset({1, 3}),
            says=(said,),
            never=NOT_FINE,
        )
