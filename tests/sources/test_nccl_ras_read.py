"""Answers of NCCL's RAS: JSON, NCCL 2.28's broken JSON, and the text form of older versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hangscope.diagnosis import Diagnosis, diagnose
from hangscope.reader.load import load
from hangscope.sources.nccl_ras import read as ras_answers

CASES = Path(__file__).parents[1] / "cases"
WITH_RAS = sorted(path.parent.name for path in CASES.glob("*/ras.json"))


@pytest.mark.parametrize("case", WITH_RAS)
def test_recorded_json_answers_are_read(case: str) -> None:
    """Every recorded answer is recognised and read whole, also where NCCL left a comma out."""
    data = (CASES / case / "ras.json").read_bytes()
    assert ras_answers.recognise(data)
    answer = ras_answers.read(data, "ras.json")
    assert answer.gaps == ()
    assert answer.nccl_version == "2.28.9"
    for report in answer.reports:
        assert report.comm_id.startswith("0x")
        assert sorted(row.rank for row in report.ranks) == list(range(report.size))


def test_killed_rank_is_missing_and_its_peers_report_an_error() -> None:
    """The recorded answer after a kill: rank 3 did not answer, ranks 0 and 2 have a remote error."""
    (report,) = ras_answers.read((CASES / "sigkill/ras.json").read_bytes(), "ras.json").reports
    rows = {row.rank: row for row in report.ranks}
    assert (rows[3].missing, rows[3].unresponsive, rows[3].dead, rows[3].pid) == (True, True, False, 751)
    assert [rows[r].async_error for r in range(3)] == [6, 0, 6]
    assert rows[0].counts["AllReduce"] == 7


@pytest.mark.parametrize("case", [c for c in WITH_RAS if (CASES / c / "ras.txt").exists()])
def test_text_says_nothing_that_json_contradicts(case: str) -> None:
    """What the text form lists agrees with the JSON taken of the same job: same hash, pids, missing ranks."""
    data = (CASES / case / "ras.txt").read_bytes()
    assert ras_answers.recognise(data)
    by_id = {r.comm_id: r for r in ras_answers.read((CASES / case / "ras.json").read_bytes(), "j").reports}
    for report in ras_answers.read(data, "t").reports:
        assert report.size == by_id[report.comm_id].size
        pids = {row.rank: row.pid for row in by_id[report.comm_id].ranks}
        assert all(row.pid in (None, pids[row.rank]) for row in report.ranks)
        counts = {row.rank: row.counts for row in by_id[report.comm_id].ranks}
        assert all(row.counts.items() <= counts[row.rank].items() for row in report.ranks)


def test_text_gives_the_count_of_ranks_it_does_not_list() -> None:
    """ "3 ranks have launched up to operation 7" is said of everybody but the rank that is listed."""
    (report,) = ras_answers.read((CASES / "cpu_stall/ras.txt").read_bytes(), "ras.txt").reports
    ahead, behind = {"Broadcast": 4, "AllGather": 7, "AllReduce": 7}, {"Broadcast": 3, "AllGather": 6, "AllReduce": 6}
    assert {row.rank: row.counts for row in report.ranks} == {0: ahead, 1: ahead, 2: behind, 3: ahead}


LARGE = """\
NCCL version 2.26.2 compiled with CUDA 12.2
CUDA runtime version 12020, driver version 12020

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4         8        32        31   RUNNING  INCOMPLETE,MISMATCH

Errors
======

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 3487990 on node 172.16.64.213 managing GPU 3

#0-0 (27a079b828ff1a75) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 19 -- GPU 3 managed by process 3487990 on node 172.16.64.213

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different status
  30 ranks have status RUNNING
  Rank 7 has status ABORT -- GPU 7 managed by process 999 on node 172.16.64.211
  Communicator ranks have different AllReduce operation counts
  29 ranks have launched up to operation 6650
  2 ranks have launched up to operation 6649
  Rank 20 -- GPU 4 managed by process 3487983 on node 172.16.64.213
  Rank 21 -- GPU 5 managed by process 3487984 on node 172.16.64.213
