"""The Perfetto trace, read back by the documented schema and held against the job; by Perfetto itself where it is."""

from __future__ import annotations

import gzip
import time
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from hangscope.diagnosis.verdict import Diagnosis
from hangscope.model import Facts, Job, Kind, Operations, State
from hangscope.report.op_times import op_times
from hangscope.report.page.render_page import render_page
from hangscope.report.perfetto import Trace, render_perfetto
from hangscope.report.protobuf import number, varint
from kits import perfetto_reader, sample_verdicts
from kits.big_jobs import big_job, its_verdict
from kits.recorded import job_of, verdict_of

CASES = Path(__file__).parents[1] / "cases"
NAMES = sorted(path.parent.name for path in CASES.glob("*/truth.json"))
VERDICT = "hangscope: the verdict"


@cache
def traced(name: str) -> tuple[Diagnosis, Job, Trace]:
    verdict, job = verdict_of(CASES / name), job_of(CASES / name)
    return verdict, job, render_perfetto(verdict, job)


def loaded(trace: Trace) -> perfetto_reader.Loaded:
    return perfetto_reader.load(gzip.decompress(trace.data))


@pytest.mark.parametrize("name", NAMES)
def test_every_operation_is_a_slice(name: str) -> None:
    """The trace of each case keeps the schema and has one slice for every operation with a time, ended where it has."""
    _, job, trace = traced(name)
    found = loaded(trace)
    slices = [item for item in found.slices if found.path(item.track) != [VERDICT]]
    timed = job.ops.column("created_ns") > 0
    assert len(slices) == trace.slices == int(timed.sum())
    state = job.ops.column("state")[timed]
    going = (state == State.SCHEDULED) | (state == State.STARTED)
    assert sum(item.end is None for item in slices) == int(going.sum())
    assert trace.left_out == 0


@pytest.mark.parametrize("name", ["mesh_absent", "healthy", "deadlock3", "link_stall8"])
def test_flows_join_the_parts_of_a_collective(name: str) -> None:
    """Arrows join exactly the recorded parts of each collective: one less than it has parts."""
    _, job, trace = traced(name)
    rows = op_times(job).alignment.collectives
    assert len(rows) == len(job.ops)
    keys = set(zip(job.ops.column("group").tolist(), job.ops.column("seq").tolist(), strict=True))
    assert trace.flows == loaded(trace).arrows == len(rows) - len(keys)


def test_flows_join_sends_with_their_receives() -> None:
    """In a pipeline every arrow between sends and receives joins one send with the receive on the other rank."""
    _, job, trace = traced("pipeline")
    found = loaded(trace)
    parts: dict[int, list[str]] = {}
    for item in found.slices:
        for flow in item.flows:
            parts.setdefault(flow, []).append(item.name)
    pairs = [sorted(names) for names in parts.values() if any("->" in name or "<-" in name for name in names)]
    assert pairs
    for received, sent in pairs:
        source, destination = sent.removeprefix("send ").split("->")
        assert received == f"recv {destination}<-{source}"
    kinds = job.ops.column("kind")
    assert len(pairs) <= min(int((kinds == Kind.SEND).sum()), int((kinds == Kind.RECV).sum()))


def test_nodes_are_processes_and_ranks_are_threads() -> None:
    """A slice lies on the track of its group, under its rank, under its node, with its arguments."""
    _, _, trace = traced("mesh_absent")
    found = loaded(trace)
    hung = [item for item in found.slices if item.name == "all_reduce #7" and item.end is None]
    assert sorted(found.path(item.track) for item in hung) == [
        ["gpu-worker-12", "rank 4", "mesh_tp (6)"],
        ["gpu-worker-12", "rank 5", "mesh_tp (6)"],
        ["gpu-worker-13", "rank 7", "mesh_tp (6)"],
    ]
    args = hung[0].args
    assert args["seq"] == 7
    assert args["size_bytes"] == 65_536
    assert args["state"] == "started"
    assert args["called at"] == "/workspace/train.py:59 in mesh_absent"


def test_the_verdict_is_in_the_trace() -> None:
    """A slice names the verdict from the moment of the hang on, and the culprit's track is marked there."""
    verdict, _, trace = traced("mesh_absent")
    found = loaded(trace)
    (said,) = (item for item in found.slices if found.path(item.track) == [VERDICT])
    assert said.name == f"HANG: {verdict.headline}"
    assert said.args["summary"] == verdict.summary
    hung = [item.begin for item in found.slices if item.name == "all_reduce #7" and item.end is None]
    assert said.begin == min(hung)
    (mark,) = found.instants
    assert found.path(mark.track) == ["gpu-worker-13", "rank 6"]
    assert mark.begin == said.begin


