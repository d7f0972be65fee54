"""PyTorch's log lines, in the wordings of 2.1 to 2.15, alone and mixed with what launchers put in front."""
# ruff: noqa: E501  (log lines are quoted whole)

from __future__ import annotations

import io
from pathlib import Path

import pytest

from hangscope.model import GLOO_SIZE, PythonError, TransportEvent, WatchdogReport
from hangscope.model.times import Clock, LogTimes, resolve_time
from hangscope.reader.join import resolve_nccl, resolve_ranks
from hangscope.reader.join.who_is_who import Identity
from hangscope.reader.logs.line_prefixes import split_prefix
from hangscope.reader.logs.log_file import TextFile
from kits.pasted_logs import verdict_on

CASES = Path(__file__).parents[2] / "cases"
NOV_2026 = 1_794_705_795_000_000_000  # 2026-11-15T01:23:15Z


def read(text: str, file: str = "out.log", rank: int | None = None) -> TextFile:
    found = TextFile(file)
    data = text.encode()
    found.read(io.BytesIO(data), len(data))
    found.rank = found.writers.own_rank(rank if rank is not None else found.name_rank)
    return found


def reports(
    text: str, file: str = "out.log", rank: int | None = None, world: int | None = None
) -> list[WatchdogReport]:
    return resolve_ranks.watchdog_reports(read(text, file, rank), LogTimes([NOV_2026]), Identity(world_size=world))[0]


def errors(text: str, file: str = "out.log", rank: int | None = None) -> list[PythonError]:
    return resolve_ranks.python_errors(read(text, file, rank), LogTimes([NOV_2026]), Identity())


WORK = "WorkNCCL(SeqNum=16, OpType=ALLREDUCE, NumelIn=65536, NumelOut=65536, Timeout(ms)=600000)"
CAUGHT = f"Watchdog caught collective operation timeout: {WORK} ran for 600123 milliseconds before timing out."
COUNTED = "last enqueued NCCL work: 18, last completed NCCL work: 15."

BY_VERSION = {
    "2.1": f"[E ProcessGroupNCCL.cpp:475] [Rank 3] {CAUGHT}\n",
    "2.2": f"[rank3]:[E ProcessGroupNCCL.cpp:523] [Rank 3] {CAUGHT}\n",
    "2.3": f"[rank3]:[E ProcessGroupNCCL.cpp:563] [Rank 3] {CAUGHT}\n"
    f"[rank3]:[E ProcessGroupNCCL.cpp:1537] [PG 0 Rank 3] Timeout at NCCL work: 16, {COUNTED}\n",
    "2.4": f"[rank3]:[E1115 01:23:15.892984292 ProcessGroupNCCL.cpp:607] [Rank 3] {CAUGHT}\n"
    "[rank3]:[E1115 01:23:15.893172488 ProcessGroupNCCL.cpp:1664] [PG 0 (default_pg) Rank 3] Exception (either an error "
    f"or timeout) detected by watchdog at work: 16, {COUNTED}\n",
    "2.5": f"[rank3]:[E1115 01:23:15.892984292 ProcessGroupNCCL.cpp:616] [Rank 3] {CAUGHT}\n"
    "[rank3]:[E1115 01:23:15.893172488 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank 3] Exception "
    f"(either an error or timeout) detected by watchdog at work: 16, {COUNTED}\n",
    "2.6": f"[rank3]:[E1115 01:23:15.892984292 ProcessGroupNCCL.cpp:629] [Rank 3] {CAUGHT}\n"
    "[rank3]:[E1115 01:23:15.893172488 ProcessGroupNCCL.cpp:2168] [PG ID 0 PG GUID 0(default_pg) Rank 3]  failure "
    "detected by watchdog at work sequence id: 16 PG status: last enqueued work: 18, last completed work: 15\n",
    "2.14": "[rank3]:[E1115 01:23:15.892984292 ProcessGroupNCCL.cpp:741] [PG GUID 0(default_pg) Rank 3] "
    f"{CAUGHT}\n[rank3]:[E1115 01:23:15.893172488 ProcessGroupNCCL.cpp:2400] [PG ID 0 PG GUID 0(default_pg) Rank 3]  "
    "failure detected by watchdog at work sequence id: 16 PG status: last enqueued work: 18, last completed work: 15\n",
}


