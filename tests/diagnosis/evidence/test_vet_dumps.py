"""Which dumps speak of this hang: vetted and compared before anything is judged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hangscope.diagnosis import diagnose
from hangscope.diagnosis.evidence.answer import no, not_known, yes
from hangscope.diagnosis.evidence.vet_dumps import vet_dumps
from hangscope.model import Facts, Job, Source, WatchdogReport
from hangscope.reader.dumps import dump_file
from kits.small_dumps import T0, as_job, entry, group, job, read, top

SECOND = 10**9


def attempt(
    rank: int, start_s: float, seqs: range, state: str = "completed", of: int | None = None
) -> dump_file.RawDump:
    """A recording of one all_reduce a second, the last one in `state`; the one of rank `of` under another name."""
    entries = []
    for seq in seqs:
        at = T0 + int((start_s + seq) * SECOND) + 1000 * (rank if of is None else of)
        made = entry(seq - 1, seq, time_created_ns=at, state=state if seq == seqs[-1] else "completed")
        done = made["state"] == "completed"
        made.update(time_discovered_started_ns=at, time_discovered_completed_ns=at + SECOND // 10 if done else None)
        made.update(retired=done)
        entries.append(made)
    return read(top(entries, group("0", "default_pg", 0, 1, 2, 3)), rank)


def folder(*raws: dump_file.RawDump, **more: object) -> Job:
    return as_job(job(*raws), **more)


def test_dump_of_an_older_attempt_is_set_aside() -> None:
    """The same collectives ended an hour earlier, in another rhythm: a gap, not a rank far behind."""
    old = attempt(2, 0, range(1, 40))
    old.columns["completed_ns"][:] += [(7 * n % 11) * SECOND for n in range(39)]
    vetted = vet_dumps(folder(attempt(0, 3600, range(1, 90)), attempt(1, 3600, range(1, 90)), old))
    assert set(vetted.job.dumps) == {0, 1}
    assert [gap.rank for gap in vetted.gaps] == [2]


def test_dump_that_ends_long_before_the_others_begin_is_set_aside() -> None:
    """Nothing is shared that could be compared: the times say so, and the numbers do not lead up to the others."""
    vetted = vet_dumps(
        folder(attempt(0, 3600, range(60, 90)), attempt(1, 3600, range(60, 90)), attempt(2, 0, range(1, 40)))
    )
    assert set(vetted.job.dumps) == {0, 1}


def test_rank_that_stopped_first_is_kept() -> None:
    """A rank that hung while the others went on to the next operation, after minutes, belongs to the same attempt."""
    waiting = [attempt(rank, 600, range(40, 41), state="started") for rank in (0, 1)]
    assert set(vet_dumps(folder(attempt(2, 0, range(30, 40)), *waiting)).job.dumps) == {0, 1, 2}


def test_rank_that_had_little_to_do_is_kept() -> None:
    """A rank whose few operations are long gone from the others' wrapped rings may well be of the same attempt."""
    busy = [
        read(top([entry(9000 + n, 8000 + n, process_group=("1", "tp"), pg_id=1) for n in range(5)]), rank)
        for rank in (0, 1)
    ]
    for raw in busy:
        raw.columns["created_ns"][:] += 3600 * SECOND
    assert set(vet_dumps(folder(attempt(2, 0, range(1, 3)), *busy)).job.dumps) == {0, 1, 2}


def test_node_whose_clock_is_off_is_kept() -> None:
    """Both ranks of a node are five hours off by the same time: a fact about its clock, and not about their dumps."""
    raws = [attempt(rank, 18000 if rank < 2 else 0, range(1, 60)) for rank in range(4)]
    vetted = vet_dumps(folder(*raws, nodes={0: "a", 1: "a", 2: "b", 3: "b"}))
    assert set(vetted.job.dumps) == {0, 1, 2, 3}
    assert not vetted.disputed
    assert set(vetted.clocks_off_s) in ({"a"}, {"b"})


def test_rank_that_is_off_alone_on_its_node_is_of_another_attempt() -> None:
    """Its neighbour shares its clock and agrees with the rest, so it is not the clock."""
    raws = [attempt(rank, 0 if rank else -700, range(1, 60)) for rank in range(4)]
    vetted = vet_dumps(folder(*raws, nodes={0: "a", 1: "a", 2: "b", 3: "b"}))
    assert set(vetted.job.dumps) == {1, 2, 3}


