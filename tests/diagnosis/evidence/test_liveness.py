"""What became of a process: an end or a silence that is an effect accuses nobody."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.align.op_index import Index
from hangscope.diagnosis.evidence.liveness import Is, Liveness
from hangscope.diagnosis.evidence.wrongly_completed import corrected
from hangscope.model import Facts, Frame, Process, PythonError, Source, State, ThreadStack, WatchdogReport
from hangscope.reader.join.assemble import Assembled
from kits.small_dumps import as_job, entry, job, read, top
from kits.small_jobs import Builder, Op

HERE = Source("rank.log", "line 1")
GAVE_UP = "Timed out waiting 8000ms for recv operation to complete"


def error(rank: int, *, consequence: bool) -> PythonError:
    text = GAVE_UP if consequence else "bad batch"
    return PythonError(rank, "RuntimeError", text, (), HERE, consequence=consequence)


def stack(rank: int, *, outside: bool) -> ThreadStack:
    return ThreadStack(rank, None, "MainThread", (Frame("f", "/w/train.py", 5),), HERE, main=True, outside=outside)


def waiting(processes: dict[int, Process], facts: Facts) -> Builder:
    """Four ranks, of which the last left no dump, and the others wait for it."""
    ranks = {rank: [Op("all"), Op("all", state="started")] for rank in range(3)}
    return Builder({"all": range(4)}, ranks, processes=processes, facts=facts)


# ---- ends ------------------------------------------------------------------------------------------------------------


def test_first_to_give_up_is_no_cause() -> None:
    """A process whose only exception says that it waited in vain is a victim, even if it ended long before the rest."""
    processes = {rank: Process(rank, exit_status=1, ended_at_s=100.0 + 5 * rank) for rank in range(3)}
    processes[3] = Process(3, alive_at_end=True)
    facts = Facts(errors=tuple(error(rank, consequence=True) for rank in range(3)))
    verdict = diagnose(waiting(processes, facts).build())
    assert [culprit.rank for culprit in verdict.culprits] == [3]
    assert verdict.kind == "frozen"


def test_own_exception_is_a_cause_beside_those_who_gave_up() -> None:
    """The one that raised something of its own ended by itself."""
    processes = {rank: Process(rank, exit_status=1, ended_at_s=100.0) for rank in range(4)}
    facts = Facts(errors=tuple(error(rank, consequence=rank != 3) for rank in range(4)))
    lives = Liveness(waiting(processes, facts).build())
    assert [lives.of(rank).state is Is.ENDED for rank in range(4)] == [False, False, False, True]


@pytest.mark.parametrize(("message", "own"), [("bad batch", True), ("skipped a batch", False)])
def test_who_raised_the_same_ended_of_it_too(message: str, own: bool) -> None:
    """The launcher's SIGTERM was quicker than the end of a rank that had raised what ended another; a rank that printed
    something else was taken down."""
    processes = {rank: Process(rank, exit_status=None, alive_at_end=True) for rank in (0, 1)}
    processes[2] = Process(2, exit_status=-15, ended_at_s=101.0, state="gone")
    processes[3] = Process(3, exit_status=1, ended_at_s=100.0, state="gone")
    facts = Facts(errors=(error(3, consequence=False), replace(error(2, consequence=False), message=message)))
    lives = Liveness(waiting(processes, facts).build())
    assert (lives.of(2).state is Is.ENDED) is own


def test_abort_is_a_cause_where_the_others_only_gave_up() -> None:
    """SIGABRT is mostly an effect, but not of processes that ended later because they lost a peer."""
    processes = {rank: Process(rank, exit_status=1, ended_at_s=110.0) for rank in range(3)}
    processes[3] = Process(3, exit_status=-6, ended_at_s=100.0)
    facts = Facts(errors=tuple(error(rank, consequence=True) for rank in range(3)))
    lives = Liveness(waiting(processes, facts).build())
    assert (lives.of(3).state, lives.of(3).seen) == (Is.ENDED, True)


# ---- silence ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("outside", "kind"), [(False, "alive"), (True, "frozen")])
def test_stack_that_a_process_gave_itself_rules_frozen_out(outside: bool, kind: str) -> None:
    """py-spy reads a stopped process just as well; a signal handler or a worker server answers only if it runs."""
    processes = {3: Process(3, alive_at_end=True)}
    built = waiting(processes, Facts(stacks=(stack(3, outside=outside),))).build()
    assert Liveness(built).of(3).state.value == kind


def test_stopped_process_is_frozen_whatever_stack_was_read_from_outside() -> None:
    """The kernel's word counts."""
    processes = {3: Process(3, alive_at_end=True, state="T")}
    built = waiting(processes, Facts(stacks=(stack(3, outside=True),))).build()
    assert Liveness(built).of(3).state is Is.FROZEN