@pytest.mark.parametrize("version", BY_VERSION)
def test_timeout_is_read_in_the_wording_of_every_version(version: str) -> None:
    """One timeout is one report, with the operation, and with the group's counters where the version logs them."""
    found = reports(BY_VERSION[version])
    assert [(r.rank, r.kind, r.seq, r.operation) for r in found] == [(3, "timeout", 16, "all_reduce")]
    assert (found[0].numel_in, found[0].timeout_ms, found[0].elapsed_ms) == (65536, 600000, 600123)
    if version not in {"2.1", "2.2"}:
        assert (found[0].group_name, found[0].last_enqueued, found[0].last_completed) == ("0", 18, 15)
    if version >= "2.4" or version == "2.14":
        assert found[0].at_ns == NOV_2026 + 892984292


@pytest.mark.parametrize("version", [v for v in BY_VERSION if v != "2.1"])
def test_version_is_told_by_the_line_number_of_the_message(version: str) -> None:
    """The source line in front of a message says which PyTorch wrote it."""
    assert read(BY_VERSION[version]).torch.torch_versions == {version}


def test_vendor_builds_line_numbers_say_nothing() -> None:
    """A line number that no released wheel has gives no version."""
    assert read(BY_VERSION["2.4"].replace("607", "693")).torch.torch_versions == set()


@pytest.mark.parametrize(
    ("body", "operation"),
    [
        ("WorkNCCL(SeqNum=4, OpType=_ALLGATHER_BASE, NumelIn=16, NumelOut=64, Timeout(ms)=12000)", "_all_gather_base"),
        ("WorkNCCL(SeqNum=4, OpType=ALLTOALL_BASE, NumelIn=1, NumelOut=1, Timeout(ms)=1)", "all_to_all"),
        (
            "WorkNCCL(SeqNum=4, OpType=_REDUCE_SCATTER_BASE, NumelIn=1, NumelOut=1, Timeout(ms)=1)",
            "_reduce_scatter_base",
        ),
        ("WorkNCCL(SeqNum=4, OpType=COALESCED, NumelIn=18446744073709551615, NumelOut=0, Timeout(ms)=1)", "coalesced"),
        ("WorkNCCL(SeqNum=4, OpType=SEND, NumelIn=1, NumelOut=1, Timeout(ms)=1)", "send"),
        ("WorkNCCL(SeqNum=4, OpType=RECV, NumelIn=1, NumelOut=1, Timeout(ms)=1)", "recv"),
        ("WorkNCCL(SeqNum=4, OpType=BROADCAST, NumelIn=1, NumelOut=1, Timeout(ms)=1)", "broadcast"),
        ("WorkNCCL(SeqNum=4, OpType=REDUCE_SCATTER, NumelIn=1, NumelOut=1, Timeout(ms)=1)", "reduce_scatter"),
        ("WorkHCCL(SeqNum=4, OpType=ALLGATHER, Timeout(ms)=1800000)", "all_gather"),
        ("Work(SeqNum=4, OpType=BARRIER, Timeout(ms)=1800000)", "barrier"),
    ],
)
def test_operation_types_have_the_recorders_names(body: str, operation: str) -> None:
    """The watchdog's OpType becomes the name that a flight recorder dump uses, on every accelerator."""
    line = f"[rank1]:[E624 23:59:59.000000001 X.cpp:1] [Rank 1] Watchdog caught collective operation timeout: {body} ran for 7 milliseconds before timing out."
    found = reports(line)
    assert [(r.rank, r.seq, r.operation, r.elapsed_ms) for r in found] == [(1, 4, operation, 7)]


def test_june_24_is_not_padded() -> None:
    """``E624`` is the 24th of June, ``E1003`` the 3rd of October."""
    june = read("[rank0]:[E624 01:02:03.5 ProcessGroupNCCL.cpp:689] [Rank 0] " + CAUGHT).torch.reports[0].at
    october = read("[rank0]:[E1003 01:02:03.5 ProcessGroupNCCL.cpp:689] [Rank 0] " + CAUGHT).torch.reports[0].at
    assert isinstance(june, Clock) and isinstance(october, Clock)
    assert (june.month, june.day, october.month, october.day) == (6, 24, 10, 3)
    assert june.ns_of_day == (3600 + 120 + 3) * 10**9 + 500_000_000


