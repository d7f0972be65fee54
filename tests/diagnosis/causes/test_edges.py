"""Which of two causes goes before the other, where both explain a hang and no layer orders them.

Every edge that a cause declares names a test of this file. In each, two causes meet and nothing but the edge orders
them: without it the test fails, or the names of the grounds decide. The truth is reasoned from how the job is made.
"""

from __future__ import annotations

import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hangscope import load
from hangscope.diagnosis import Diagnosis, diagnose
from hangscope.diagnosis.accusation import Grounds
from hangscope.diagnosis.causes import CAUSE_OF
from hangscope.diagnosis.precedence import Precedence
from hangscope.model import (
    BlackBox,
    CallArguments,
    Facts,
    Failure,
    FailureKind,
    Frame,
    GpuCore,
    GpuKernel,
    Job,
    LogScope,
    Process,
    RasRank,
    RasReport,
    Source,
    ThreadStack,
    WatchdogReport,
)
from hangscope.sources.black_box import read as blackbox_file
from kits.lost_evidence import CASES
from kits.pasted_logs import verdict_on
from kits.small_jobs import Op, job, recv, send

A = "A"
B = "B"
C = "C"
D = "default_pg"
ARCHIVE = Path(__file__).parents[2] / "recorded_links.tar.xz"
STEP = (Op(D, line=10), Op(D, "broadcast", line=20), Op(D, line=30, elements=64))


def chosen(verdict: Diagnosis) -> tuple[str, list[int]]:
    """On which grounds the verdict rests, and who is accused."""
    fitting = [g for g in CAUSE_OF if verdict.confidence_rule.startswith(f"{verdict.kind}: {g.why}")]
    grounds = max(fitting, key=lambda grounds: len(grounds.why))
    return grounds.name, [culprit.rank for culprit in verdict.culprits]


def stuck(op: Op) -> Op:
    return replace(op, state="started")


def waiting(group: str, *ranks: int, **more: Any) -> dict[int, list[Op]]:
    """Ranks that finished one call of a group, and wait in the next."""
    return {rank: [Op(group), Op(group, state="started", **more)] for rank in ranks}


def alive(*ranks: int, **more: Any) -> dict[int, Process]:
    return {rank: Process(rank, alive_at_end=True, **more) for rank in ranks}


def ended(rank: int, status: int = 1) -> dict[int, Process]:
    return {rank: Process(rank, exit_status=status, ended_at_s=100.0)}


def timeout(rank: int, call: str = "all_reduce", elements: int = 16, seq: int | None = 2) -> WatchdogReport:
    """The watchdog's line about what a rank timed out in."""
    here = Source(f"rank_{rank}.log", "line 9")
    return WatchdogReport(
        rank,
        "timeout",
        here,
        group_name="0",
        seq=seq,
        operation=call,
        numel_in=elements,
        numel_out=elements,
        last_enqueued=2,
        last_completed=1,
    )


def failure(kind: FailureKind, rank: int | None = None, **more: Any) -> Failure:
    return Failure(kind, f"a line about {kind}", Source("job.log", "line 7"), rank, None, **more)


# ---- what ranks called differently -----------------------------------------------------------------------------------


def test_another_call_goes_before_other_splits() -> None:
    """Split sizes that differ follow from calls that do, and not the reverse: those are named, though less surely."""
    exchange = Op(B, "all_to_all", state="started", elements=40, out=40)
    splits = {rank: [Op(B), exchange] for rank in (2, 3, 4)} | {5: [Op(B), replace(exchange, elements=48)]}
    calls = {0: [Op(A), Op(A, "broadcast", state="started")], 1: [Op(A), Op(A, state="started")]}
    found = diagnose(job({A: [0, 1], B: [2, 3, 4, 5]}, calls | splits))
    assert chosen(found) == ("calls_differ", [0, 1])


def test_splits_of_known_sides_go_before_sums_of_nobody() -> None:
    """Of two exchanges whose sums differ, the one whose two sides can be named."""
    pair = {0: [Op(A, "all_to_all", "started", 40, 40)], 1: [Op(A, "all_to_all", "started", 48, 40)]}
    uneven = {
        2: [Op(B, "all_to_all", "started", 10, 20)],
        3: [Op(B, "all_to_all", "started", 20, 30)],
        4: [Op(B, "all_to_all", "started", 30, 11)],
    }
    assert chosen(diagnose(job({A: [0, 1], B: [2, 3, 4]}, pair | uneven))) == ("splits_differ", [0, 1])