def test_stack_of_a_crash_is_no_sign_of_life() -> None:
    """faulthandler prints one as well when it ends."""
    crash = PythonError(3, "Fatal Python error", "Segmentation fault", (), HERE)
    facts = Facts(errors=(crash,), stacks=(stack(3, outside=False),))
    assert Liveness(waiting({}, facts).build()).of(3).state is Is.ENDED


# ---- what Gloo gave up on --------------------------------------------------------------------------------------------

LAUNCH = [("all_reduce", "/t/distributed_c10d.py", 3245), ("step", "/w/train.py", 20)]
RAISED = (Frame("all_reduce", "/t/distributed_c10d.py", 3252), Frame("step", "/w/train.py", 20))
CONFIG = {"": {"name": "", "desc": "", "ranks": "[]"}}


def gloo(record: int, seq: int, group: tuple[str, str] = ("0", "default_pg"), line: int = 20) -> dict[str, object]:
    made = entry(record, seq, "gloo:all_reduce", state="scheduled", retired=True)
    frames = [{"name": n, "filename": f, "line": line if f.startswith("/w/") else at} for n, f, at in LAUNCH]
    made.update(time_discovered_started_ns=None, time_discovered_completed_ns=None, frames=frames)
    made.update(process_group=group, pg_id=0 if group[0] == "0" else 1)
    return made


def report(rank: int, frames: tuple[Frame, ...] = RAISED) -> WatchdogReport:
    return WatchdogReport(rank, "timeout", HERE, operation="all_reduce", error=GAVE_UP, frames=frames)


def reopened(assembled: Assembled, *reports: WatchdogReport) -> list[int]:
    """The rows that are unfinished again, by what ranks logged."""
    found = as_job(assembled, facts=Facts(watchdog=reports))
    ops = corrected(found, Index(found.ops)).ops
    return [row for row, operation in enumerate(ops) if operation.state is not State.COMPLETED]


def test_operation_that_raised_is_unfinished_again() -> None:
    """The newest entry from the traceback's lines; its torch frame is a few lines further down, where it waits."""
    assembled = job(*(read(top([gloo(0, 1), gloo(1, 2)], CONFIG), rank) for rank in (0, 1)), expected_ranks=range(3))
    found = as_job(assembled, facts=Facts(watchdog=(report(0), report(1))))
    ops = corrected(found, Index(found.ops)).ops
    assert [op.state for op in ops] == [State.COMPLETED, State.SCHEDULED] * 2
    assert not ops[1].retired
    assert [op.state for op in assembled.ops] == [State.COMPLETED] * 4  # the evidence itself is left alone


def test_operation_that_a_peer_went_past_stays_finished() -> None:
    """Its dump is older than the exception: a peer has launched the next one."""
    dumps = [read(top([gloo(0, 1), gloo(1, 2)][: 1 + rank], CONFIG), rank) for rank in (0, 1)]
    assembled = job(*dumps)
    assert reopened(assembled, report(0)) == []