def test_year_comes_from_other_evidence_or_is_not_in_the_future() -> None:
    """A time without a year is put nearest to dated evidence; without any, never into the future."""
    new_years_eve = Clock(12, 31, 86_399 * 10**9)
    just_after = 1_798_761_610_000_000_000  # 2027-01-01T00:00:10Z
    assert just_after - (resolve_time(new_years_eve, just_after, 0) or 0) == 11 * 10**9
    march = 1_773_100_800_000_000_000  # 2026-03-10
    assert (resolve_time(new_years_eve, None, march) or 0) < march
    leap_day = Clock(2, 29, 0)
    assert resolve_time(leap_day, None, march) is None, "no year near 2026 has that day"
    two_years_on = march + 731 * 86_400 * 10**9  # 2028-03-10
    assert resolve_time(leap_day, None, two_years_on) == two_years_on - 10 * 86_400 * 10**9
    assert resolve_time(None, 1, 1) is None


SIGNALS = {
    "Received a timeout signal from this local rank and will start to dump the debug info. Last enqueued NCCL work: 18, last completed NCCL work: 15.": None,
    "Received a global timeout from another rank and will start to dump the debug info. Last enqueued NCCL work: 18, last completed NCCL work: 15.": None,
    "Received a dump signal from this local rank and will start to dump the debug info. Last enqueued NCCL work: 18, last completed NCCL work: 15.": None,
    "Received a global dump signal from rank 34, and will start to dump the debug info. Last enqueued NCCL work: 18, last completed NCCL work: 15.": 34,
    "Received a dump signal due to a collective timeout from this local rank and we will try our best to dump the debug info. Last enqueued NCCL work: 18, last completed NCCL work: 15.This is most likely": None,
    "Received a dump signal due to a collective timeout from  rank 34 and we will try our best to dump the debug info. Last enqueued NCCL work: 18, last completed NCCL work: 15.This is most likely": 34,
}


@pytest.mark.parametrize("text", SIGNALS)
def test_dump_signal_says_who_sent_it_and_how_far_the_rank_was(text: str) -> None:
    """A rank that only answers a dump signal still says how many operations it launched and finished."""
    line = f"[rank7]:[E1115 01:23:23.176602760 ProcessGroupNCCL.cpp:1914] [PG ID 0 PG GUID 0(default_pg) Rank 7] {text}"
    found = reports(line)
    assert [(r.rank, r.kind, r.last_enqueued, r.last_completed) for r in found] == [(7, "status", 18, 15)]
    assert found[0].signalled_by == SIGNALS[text]


def test_group_rank_is_not_the_rank() -> None:
    """``Rank 0`` inside a group's prefix never counts as the global rank where PyTorch's own tag is there."""
    line = (
        "[rank13]:[E1115 01:25:10.311890649 ProcessGroupNCCL.cpp:2303] [PG ID 2 PG GUID 9(EXPERT_MODEL_PARALLEL_GROUP) "
        "Rank 5]  failure detected by watchdog at work sequence id: 7 PG status: last enqueued work: 7, last completed work: 6"
    )
    (found,) = reports(line)
    assert (found.rank, found.group_name, found.group_desc) == (13, "9", "EXPERT_MODEL_PARALLEL_GROUP")


def test_group_without_description_and_without_any_rank_is_dropped() -> None:
    """A line that names only a rank within some subgroup is given to nobody, and counted."""
    line = (
        "[E1115 01:25:10.3 ProcessGroupNCCL.cpp:2303] [PG ID 2 PG GUID 9 Rank 5]  failure detected by watchdog at work "
        "sequence id: 7 PG status: last enqueued work: 7, last completed work: 6"
    )
    found, lost = resolve_ranks.watchdog_reports(read(line), LogTimes([]), Identity())
    assert (found, len(lost)) == ([], 1)


def test_two_groups_of_one_process_are_two_reports() -> None:
    """Two watchdog threads that report the same sequence number at the same moment are kept apart, with their stacks."""
    text = (CASES / "multi_pg/gpu-worker-6/rank_0.log").read_text()
    tp, dp, _ = reports(text)
    assert [(r.group_desc, r.seq, r.numel_in) for r in (tp, dp)] == [("tp", 7, 65536), ("dp", 7, 16)]
    assert {tp.frames[2].line, dp.frames[2].line} == {111, 113}