def test_own_recordings_go_before_lines_about_them() -> None:
    """The recordings have the line of code and the split; what the watchdogs print of the same call has neither."""
    exchange = Op(D, "all_to_all", state="started", elements=40, out=40)
    ranks = {rank: [Op(D), exchange] for rank in (0, 1, 2)} | {3: [Op(D), replace(exchange, elements=48)]}
    lines = tuple(timeout(rank, "all_to_all", 48 if rank == 3 else 40) for rank in range(4))
    found = diagnose(job({D: range(4)}, ranks, incomplete=[3], facts=Facts(watchdog=lines)))
    assert chosen(found) == ("splits_differ", [3])


def test_what_each_rank_prints_goes_before_a_report_of_one() -> None:
    """Four ranks print what they run, and one differs; a report is one rank's view of the others."""
    lines = tuple(timeout(rank, elements=99 if rank == 2 else 16) for rank in range(4))
    report = failure(FailureKind.MISMATCH, 0, ranks=(3,), seq=2)
    facts = Facts(watchdog=lines, failures=(report,))
    assert chosen(diagnose(job({D: range(4)}, waiting(D, 0, 1), facts=facts))) == ("reported_calls_differ", [2])


def test_the_call_left_out_goes_before_having_gone_past() -> None:
    """Rank 4 left a call out, and so is past the others: what it left out says why."""
    step = [Op(D, "broadcast", line=20), Op(D, line=30), Op(D, "_all_gather_base", line=40, out=64)]
    ranks = {rank: [*step * 3, step[0], stuck(step[1])] for rank in range(4)}
    odd = [*step * 2, step[0], step[2], *step, step[0]]
    found = diagnose(job({D: range(5)}, ranks | {4: odd}, incomplete=[4]))
    assert chosen(found) == ("calls_differ", [4])
    assert "skipped all_reduce #8" in found.headline


def test_the_call_too_many_goes_before_a_call_more_at_the_end() -> None:
    """Rank 3 made an extra call in the middle, and therefore waits at the end in one more than those who have left."""
    odd = [*STEP, Op(D, "barrier", line=99, elements=1), *STEP, *STEP[:2], stuck(STEP[2])]
    ranks = {rank: [*STEP * 3] for rank in (0, 1, 2)} | {3: odd}
    left = {rank: Process(rank, exit_status=0, ended_at_s=100.0 + rank) for rank in (0, 1, 2)}
    found = diagnose(job({D: range(4)}, ranks, incomplete=[3], processes=left))
    assert chosen(found) == ("calls_differ", [3])
    assert "barrier #4" in found.headline


def test_having_gone_past_goes_before_another_line() -> None:
    """Nobody finishes an all_reduce alone; that a broadcast before it came from another line may be the root's own."""
    step = [Op(D, "broadcast", line=20), Op(D, line=30)]
    ranks = {rank: [*step, step[0], stuck(step[1])] for rank in (0, 1, 3)}
    ranks |= {2: [*step, Op(D, "broadcast", line=77), stuck(step[1])], 4: step * 3}
    assert chosen(diagnose(job({D: range(5)}, ranks))) == ("went_past", [4])


# ---- who is waited for -----------------------------------------------------------------------------------------------

STAGES = {"stage 0": [0, 1, 2, 3], "stage 1": [4, 5, 6, 7]}
PAIRS = {f"pair {rank}": [rank, rank + 4] for rank in range(4)}


def one_step(rank: int) -> list[Op]:
    """Two pipeline stages of four ranks: activations forward, gradients reduced, gradients of activations back."""
    pair = f"pair {rank % 4}"
    stage = f"stage {rank // 4}"
    other = (rank + 4) % 8
    forward = (send if rank < 4 else recv)(pair, other, line=20)
    back = (recv if rank < 4 else send)(pair, other, line=50)
    gradients = [Op(stage, "all_gather", line=30), Op(stage, "reduce_scatter", line=40)]
    return [forward, *gradients, back, Op(D, elements=1, line=60)]


def pipelined(odd: int, its_calls: Sequence[Op], lost: int | None = None) -> dict[int, list[Op]]:
    """Six good steps; in the seventh one rank makes other calls, and all others wait where it is missed."""
    ranks: dict[int, list[Op]] = {}
    for rank in range(8):
        calls = one_step(rank)
        last = [stuck(calls[0])] if rank == odd + 4 else [calls[0], stuck(calls[1])]
        ranks[rank] = [*calls * 6, *(its_calls if rank == odd else last)]
    return {rank: calls for rank, calls in ranks.items() if rank != lost}