def test_wait_of_its_own_belongs_to_the_newest_that_somebody_did_not_join() -> None:
    """``work.wait()`` stands elsewhere than the launch. What everybody joined is left alone."""
    waited = (Frame("step", "/w/train.py", 31),)
    dumps = [read(top([gloo(0, 1)], CONFIG), rank) for rank in (0, 1)]
    joined, missing = job(*dumps), job(*dumps, expected_ranks=range(3))
    assert reopened(joined, report(0, waited)) == []
    assert reopened(missing, report(0, waited)) == [0]


def test_send_that_raised_reopens_nothing() -> None:
    """Gloo records no sends, so the newest entry is none."""
    sent = (Frame("send", "/t/distributed_c10d.py", 2753), *RAISED[1:])
    assembled = job(read(top([gloo(0, 1)], CONFIG), 0), expected_ranks=range(2))
    assert reopened(assembled, report(0, sent)) == []


# ---- who belongs to Gloo's groups ------------------------------------------------------------------------------------


def test_rank_without_a_dump_completes_a_group_of_a_mesh() -> None:
    """Siblings are copies of each other: with 0, 1 and 4, 5 whole, the one of 2 has 3, which left no dump."""
    pairs = {0: "1", 1: "1", 2: "2", 4: "3", 5: "3"}
    dumps = [read(top([gloo(0, 1, (name, "tp"))], CONFIG), rank) for rank, name in pairs.items()]
    groups = job(*dumps, expected_ranks=range(6)).groups
    assert [(group.members, group.open) for group in groups] == [((0, 1), ()), ((2, 3), ()), ((4, 5), ())]


def test_rank_without_a_dump_may_belong_to_a_group_of_no_known_shape() -> None:
    """A single group says nothing about its shape: the silent rank is no member, but not ruled out either."""
    dumps = [read(top([gloo(0, 1, ("1", "teachers"))], CONFIG), rank) for rank in (0, 2)]
    (found,) = job(*dumps, expected_ranks=range(4)).groups
    assert (found.members, found.open) == ((0, 2), (1, 3))


def test_victim_without_a_record_is_no_root() -> None:
    """A rank that gave up in a receive, which Gloo does not record, waited for somebody: it is not the absent one."""
    built = Builder(
        {"all": range(4)},
        {0: [Op("all")], **{rank: [Op("all"), Op("all", state="scheduled")] for rank in (1, 2)}},
        timing=False,
        facts=Facts(watchdog=(replace(report(0), operation="recv"),)),
    ).build()
    on_gloo = {rank: tuple(replace(dump, backend="gloo") for dump in dumps) for rank, dumps in built.dumps.items()}
    verdict = diagnose(replace(built, dumps=on_gloo))
    assert 0 not in [culprit.rank for culprit in verdict.culprits]


@pytest.mark.parametrize(("file", "accused"), [("/t/distributed_c10d.py", [3]), ("/w/train.py", [2, 3])])
def test_rank_whose_stack_ends_in_a_call_is_no_root(file: str, accused: list[int]) -> None:
    """Gloo's calls block: without a dump, a rank's last own sample tells whether it waits or is away."""
    samples = tuple(
        replace(stack(rank, outside=False), frames=(Frame("send", where, 2753),), sample=sample)
        for rank, where in ((2, file), (3, "/w/train.py"))
        for sample in (2, 1, 2)
    )
    built = Builder(
        {"all": range(16)},
        {rank: [Op("all"), Op("all", state="scheduled")] for rank in range(16) if rank not in (2, 3)},
        timing=False,
        facts=Facts(stacks=samples),
    ).build()
    on_gloo = {rank: tuple(replace(dump, backend="gloo") for dump in dumps) for rank, dumps in built.dumps.items()}
    verdict = diagnose(replace(built, dumps=on_gloo))
    assert [culprit.rank for culprit in verdict.culprits] == accused