"""


def test_text_of_a_larger_job_gives_the_dead_and_the_laggards() -> None:
    """A dead process, an aborting rank and two ranks that are behind are told apart."""
    assert ras_answers.recognise(LARGE.encode())
    answer = ras_answers.read(LARGE.encode(), "ras.txt")
    assert answer.nccl_version == "2.26.2"
    (report,) = answer.reports
    rows = {row.rank: row for row in report.ranks}
    assert (report.comm_id, report.size) == ("0x27a079b828ff1a75", 32)
    assert (rows[19].dead, rows[19].missing, rows[19].host) == (True, True, "172.16.64.213")
    assert rows[7].aborting
    assert {r for r, row in rows.items() if row.counts.get("AllReduce") == 6649} == {20, 21}


def test_answer_that_was_cut_short_is_a_gap() -> None:
    """Half an answer is no answer, and is reported as such."""
    data = (CASES / "sigkill/ras.json").read_bytes()
    answer = ras_answers.read(data[: len(data) // 2], "ras.json")
    assert answer.reports == ()
    assert [gap.what for gap in answer.gaps] == ["NCCL RAS answer"]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
        max_leaves=20,
    )
)
def test_repair_leaves_good_json_alone(value: object) -> None:
    """Valid JSON means the same before and after the repair, whatever its strings hold."""
    for text in (json.dumps(value), json.dumps(value, indent=2, ensure_ascii=False)):
        assert json.loads(ras_answers.repair(text)) == value


@given(st.dictionaries(st.text(max_size=6), st.integers() | st.text(max_size=6), min_size=2, max_size=5))
def test_repair_puts_back_a_lost_comma(value: dict[str, object]) -> None:
    """Any one comma between two members of an object can be missing."""
    text = json.dumps(value, indent=1)
    broken = text.replace(",\n", "\n", 1)
    if broken != text:
        assert json.loads(ras_answers.repair(broken)) == value


def test_recorder_dump_in_json_is_not_an_answer() -> None:
    """A flight recorder's JSON, which also knows an nccl_version, is left to the dump reader."""
    assert not ras_answers.recognise((CASES / "healthy/gpu-worker-6/nccl_trace_rank_0.json").read_bytes()[:65536])
    assert not ras_answers.recognise(b'{"nccl_version": "2.26.2", "pg_config": {}, "entries": []}')


def test_loaded_answers_have_ranks_of_the_job() -> None:
    """Members of pair communicators are told by their rank in the job, and JSON is preferred to text."""
    job = load([CASES / "multi_pg"])
    pairs = [r for r in job.facts.ras if r.size == 2]
    assert pairs
    pids = {process.pid: rank for rank, process in job.processes.items()}
    for report in job.facts.ras:
        assert report.source.file.endswith("ras.json")
        assert all(row.global_rank == pids[row.pid] for row in report.ranks)


def test_answer_of_another_job_on_the_node_is_left_out(tmp_path: Path) -> None:
    """All jobs of a user share RAS's port: an answer that knows none of our processes is not ours."""
    for path in (CASES / "sigkill8").rglob("*"):
        if path.is_file() and path.parent.name != "stacks" and not path.name.startswith("ras."):
            (tmp_path / path.parent.name).mkdir(exist_ok=True)
            (tmp_path / path.parent.name / path.name).write_bytes(path.read_bytes())
    (tmp_path / "ras.json").write_bytes((CASES / "sigkill/ras.json").read_bytes())
    job = load([tmp_path])
    assert job.facts.ras == ()
    assert job.ranks == tuple(range(8))
    assert [gap.why for gap in job.gaps if gap.what == "NCCL RAS answer"] == [
        "it is about another job on the same node"
    ]


def test_answer_alone_makes_a_job(tmp_path: Path) -> None:
    """With nothing but an answer of RAS, its largest communicator's ranks are the job's."""
    (tmp_path / "answer").write_bytes((CASES / "sigkill/ras.json").read_bytes())
    job = load([tmp_path])
    assert job.ranks == (0, 1, 2, 3)
    assert job.nodes == {}
    assert job.processes[3].pid == 751


def alone(case: str, form: str) -> Diagnosis:
    return diagnose(load([CASES / case / f"ras.{form}"]))


@pytest.mark.parametrize("form", ["json", "txt"])
@pytest.mark.parametrize(
    ("case", "rank", "says"),
    [
        ("cpu_stall", 2, "AllReduce 6 times, not 7"),
        ("ddp_skip", 7, "17 times, not 15"),
        ("sigkill8", 5, "did not answer"),
    ],
)
def test_an_answer_alone_names_who_stands_out(case: str, rank: int, says: str, form: str) -> None:
    """A rank that RAS did not reach, or that launched more or less than the rest, is a suspicion and no more."""
    verdict = alone(case, form)
    assert [culprit.rank for culprit in verdict.culprits] == [rank]
    assert (verdict.kind, verdict.confidence) == ("unknown", "low")
    assert says in verdict.headline


@pytest.mark.parametrize("form", ["json", "txt"])
@pytest.mark.parametrize("case", WITH_RAS)
def test_an_answer_alone_is_never_sure(case: str, form: str) -> None:
    """One look shows counts that differ in healthy jobs as well, and in groups whose members only wait for others."""
    verdict = alone(case, form)
    assert verdict.confidence == "low"
    truth = json.loads((CASES / case / "truth.json").read_text())
    groups_within = {"odd_broadcast"}  # half of the job is behind, the culprit among them
    suspected = {culprit.rank for culprit in verdict.culprits}
    allowed = {rank for each in [truth["culprits"], *truth.get("accept", [])] for rank in each}
    assert suspected <= allowed or case in groups_within


def test_a_log_and_an_answer_in_one_file_are_both_read(tmp_path: Path) -> None:
    """People paste what ncclras printed above or below the log."""
    logs = b"".join(path.read_bytes() for path in sorted((CASES / "skipped").rglob("rank_*.log")))
    answer = (CASES / "skipped/ras.txt").read_bytes()
    for number, text in enumerate((answer + logs, logs + answer)):
        file = tmp_path / f"{number}.txt"
        file.write_bytes(text)
        job = load([file])
        assert len(job.facts.ras) == 1
        assert {report.rank for report in job.facts.watchdog} == {0, 1, 2, 3}