def test_stack_goes_to_the_report_of_its_operation() -> None:
    """Where two reports wait for a stack, the function that was called decides."""
    text = "".join(
        f"[rank0]:[E1115 01:25:10.{n}00000000 ProcessGroupNCCL.cpp:689] [Rank 0] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum={n}, OpType={op}, NumelIn=1, NumelOut=1, Timeout(ms)=1) ran for 2 milliseconds before timing out.\n"
        f"[rank0]:[E1115 01:25:10.{n}00000001 ProcessGroupNCCL.cpp:2303] [PG ID {n} PG GUID {n}(g{n}) Rank 0]  failure "
        f"detected by watchdog at work sequence id: {n} PG status: last enqueued work: {n}, last completed work: {n - 1}\n"
        for n, op in ((3, "_ALLGATHER_BASE"), (4, "ALLREDUCE"))
    )
    text += (
        "[rank0]:[E1115 01:25:17.2 ProcessGroupNCCL.cpp:733] Stack trace of the failed collective: \n"
        "#0 all_reduce from torch/distributed/distributed_c10d.py:3068\n#1 step from /w/train.py:40\n\n"
        "[rank0]:[E1115 01:25:17.3 ProcessGroupNCCL.cpp:733] Stack trace of the failed collective: \n"
        "#0 all_gather_into_tensor from torch/distributed/distributed_c10d.py:4186\n#1 step from /w/train.py:30\n"
    )
    gather, reduce = reports(text)
    assert (gather.frames[1].line, reduce.frames[1].line) == (30, 40)
    assert str(reduce.frames[1]) == "/w/train.py:40 step"


def test_echo_when_the_process_ends_is_not_a_second_timeout() -> None:
    """The same words in the thread's last message and in ``what():`` make no further report."""
    text = BY_VERSION["2.6"] + (
        "[rank3]:[E1115 01:24:15.9 ProcessGroupNCCL.cpp:695] [Rank 3] To avoid data inconsistency, we are taking the entire process down.\n"
        "[rank3]:[E1115 01:24:15.9 ProcessGroupNCCL.cpp:1895] [PG ID 0 PG GUID 0(default_pg) Rank 3] Process group watchdog "
        f"thread terminated with exception: [Rank 3] {CAUGHT}\n"
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
        f"  what():  [PG ID 0 PG GUID 0(default_pg) Rank 3] Process group watchdog thread terminated with exception: [Rank 3] {CAUGHT}\n"
    )
    assert len(reports(text)) == 1


def test_async_error_keeps_nccls_explanation() -> None:
    """An error that NCCL reports carries NCCL's last words, which name the peer."""
    (found, *_) = reports((CASES / "sigkill/gpu-worker-6/rank_0.log").read_text())
    assert (found.kind, found.operation, found.seq) == ("async_error", "_all_gather_base", 15)
    assert found.error is not None and "Connection closed by remote peer localhost<60574>" in found.error
    assert found.frames[2].line == 21


def test_old_async_error_is_read_from_the_threads_last_words() -> None:
    """Before 2.5 an NCCL error is only told when the watchdog thread ends."""
    text = (
        "[rank2]:[E ProcessGroupNCCL.cpp:1182] [Rank 2] NCCL watchdog thread terminated with exception: NCCL error: remote "
        "process exited or there was a network error, NCCL version 2.18.1\n"
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
        "Last error:\nNET/IB : Got completion from peer 10.0.0.7<41234> with error 12, opcode 0, len 0, vendor err 129\n"
    )
    (found,) = reports(text)
    assert (found.rank, found.kind) == (2, "async_error")
    assert found.error is not None and found.error.endswith("vendor err 129")
    assert read(text).torch.nccl_version == "2.18.1"


def test_cuda_error_of_the_watchdog_is_the_gpus() -> None:
    """A watchdog thread that ends by a CUDA error is told apart from one that ends by NCCL."""
    text = (
        "[rank5]:[E1115 01:24:15.9 ProcessGroupNCCL.cpp:1895] [PG ID 0 PG GUID 0(default_pg) Rank 5] Process group watchdog "
        "thread terminated with exception: CUDA error: an illegal memory access was encountered\n"
    )
    (found,) = reports(text)
    assert (found.rank, found.kind) == (5, "cuda_error")


def test_frozen_python_and_a_stuck_watchdog_are_reported() -> None:
    """A GIL that nobody gives up and a watchdog inside a CUDA call are findings of their own kinds."""
    text = (
        "[rank1]:[E1115 01:24:15.9 ProcessGroupNCCL.cpp:1700] [PG ID 0 PG GUID 0(default_pg) Rank 1] Could not acquire GIL within 300 ms on exit, possible GIL induced hang\n"
        "[rank2]:[E1115 01:24:15.9 ProcessGroupNCCL.cpp:1700] [PG ID 0 PG GUID 0(default_pg) Rank 2] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives. This typically indicates a NCCL/CUDA API (e.g., CudaEventDestroy) hang blocking the watchdog\n"
    )
    found = reports(text)
    assert [(r.rank, r.kind, r.elapsed_ms) for r in found] == [(1, "gil", None), (2, "watchdog_stuck", 480_000)]