EXTRA = Op(D, "barrier", elements=1, line=99, state="started")


def test_who_waits_for_no_one_goes_before_a_call_in_a_cycle() -> None:
    """Beside a cycle of waits, in a group of its own, ranks that wait for no one hold others up: that needs no vote."""
    groups = {**STAGES, **PAIRS, D: range(8), C: [8, 9, 10, 11]}
    absent = {**waiting(C, 8, 11), 9: [Op(C)], 10: [Op(C)]}
    assert chosen(diagnose(job(groups, pipelined(0, [EXTRA]) | absent))) == ("blocks_others", [9, 10])


def test_the_call_that_started_a_cycle_goes_before_the_cycle() -> None:
    """Rank 0's barrier, which nobody else calls there, is why the ranks wait for each other."""
    found = diagnose(job({**STAGES, **PAIRS, D: range(8)}, pipelined(0, [EXTRA])))
    assert chosen(found) == ("call_order", [0])


def test_a_cycle_goes_before_an_end_that_nobody_waits_for() -> None:
    """Ranks 0 and 1 wait for each other; rank 3, which ended, is in no group with them."""
    ranks = {0: [Op(A, state="started")], 1: [Op(B, state="started")], 2: [Op(C)]}
    found = diagnose(job({A: [0, 1], B: [0, 1], C: [2, 3]}, ranks, processes=ended(3) | alive(0, 1, 2)))
    assert chosen(found) == ("wait_cycle", [0, 1])


@cache
def boxes(case: str) -> tuple[BlackBox, ...]:
    """The black boxes of a real job in which one thing was made to go wrong."""
    with tarfile.open(ARCHIVE) as archive:
        members = [member for member in archive if member.name.startswith(f"{case}/") and member.isfile()]
        streams = {m.name: archive.extractfile(m) for m in members if not m.name.endswith("truth.json")}
        read = {name: stream.read() for name, stream in streams.items() if stream is not None}
    return tuple(blackbox_file.read_box(data, Source(name))[0] for name, data in read.items())


def test_an_end_goes_before_a_link_that_does_not_move() -> None:
    """A process that ended takes its connections with it: a link that does not move then is no cause."""
    facts = Facts(blackboxes=boxes("ring4_00_link_all_reduce_2_3"))
    found = diagnose(job({D: range(4)}, {}, processes=ended(1) | alive(0, 2, 3), facts=facts))
    assert chosen(found) == ("end_seen", [1])


def test_an_end_goes_before_what_transfers_say_of_the_same_rank() -> None:
    """By its black box the killed rank is merely not scheduled any more; its exit status says that it is dead."""
    facts = Facts(blackboxes=boxes("ring4_16_killed_all_reduce_1"))
    found = diagnose(job({D: range(4)}, {}, processes=ended(1, -9) | alive(0, 2, 3), facts=facts))
    assert (chosen(found), found.kind) == (("end_seen", [1]), "dead")


def test_what_transfers_wait_for_goes_before_a_report() -> None:
    """A report names all that had not come when it gave up; the transfers, the one for which they wait in the end."""
    report = failure(FailureKind.MISSING_RANKS, 0, ranks=(1, 2))
    facts = Facts(blackboxes=boxes("ring4_11_absent_all_reduce_2"), failures=(report,))
    assert chosen(diagnose(job({D: range(4)}, {}, facts=facts))) == ("last_waited_for", [2])


def test_a_report_by_name_goes_before_who_is_seen_in_nothing() -> None:
    """PyTorch knows who belongs to the barrier; who is outside of everything just now may belong to none."""
    processes = alive(2, waits_in="") | alive(0, 1, 3, waits_in="monitored_barrier", stood_s=30.0)
    facts = Facts(failures=(failure(FailureKind.MISSING_RANKS, 0, ranks=(3,)),))
    found = diagnose(job({D: range(4)}, {rank: [Op(D)] for rank in range(4)}, processes=processes, facts=facts))
    assert chosen(found) == ("reported_missing", [3])


# ---- signs -----------------------------------------------------------------------------------------------------------