def test_rank_that_is_off_where_nobody_can_say_why_is_disputed() -> None:
    """One rank a node: a clock or an older attempt. What it has counts, what it lacks says nothing."""
    raws = [attempt(rank, 0 if rank else -700, range(1, 60)) for rank in range(4)]
    vetted = vet_dumps(folder(*raws))
    assert set(vetted.job.dumps) == {0, 1, 2, 3}
    assert vetted.disputed == {0}


def test_one_rank_does_not_outvote_several() -> None:
    """A rank that alone completed a hundred more collectives that need everybody is of another attempt."""
    raws = [attempt(rank, 0, range(1, 160 if rank == 3 else 60)) for rank in range(4)]
    for raw in raws:
        raw.columns["completed_ns"][:] = -1
    assert set(vet_dumps(folder(*raws)).job.dumps) == {0, 1, 2}


def test_dump_older_than_its_ranks_own_log_is_set_aside() -> None:
    """A job that hangs launches nothing more: what the log says timed out would be in a dump of this hang."""
    report = WatchdogReport(0, "timeout", Source("rank_0.log"), group_name="0", seq=300, operation="all_reduce")
    raws = [attempt(rank, 0, range(1, 60)) for rank in range(4)]
    vetted = vet_dumps(folder(*raws, facts=Facts(watchdog=(report,))))
    assert set(vetted.job.dumps) == {1, 2, 3}


def test_number_of_a_group_is_not_the_name_that_a_log_gives_it() -> None:
    """torch 2.3's dumps count each process's own groups, its log counts all: a 2 in both is seldom one group."""
    report = WatchdogReport(0, "timeout", Source("rank_0.log"), group_name="2", seq=300, operation="all_reduce")
    found = folder(*[attempt(rank, 0, range(1, 60)) for rank in range(4)], facts=Facts(watchdog=(report,)))
    for numbered, kept in ((False, {1, 2, 3}), (True, {0, 1, 2, 3})):
        groups = tuple(replace(g, name="2", numbered=numbered) for g in found.groups)
        assert set(vet_dumps(replace(found, groups=groups)).job.dumps) == kept


def test_job_whose_dumps_say_no_time_is_not_called_hung() -> None:
    """Everybody is inside a collective, and nothing says since when: a healthy job looks the same."""
    raws = [attempt(rank, 0, range(1, 60), state="started") for rank in range(4)]
    for raw in raws:
        raw.columns["started_ns"][:] = raw.columns["completed_ns"][:] = -1
    verdict = diagnose(folder(*raws))
    assert (verdict.outcome, verdict.confidence, verdict.culprits) == ("unknown", "low", ())


def test_dump_without_times_among_others_with_times_is_disputed() -> None:
    """Nothing says that it is of this attempt, so that it cannot show that all is well."""
    raws = [attempt(rank, 0, range(1, 60)) for rank in range(4)]
    for column in ("created_ns", "started_ns", "completed_ns"):
        raws[0].columns[column][:] = -1
    found = folder(*raws)
    assert vet_dumps(found).disputed == {0}
    assert diagnose(found).confidence != "high"


def test_copied_dump_accuses_nobody_surely() -> None:
    """The culprit's file under a second name: one of the two ranks it is, nobody knows which."""
    raws = [attempt(rank, 0, range(1, 61), state="started") for rank in (0, 1)]
    raws += [attempt(rank, 0, range(1, 60), of=2) for rank in (2, 3)]
    found = folder(*raws)
    assert vet_dumps(found).copied == {2, 3}
    assert diagnose(found).confidence != "high"


def test_evidence_is_left_as_it_was() -> None:
    """Setting dumps aside makes a new job; the one that was given stays."""
    given = folder(attempt(0, 3600, range(60, 90)), attempt(1, 3600, range(60, 90)), attempt(2, 0, range(1, 40)))
    before = replace(given)
    vet_dumps(given)
    assert set(given.dumps) == set(before.dumps) == {0, 1, 2}
    assert len(given.ops) == len(before.ops)


@pytest.mark.parametrize("answer", [yes(), no(), not_known("the dump is cut")])
def test_answer_has_no_truth_value(answer: object) -> None:
    """`if answer:` is an error: whoever asks has to say what becomes of "not known"."""
    with pytest.raises(TypeError, match="not known"):
        bool(answer)