def test_desync_report_lines_are_kept() -> None:
    """What PyTorch's own desync report believes is kept as it was said."""
    text = (
        "[rank0]:[E1115 01:24:15.9 ProcessGroupNCCL.cpp:700] \n\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:\n"
        "\t   - [2] finished collective #15, but didn't join collective #16 (count from 1)\n"
    )
    found = read(text, "rank_0.log").torch.reports
    assert [r.report.kind for r in found] == ["desync", "desync"]
    assert "didn't join collective #16" in str(found[1].report.error)


@pytest.mark.parametrize(
    ("why", "kind"),
    [
        ("timeout - timeout watchdog detected operation timeout", "timeout"),
        ("timeout - collective operation timed out", "timeout"),
        ("error - timeout watchdog detected operation error", "async_error"),
        ("error - nccl hit async error: unhandled system error", "async_error"),
    ],
)
def test_nccl2_says_less_but_is_read(why: str, kind: str) -> None:
    """PyTorch 2.15's new backend names the rank and the group, and no operation."""
    line = f"[rank4]:[E1115 01:24:15.9 TorchCommNCCL.cpp:99] [TC][rank=1][name=tp_0] Aborting process on rank 1 due to {why}"
    (found,) = reports(line)
    assert (found.rank, found.kind, found.group_name, found.operation) == (4, kind, "tp_0", None)


def test_recorder_that_is_off_is_noticed() -> None:
    """The line that says there was no stack because the recorder is off is kept with its place."""
    text = (
        "[rank0]:[E1115 01:23:24.584144574 ProcessGroupNCCL.cpp:736] Stack trace of the failed collective not found, "
        "potentially because FlightRecorder is disabled. You can enable it by setting TORCH_NCCL_TRACE_BUFFER_SIZE to a non-zero value."
    )
    assert [note.number for note in read(text).torch.recorder_off] == [1]


# ---- who wrote a line -----------------------------------------------------------------------------------------------

PREFIXES = [
    "",
    "(RayTrainWorker pid=81233, ip=10.0.3.7) ",
    "(RayWorkerWrapper pid=81233) ",
    "[1,6]<stderr>:",
    "6: ",
    " 6: ",
    "2026-11-15T01:23:15.892984292Z ",
    "2026-11-15T01:23:15.892984292Z stderr F ",
    "[pod/train-worker-1/pytorch] ",
    "worker-1  | ",
    "[default2]:",
    "\x1b[36m(RayTrainWorker pid=81233)\x1b[0m ",
]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_what_a_launcher_puts_in_front_is_taken_off(prefix: str) -> None:
    """The rank is PyTorch's own, whatever stands in front of it, and the text begins where PyTorch's does."""
    line = split_prefix(1, f"{prefix}[rank6]:[E1115 01:23:15.892984292 ProcessGroupNCCL.cpp:689] [Rank 6] {CAUGHT}")
    assert line.tag == 6
    assert line.text.startswith("[E1115")
    assert (
        reports(f"{prefix}[rank6]:[E1115 01:23:15.892984292 ProcessGroupNCCL.cpp:689] [Rank 6] {CAUGHT}")[0].rank == 6
    )


def test_line_shared_with_a_progress_bar_is_found() -> None:
    """A report behind a progress bar without a newline is still a report."""
    text = f" 50%|#####     | 5/10 [00:05<00:05]\r 60%|######    | 6/10[rank2]:[E1115 01:23:15.89 ProcessGroupNCCL.cpp:689] [Rank 2] {CAUGHT}\n"
    assert [r.rank for r in reports(text)] == [2]


def merged(prefix: bool) -> str:
    """All ranks of a recorded case in one file, lines interleaved as a launcher would write them."""
    rows: list[tuple[str, str]] = []
    for rank in range(4):
        node = "gpu-worker-6" if rank < 2 else "gpu-worker-7"
        text = (CASES / f"sigkill/{node}/rank_{rank}.log").read_text()
        for block in text.split("\n[rank"):
            lines = block if block.startswith("rank") else f"[rank{block}"
            stamp = lines.split(" ")[1] if lines.startswith("[rank") else ""
            if prefix:
                lines = "\n".join(f"(W pid={rank}) {row}" for row in lines.split("\n"))
            rows.append((stamp, lines))
    return "\n".join(text for _, text in sorted(rows)) + "\n"