def test_a_failure_goes_before_everybody_being_inside() -> None:
    """Everybody is inside an operation, and one rank says that its GPU failed: that is why nobody leaves it."""
    found = diagnose(
        job({D: range(4)}, waiting(D, *range(4)), facts=Facts(failures=(failure(FailureKind.CUDA_ERROR, 1),)))
    )
    assert chosen(found) == ("failure_line", [1])


def test_everybody_inside_goes_before_an_order_that_is_only_unusual() -> None:
    """In a group of their own all are seen to be stuck; a lost dump hides whether rank 1's order holds up anybody."""
    calls = one_step(1)
    ranks = pipelined(1, [stuck(calls[4]), replace(calls[0], state="scheduled")], lost=6)
    groups = {**STAGES, **PAIRS, D: range(8), C: [8, 9, 10]}
    assert chosen(diagnose(job(groups, ranks | waiting(C, 8, 9, 10)))) == ("everybody_inside", [])


def test_everybody_inside_goes_before_a_rank_that_is_not_seen() -> None:
    """In one group all are seen to be stuck; of another group's rank only the dump is missing, which accuses nobody."""
    ranks = waiting(A, 0, 1, 2) | waiting(B, 3)
    assert chosen(diagnose(job({A: [0, 1, 2], B: [3, 4]}, ranks, hung_s=-9.0))) == ("everybody_inside", [])


def test_a_rank_that_is_not_seen_goes_before_what_nobody_can_tell_apart() -> None:
    """Of a group that is whole, nothing says whether a GPU or the network is stuck; in another a rank is missing."""
    ranks = {rank: [Op(group), Op(group, state="scheduled")] for rank, group in ((0, A), (1, A), (2, B))}
    assert chosen(diagnose(job({A: [0, 1], B: [2, 3]}, ranks, timing=False))) == ("blocks_unseen", [3])


def test_a_rank_that_an_operation_waits_for_goes_before_one_without_a_timeout() -> None:
    """Both are rank 3; that the counters of its group's members say so is more than that it reported nothing itself."""
    signalled = WatchdogReport(3, "status", Source("rank_3.log", "line 1"), signalled_by=0)
    lines = (*(timeout(rank) for rank in range(3)), timeout(4, seq=None), signalled)
    facts = Facts(watchdog=lines, logs=(LogScope("rank_3.log", (3,), None, None, True, True, 9),))
    found = diagnose(job({D: range(4), A: range(5)}, {}, facts=facts))
    assert chosen(found) == ("blocks_unseen", [3])


# ---- nothing hangs ---------------------------------------------------------------------------------------------------


def rounds(duration_ms: Callable[[int, int], float], odd: Op | None = None, **more: Any) -> Job:
    """Ten rounds of a second: four ranks call an all_reduce and a broadcast; one broadcast of rank 1 may be another."""
    step = [Op(D, line=10), Op(D, "broadcast", line=20)]
    ranks = {rank: [*step * 10] for rank in range(4)}
    if odd is not None:
        ranks[1][9] = odd
    made = job({D: range(4)}, ranks, **more)
    for rank in range(4):
        for index, row in enumerate(range(made.ops.span(rank).start, made.ops.span(rank).stop)):
            number, place = divmod(index, 2)
            made.ops.columns["duration_ms"][row] = duration_ms(rank, place)
            made.ops.columns["created_ns"][row] = 10**18 + int(1e9 * (number + place / 10))
    return made


def even(rank: int, place: int) -> float:
    return 1.0


def rank_2_is_late(rank: int, place: int) -> float:
    return 1.0 if place or rank == 2 else 400.0


OTHER_SIZE = Op(D, "broadcast", line=77, elements=99)
OTHER_LINE = Op(D, "broadcast", line=77)


def left_out(*kept: Op) -> Job:
    """Steps of three calls on three ranks that run; rank 2 makes only `kept` of one step, and goes on."""
    step = [Op(D, line=10), Op(D, line=20), Op(D, line=30, elements=64)]
    odd = [*step * 30, *kept, *step * 30]
    return job({D: [0, 1, 2]}, {0: step * 61, 1: step * 61, 2: odd}, processes=alive(0, 1, 2))


def test_a_shift_goes_before_the_sizes_that_differ_by_it() -> None:
    """Who left two calls out passes other sizes than the others ever since: that is what came of it, not the cause."""
    assert chosen(diagnose(left_out(Op(D, line=10)))) == ("calls_shifted", [2])