def test_slices_of_one_track_do_not_cross() -> None:
    """On each track slices follow or enclose each other, which is what Perfetto can draw."""
    for name in ("async_late", "pipeline", "coalesced"):
        found = loaded(traced(name)[2])
        by_track: dict[int, list[perfetto_reader.Slice]] = {}
        for item in found.slices:
            by_track.setdefault(item.track, []).append(item)
        for items in by_track.values():
            ended = [item for item in items if item.end is not None]
            for before, after in pairwise(ended):
                assert before.end is not None
                assert before.end <= after.begin


@pytest.mark.parametrize("name", sample_verdicts.BY_NAME)
def test_a_job_without_dumps_has_a_trace_with_the_verdict_alone(name: str) -> None:
    """Where no dump was read the trace still opens, and says the verdict."""
    verdict = sample_verdicts.BY_NAME[name]()
    job = Job(Operations.empty(), (), (0, 1, 2, 3), {}, {}, {}, {}, Facts(), ())
    found = loaded(render_perfetto(verdict, job))
    assert len(found.slices) == 1


def test_a_large_trace_is_cut_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit the last operations of every rank are kept, and the verdict's slice says how many are not."""
    monkeypatch.setattr("hangscope.report.perfetto._MOST", 160)
    job = big_job(16, 20, culprit=5)
    trace = render_perfetto(its_verdict(job, 20, culprit=5), job)
    assert trace.slices == 160
    assert trace.left_out == len(job.ops) - 160
    found = loaded(trace)
    (said,) = (item for item in found.slices if found.path(item.track) == [VERDICT])
    assert f"{trace.left_out:,} older operations" in said.args["left out"]
    assert {item.name for item in found.slices if item.end is None} >= {"all_reduce #20"}


def test_page_and_trace_of_1024_ranks_take_seconds() -> None:
    """1,024 ranks with 400 operations each: page and trace together need less than ten seconds of a processor."""
    job = big_job(1024, 200, culprit=700)
    verdict = its_verdict(job, 200, culprit=700)
    began = time.process_time()
    times = op_times(job)
    page = render_page(verdict, job, times)
    trace = render_perfetto(verdict, job, times)
    assert time.process_time() - began < 10
    assert len(page) < 2_000_000
    assert trace.slices == len(job.ops)


def test_numbers_are_written_as_protobuf_has_them() -> None:
    """The encoder agrees with the examples of the protobuf documentation: 150 in field 1 is 08 96 01."""
    assert number(1, 150) == bytes.fromhex("089601")
    assert varint(1) == b"\x01"
    assert varint(300) == bytes.fromhex("ac02")


def test_perfettos_own_trace_processor_agrees(tmp_path: Path) -> None:
    """Perfetto's trace processor loads the file without an error and counts the same slices and flows."""
    api = pytest.importorskip("perfetto.trace_processor", reason="the perfetto package is not installed")
    _, _, trace = traced("mesh_absent")
    file = tmp_path / "hang.perfetto-trace"
    file.write_bytes(trace.data)
    try:
        processor = api.TraceProcessor(trace=str(file))
    except Exception as error:  # it downloads its binary, or fails in a way of its own
        pytest.skip(f"the trace processor cannot be had here: {type(error).__name__}")
    with processor:
        assert next(iter(processor.query("select count(*) as n from slice"))).n == trace.slices + 2
        assert next(iter(processor.query("select count(*) as n from flow"))).n == trace.flows
        errors = "select sum(value) as n from stats where severity = 'error'"
        assert next(iter(processor.query(errors))).n == 0


def test_clocks_are_those_of_the_day() -> None:
    """The trace tells what its own clock is in the time of day."""
    _, job, trace = traced("healthy")
    packets = perfetto_reader.decode(gzip.decompress(trace.data))["packet"]
    clocks = {c["clock_id"][0]: c["timestamp"][0] for c in packets[0]["clock_snapshot"][0]["clocks"]}
    first = int(job.ops.column("created_ns").min())
    assert abs(clocks[1] - clocks[6] - first) < 2_000_000_000
    assert np.isin(list(clocks), [1, 6]).all()