@pytest.mark.parametrize("prefix", [False, True])
def test_one_log_of_all_ranks_gives_the_same_reports(prefix: bool) -> None:
    """A merged log says the same as the ranks' own logs, with or without a launcher's prefix."""
    separate = []
    for rank in range(4):
        node = "gpu-worker-6" if rank < 2 else "gpu-worker-7"
        path = CASES / f"sigkill/{node}/rank_{rank}.log"
        separate += reports(path.read_text(), path.name)
    together = reports(merged(prefix))

    def key(r: WatchdogReport) -> tuple[object, ...]:
        return (r.rank, r.kind, r.seq or 0, r.operation or "", r.last_completed, r.error, r.signalled_by, r.frames)

    assert sorted(map(key, together), key=str) == sorted(map(key, separate), key=str)


def test_untagged_traceback_in_a_shared_log_belongs_to_nobody() -> None:
    """Two ranks in one file and no prefix: a bare traceback is kept, and nobody is accused of it."""
    text = (
        "[rank0]:[E1115 01:23:15.8 ProcessGroupNCCL.cpp:1849] Observed flight recorder dump signal\n"
        "[rank1]:[E1115 01:23:15.8 ProcessGroupNCCL.cpp:1849] Observed flight recorder dump signal\n"
        'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    f()\nValueError: no\n'
    )
    assert [(e.rank, e.type) for e in errors(text, "rank_0.log")] == [(None, "ValueError")]


def test_mpirun_number_is_the_rank_unless_a_tag_says_otherwise() -> None:
    """A task number counts where nothing contradicts it; one contradiction and it counts nowhere."""
    trace = '[1,{0}]<stderr>:Traceback (most recent call last):\n[1,{0}]<stderr>:  File "a.py", line 1, in f\n[1,{0}]<stderr>:KeyError: 1\n'
    assert [e.rank for e in errors(trace.format(3) + trace.format(5))] == [3, 5]
    tagged = "[1,0]<stderr>:[rank4]:[E1115 01:23:15.8 ProcessGroupNCCL.cpp:1849] Observed\n"
    assert [e.rank for e in errors(tagged + trace.format(3))] == [None]


def test_numbered_lines_of_a_training_log_are_not_tasks() -> None:
    """``3: loss 0.2`` is what a script prints, unless nearly every line begins with such a number."""
    steps = "".join(f"{n}: loss 0.{n}\nsaved\n" for n in range(1, 9))
    trace = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nKeyError: 1\n'
    assert [e.rank for e in errors(steps + trace, "rank_2.log")] == [2]
    labelled = "".join(f"{n}: step\n" for n in range(4)) + "".join(f"3: {row}\n" for row in trace.split("\n"))
    assert [e.rank for e in errors(labelled)] == [3]


# ---- tracebacks ------------------------------------------------------------------------------------------------------


def test_recorded_traceback_has_type_message_and_frames() -> None:
    """The recorded exception is quoted with its message and the line that raised it."""
    (found,) = errors((CASES / "exception/gpu-worker-6/rank_1.log").read_text(), "x.log")
    assert (found.rank, found.type, found.message) == (1, "ValueError", "bad sample: index 1183 out of range")
    assert str(found.frames[-1]) == "/workspace/train.py:75 main"
    assert not found.consequence
    assert found.source.place == "line 2"


def test_clean_exit_is_noticed() -> None:
    """A rank that leaves without destroy_process_group() left by itself."""
    log = read((CASES / "exception/gpu-worker-6/rank_1.log").read_text())
    assert [(note.tag, note.number) for note in log.torch.clean_exits] == [(1, 9)]


CHAIN = """\
[rank3]: Traceback (most recent call last):
[rank3]:   File "/w/data.py", line 10, in __next__
[rank3]:     return self.rows[i]
[rank3]: IndexError: list index out of range

[rank3]: {link}

[rank3]: Traceback (most recent call last):
[rank3]:   File "/w/train.py", line 20, in main
[rank3]:     batch = next(it)
[rank3]: RuntimeError: loader failed
[rank3]: in worker 4
"""