def test_a_lasting_mismatch_goes_before_its_first_time() -> None:
    """Of a size that differs in every step the first time is the least of it."""
    step = [Op(D, line=10), Op(D, line=20)]
    odd = [Op(D, line=10), Op(D, line=20, elements=99)]
    made = job({D: [0, 1, 2]}, {0: step * 30, 1: step * 30, 2: odd * 30}, processes=alive(0, 1, 2))
    assert chosen(diagnose(made)) == ("lasting_mismatch", [2])


def test_another_size_goes_before_another_line() -> None:
    """A broadcast of another size is wrong, wherever it was called; another line alone may be another root, or not."""
    assert chosen(diagnose(rounds(even, OTHER_SIZE, incomplete=[0]))) == ("calls_differ_silently", [1])


def test_a_wrong_result_goes_before_slow_work() -> None:
    """That one rank may broadcast from another root matters more than that another one is late."""
    assert chosen(diagnose(rounds(rank_2_is_late, OTHER_LINE))) == ("other_line_silently", [1])


def test_slow_work_goes_before_all_being_well() -> None:
    """The job runs on every rank, and one keeps the others waiting."""
    assert chosen(diagnose(rounds(rank_2_is_late))) == ("slow_work", [2])


def launched(odd: Op | None = None) -> Job:
    """The same rounds without durations: rank 2 launches everything 400 ms after the others, then all end at once."""
    made = rounds(even, odd, timing=False)
    columns = made.ops.columns
    columns["duration_ms"][:] = float("nan")
    columns["completed_ns"][:] = columns["created_ns"] + 410_000_000
    mine = made.ops.span(2)
    columns["created_ns"][mine] += 400_000_000
    return made


def test_a_wrong_result_goes_before_late_launches() -> None:
    """The same, where only launches tell who is late."""
    assert chosen(diagnose(launched(OTHER_LINE))) == ("other_line_silently", [1])


def test_late_launches_go_before_all_being_well() -> None:
    """The job runs on every rank, and one launches last again and again."""
    assert chosen(diagnose(launched())) == ("slow_launches", [2])


def test_a_slow_stage_goes_before_all_being_well() -> None:
    """A recorded pipeline whose first stage was made slow: all ranks make progress, and only that one never waits."""
    assert chosen(diagnose(load(CASES / "slow_first_stage"))) == ("slow_stage", [0])


# ---- last resorts ----------------------------------------------------------------------------------------------------

RAS = RasReport(
    "comm",
    4,
    tuple(RasRank(rank, "n", 100 + rank, {"AllReduce": 7 if rank == 2 else 8}, global_rank=rank) for rank in range(4)),
    Source("ras.txt"),
)


def test_a_line_of_failure_goes_before_what_was_not_collected() -> None:
    """One rank's line shows a wait for the others; another line, of nobody, says what failed."""
    facts = Facts(failures=(failure(FailureKind.OTHER),), watchdog=(timeout(0),))
    assert chosen(diagnose(job({D: range(4)}, {}, facts=facts))) == ("failure_of_nobody", [])


def test_what_was_not_collected_goes_before_an_odd_count_in_ras() -> None:
    """Three ranks are waited for and left nothing: that one of them launched less by RAS may be any moment's look."""
    found = diagnose(job({D: range(4)}, {}, facts=Facts(ras=(RAS,), watchdog=(timeout(0),))))
    assert chosen(found) == ("not_collected", [])


def test_gpus_that_are_all_in_nccl_go_before_an_odd_stack() -> None:
    """Every GPU is inside NCCL's kernel: nobody stays away, though rank 2's Python is at another line."""
    kernel = GpuKernel("ncclDevKernel_AllReduce", "ncclDevKernel_AllReduce")
    cores = tuple(GpuCore(rank, (kernel,), Source(f"rank_{rank}.json")) for rank in range(4))
    stacks = tuple(
        ThreadStack(rank, None, "main", (Frame("run", "/srv/train.py", 8 if rank == 2 else 9),), Source("s"), main=True)
        for rank in range(4)
    )
    made = job({}, {}, world=range(4), facts=Facts(gpu_cores=cores, stacks=stacks))
    assert chosen(diagnose(replace(made, reason="stall"))) == ("all_in_kernels", [])


def test_an_odd_count_in_ras_goes_before_an_odd_stack() -> None:
    """RAS counts what each rank launched; a stack at another line may be a role."""

    def stack(rank: int) -> ThreadStack:
        frame = Frame("step", "/workspace/train.py", 9 if rank == 1 else 7)
        return ThreadStack(rank, None, "main", (frame,), Source(f"stacks/{rank}.txt"), main=True)

    found = diagnose(job({}, {}, world=range(4), facts=Facts(ras=(RAS,), stacks=tuple(map(stack, range(4))))))
    assert chosen(found) == ("odd_in_ras", [2])


# ---- every edge is needed --------------------------------------------------------------------------------------------


def edges() -> Iterator[tuple[str, str, str]]:
    """(grounds, those that they go before, the test that needs it)."""
    for grounds in CAUSE_OF:
        for other, test in grounds.before.items():
            yield grounds.name, other, test


def without(name: str, other: str) -> Precedence:
    """The order of all grounds, but for one edge."""

    def kept(grounds: Grounds) -> Grounds:
        before = {after: test for after, test in grounds.before.items() if (grounds.name, after) != (name, other)}
        return replace(grounds, before=before)

    return Precedence(kept(grounds) for grounds in CAUSE_OF)


def holds(test: str) -> bool:
    try:
        globals()[test]()
    except AssertionError:
        return False
    return True


def test_wrong_results_go_before_steps_that_go_on() -> None:
    """`run` printed that ranks run calls together that do not belong together: steps go on then, with wrong results."""
    printed = (
        "hangscope: the verdict on /hangs/17/desync-1:\n"
        "hangscope: DESYNC since #207 rank 2 calls from a (t.py:3) what the others call   confidence: high\n"
        "hangscope:            X shifted\n"
    )
    steps = "".join(f"step {step} loss 2.1\n" for step in range(10, 60, 10))
    assert chosen(verdict_on(printed + steps)) == ("printed_while_running", [2])


def test_tracebacks_of_a_timeout_go_before_stacks_alone() -> None:
    """Rank 0 timed out at another line; stacks that were taken at some other moment show another odd rank."""
    file = 'File "/home/me/train.py", line'
    stacks = "".join(
        f"[rank{rank}]: Thread 0x0000{rank} (most recent call first):\n"
        f"[rank{rank}]:   {file} {77 if rank == 4 else 50} in main\n"
        f"[rank{rank}]:   {file} 90 in <module>\n[rank{rank}]: \n"
        for rank in range(5)
    )
    raised = "".join(
        f"[rank{rank}]: Traceback (most recent call last):\n[rank{rank}]:   {file} {19 if rank else 10}, in main\n"
        f"[rank{rank}]:     dist.all_reduce(t)\n"
        f'[rank{rank}]:   File "/usr/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2810, '
        f"in all_reduce\n[rank{rank}]:     work.wait()\n[rank{rank}]: RuntimeError: "
        "[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 60000ms for recv operation to complete\n"
        for rank in range(5)
    )
    assert chosen(verdict_on(stacks + raised)) == ("reported_lines_differ", [0])


def test_each_edge_has_a_test_of_its_own() -> None:
    """Every edge names a test of this file, and no test is named twice."""
    named = [test for _, _, test in edges()]
    assert named
    assert len(named) == len(set(named))
    for test in named:
        file, _, function = test.partition("::")
        assert file == Path(__file__).name
        assert callable(globals()[function])


@pytest.mark.parametrize(("name", "other", "test"), [*edges()], ids=lambda value: value.removeprefix("test_edges.py::"))
def test_without_an_edge_its_test_fails(name: str, other: str, test: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the edge another cause is chosen, or the one whose grounds happen to come first in the alphabet."""
    function = test.partition("::")[2]
    assert holds(function)
    monkeypatch.setattr("hangscope.diagnosis.PRECEDENCE", without(name, other))
    fails = not holds(function)
    monkeypatch.setattr(sys.modules["hangscope.diagnosis.weigh"], "_by_name", backwards)
    assert fails or not holds(function)


def backwards(name: str) -> list[int]:
    """The alphabet the other way round."""
    return [-ord(letter) for letter in name]


def test_roots_that_were_asked_go_before_another_line() -> None:
    """Which root each call was given says more than that the two were made from different lines."""
    calls = tuple(CallArguments(r, "broadcast", Source(f"stacks/rank_{r}.1.calls.json"), src=r) for r in range(2))
    ops = {r: [Op(D), Op(D, "broadcast", state="started", line=20 + r)] for r in range(2)}
    verdict = diagnose(replace(job({D: [0, 1]}, ops, facts=Facts(calls=calls)), reason="stall"))
    assert chosen(verdict)[0] == "roots_differ"