@pytest.mark.parametrize(
    "link",
    [
        "During handling of the above exception, another exception occurred:",
        "The above exception was the direct cause of the following exception:",
    ],
)
def test_chained_exception_is_one_error_with_its_cause(link: str) -> None:
    """A chain is one error: the last exception, with the one that started it as its cause."""
    (found,) = errors(CHAIN.format(link=link))
    assert (found.rank, found.type, found.message) == (3, "RuntimeError", "loader failed\nin worker 4")
    assert found.cause is not None
    assert (found.cause.type, found.cause.frames[0].line) == ("IndexError", 10)


@pytest.mark.parametrize(
    ("last", "consequence"),
    [
        (
            "torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:2006, remote process exited",
            True,
        ),
        ("torch.distributed.DistBackendError: NCCL error in: ../NCCLUtils.cpp:77, unhandled cuda error", False),
        (
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 5000ms for recv operation to complete",
            True,
        ),
        (
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.3]:2345",
            True,
        ),
        ("RuntimeError: NCCL communicator was aborted on rank 1.", True),
        (
            "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 3/4 clients joined.",
            True,
        ),
        ("KeyboardInterrupt", True),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79 GiB",
            False,
        ),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB", False),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", False),
        ("ValueError: bad sample", False),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/x'", False),
        ("AssertionError", False),
    ],
)
def test_victims_traceback_is_a_consequence(last: str, consequence: bool) -> None:
    """A rank that only noticed is marked so; a rank that did something wrong itself is not."""
    text = f'[rank1]: Traceback (most recent call last):\n[rank1]:   File "/w/train.py", line 3, in step\n[rank1]:     dist.all_reduce(x)\n[rank1]: {last}\n'
    (found,) = errors(text)
    assert found.type == last.split(":")[0]
    assert found.consequence is consequence


def test_cause_decides_whether_a_chain_is_a_consequence() -> None:
    """A barrier that fails in the clean-up after an error of one's own does not make the error a consequence."""
    text = CHAIN.format(link="During handling of the above exception, another exception occurred:").replace(
        "RuntimeError: loader failed", "torch.distributed.DistBackendError: NCCL communicator was aborted"
    )
    (found,) = errors(text)
    assert not found.consequence
    turned = text.replace("IndexError: list index", "torch.distributed.DistBackendError: NCCL error; list index")
    assert errors(turned)[0].consequence


def test_interleaved_tracebacks_of_two_ranks_come_apart() -> None:
    """Lines of two tracebacks in one file are sorted out by their tags."""
    a = ["Traceback (most recent call last):", '  File "a.py", line 1, in a', "    a()", "KeyError: 'a'"]
    b = ["Traceback (most recent call last):", '  File "b.py", line 2, in b', "    b()", "TypeError: b"]
    text = "".join(f"[rank1]: {x}\n[rank2]: {y}\n" for x, y in zip(a, b, strict=True))
    assert [(e.rank, e.type, e.frames[0].line) for e in errors(text)] == [(1, "KeyError", 1), (2, "TypeError", 2)]


def test_traceback_in_a_ranks_own_file_needs_no_tag() -> None:
    """An exception before init_process_group has no tag: it is the file's rank that raised it."""
    text = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    import x\nModuleNotFoundError: No module named x\n'
    assert [(e.rank, e.type) for e in errors(text, "logs/rank_12.log")] == [(12, "ModuleNotFoundError")]


def test_memory_error_that_was_caught_and_logged_is_found() -> None:
    """Out of memory in a log line without a traceback is an error of that rank all the same."""
    found = errors("[rank5]: step 7 skipped: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has\n")
    assert [(e.rank, e.type, e.frames) for e in found] == [(5, "torch.OutOfMemoryError", ())]


def test_crash_with_a_python_stack_is_an_error_with_frames() -> None:
    """faulthandler's report of a crash gives the line; an abort is only how the watchdog ends a process."""
    text = (
        "Fatal Python error: {}\n\nCurrent thread 0x00007f2a (most recent call first):\n"
        '  File "/w/kernels.py", line 7 in launch\n  File "/w/train.py", line 3 in <module>\n\n'
        "Extension modules: numpy\n"
    )
    (crash,) = errors(text.format("Segmentation fault"), "rank_3.log")
    assert (crash.rank, crash.message, crash.consequence) == (3, "Segmentation fault", False)
    assert [f.line for f in crash.frames] == [3, 7]
    assert errors(text.format("Aborted"), "rank_3.log")[0].consequence


def test_gloo_timeout_is_a_report_with_operation_and_frames() -> None:
    """Gloo has no watchdog: its exception says which collective timed out, and where it was called."""
    text = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/w/train.py", line 31, in <module>
[rank1]:     dist.all_reduce(x)
[rank1]:   File "/p/torch/distributed/c10d_logger.py", line 83, in wrapper
[rank1]:     return func(*args, **kwargs)
[rank1]:   File "/p/torch/distributed/distributed_c10d.py", line 3000, in all_reduce
[rank1]:     work.wait()
[rank1]: RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 5000ms for recv operation to complete
"""
    (found,) = reports(text)
    assert (found.rank, found.kind, found.operation, found.timeout_ms) == (1, "timeout", "all_reduce", 5000)
    assert str(found.frames[-1]) == "/w/train.py:31 <module>"


def test_gloo_closed_connection_names_the_peer() -> None:
    """A Gloo peer that went away is a transport event with its address."""
    log = read(
        'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    x\n'
        "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.3]:2345\n",
        "rank_0.log",
    )
    found: list[TransportEvent] = resolve_nccl.transport_events(Identity(), {}, [log], [], LogTimes([]))
    assert [(e.kind, e.rank, e.peer_address) for e in found] == [("connection_closed", 0, "[10.0.0.3]:2345")]


def test_launchers_own_error_is_not_a_ranks() -> None:
    """torchrun's ChildFailedError repeats what a rank did; it is nobody's exception."""
    text = 'Traceback (most recent call last):\n  File "/bin/torchrun", line 8, in <module>\n    sys.exit(main())\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n====\n'
    assert errors(text) == []


def test_very_long_line_and_wild_bytes_do_no_harm() -> None:
    """A line of a megabyte, NULs and bad UTF-8 are read past."""
    data = b"x" * 1_000_000 + b"\n\xff\xfe\x00\n" + BY_VERSION["2.6"].encode()
    log = TextFile("out.log")
    log.read(io.BytesIO(data), len(data))
    assert [(r.report.seq, r.number) for r in log.torch.reports] == [(16, 3)]


def test_size_that_gloo_ends_a_process_over_is_read() -> None:
    """Gloo's enforce says how much came and how much was expected. It is no effect of another's failure."""
    text = (
        "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
        "  what():  [enforce fail at /__w/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:456] op.preamble.length <= "
        "op.nbytes. 32768 vs 16384. Received data size doesn't match expected size. Is there a distributed collective "
        "mismatch in your code?\n"
    )
    (found,) = errors(text, rank=4)
    assert (found.rank, found.type, found.consequence) == (4, GLOO_SIZE, False)
    assert found.message == "expected 16384 B, a peer sent 32768 B"


CARRIED = """
[rank2]: Traceback (most recent call last):
[rank2]:   File "/home/me/train.py", line 22, in main
[rank2]:     for batch in loader:
[rank2]:   File "/usr/lib/python3/site-packages/torch/utils/data/dataloader.py", line 708, in __next__
[rank2]:     data = self._next_data()
[rank2]:   File "/usr/lib/python3/site-packages/torch/_utils.py", line 733, in reraise
[rank2]:     raise exception
[rank2]: ValueError: Caught ValueError in DataLoader worker process 0.
[rank2]: Original Traceback (most recent call last):
[rank2]:   File "/usr/lib/python3/site-packages/torch/utils/data/_utils/worker.py", line 349, in _worker_loop
[rank2]:     data = fetcher.fetch(index)
[rank2]:   File "/home/me/data.py", line 41, in __getitem__
[rank2]:     raise ValueError("bad record 17")
[rank2]: ValueError: bad record 17
"""


@pytest.mark.parametrize("whole", [True, False])
def test_the_line_of_a_data_loader_s_worker_is_the_line(whole: bool) -> None:
    """A worker's exception is raised again in its rank, with its own traceback as the message: the user's line is in
    there, also where the paste ends before the last line."""
    verdict = verdict_on(CARRIED if whole else CARRIED.rpartition("[rank2]: ValueError")[0])
    [culprit] = verdict.culprits
    assert (culprit.rank, str(verdict.kind), str(verdict.outcome)) == (2, "dead", "crash")
    assert culprit.where is not None
    assert (culprit.where.file, culprit.where.line) == ("/home/me/data.py", 41)
    assert "DataLoader worker process 0" in verdict.headline
    assert ("bad record 17" in verdict.headline) is whole
