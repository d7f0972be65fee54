"""One simulated job, written in every format version, reads back to the same job as far as the format can say it."""

from __future__ import annotations

import gzip
import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from hangscope.model import Frame, Kind, Operation, State
from hangscope.reader.dumps import dump_file
from hangscope.reader.join.assemble import Assembled, assemble
from hangscope.simulate import Simulated, Spec, simulate
from hangscope.simulate.files.dump_contents import recorded_name, recorded_sizes
from hangscope.simulate.files.dump_files import file_name
from hangscope.simulate.record.recorded_rows import CLOSING, INNER
from hangscope.simulate.record.ring_contents import UNSET

PICKLED = ("2.2", "2.3", "2.4", "2.5", "2.6", "2.7", "2.8", "2.9", "2.10", "2.11", "2.12", "2.13", "2.14", "2.15")
JOBS: dict[str, Spec] = {
    "mixed": Spec(ranks=16, tp=2, pp=4, ep=2, fault="absent", variant="branch", entries=90, seed=3),
    "batches": Spec(
        ranks=8, dp=4, pp=2, data_parallel="coalesced", fault="absent", variant="batch", entries=60, seed=1
    ),
    "whole history": Spec(ranks=8, tp=4, fault="gpu", entries=2000, steps=3, seed=2),
    "plain transfers": Spec(ranks=8, pp=4, plain_p2p=True, fault="network", variant="p2p", entries=70, seed=5),
    "healthy": Spec(ranks=8, tp=2, fault="none", variant="stopped", entries=60, seed=4),
}


@cache
def job_of(name: str, torch: str, form: str = "pickle", **more: Any) -> Simulated:
    return simulate(replace(JOBS[name], torch=torch, form=form, clock_skew_ms=7, **more))


def read(job: Simulated) -> Assembled:
    raws = []
    for rank in job.dump_ranks:
        data = job.dump(rank)
        assert data is not None
        data = gzip.decompress(data) if job.spec.gzip else data
        raws.append(dump_file.read(data, file=f"{job.spec.node(rank)}/{file_name(job.spec, rank)}"))
        assert raws[-1].complete
        assert not raws[-1].problems
    return assemble(raws)


def expected(job: Simulated, rank: int) -> list[dict[str, Any]]:
    """What the rank recorded, in the model's words: batches closed, ranks global, nothing of any file format."""
    contents = job.contents(rank)
    assert contents is not None
    held, groups, spec = contents.ring, job._run.job.groups, job.spec
    closed: dict[tuple[int, int, int], int] = {}
    rows = []
    for row in range(len(held)):
        call = held.calls[held.call[row]]
        group = groups.all[groups.of[rank][call.role]]
        key = (call.role, int(held.seq[row]), int(held.p2p_seq[row]))
        if call.kind == CLOSING:
            closed[key] = int(held.state[row])
        kind = {"send": Kind.SEND, "recv": Kind.RECV}.get(call.site.direction, Kind.COLLECTIVE)
        source = destination = None
        if call.p2p:
            mine, peer = group.members.index(rank), int(call.label.split(">" if ">" in call.label else "-")[-1])
            ends = (mine, peer) if kind is Kind.SEND else (peer, mine)
            source, destination = (group.members[end] for end in ends)
        inputs, outputs = recorded_sizes(spec, call.site, len(group.members))
        duration = float(held.duration_ms[row])
        rows.append(
            {
                "key": key,
                "inner": call.kind == INNER,
                "kind": Kind.BATCH if call.kind == CLOSING else kind,
                "name": call.site.direction if call.p2p else recorded_name(spec, call),
                "group": (group.name, group.desc),
                "members": group.members,
                "seq": key[1],
                "p2p_seq": key[2],
                "op_id": int(held.op_id[row]),
                "record_id": int(held.record[row]),
                "state": State(int(held.state[row]) + 1),
                "retired": bool(held.retired[row]),
                "created_ns": int(held.created_ns[row]),
                "started_ns": None if held.started_ns[row] == UNSET else int(held.started_ns[row]),
                "completed_ns": None if held.completed_ns[row] == UNSET else int(held.completed_ns[row]),
                "duration_ms": None if math.isnan(duration) else duration,
                "input_shapes": inputs,
                "output_shapes": outputs,
                "input_dtypes": (call.site.dtype,) * len(inputs),
                "output_dtypes": (call.site.dtype,) * len(outputs),
                "frames": tuple(Frame(*frame) for frame in call.site.frames),
                "thread": f"{call.site.thread} {contents.calls[held.call[row]].thread_id}",
                "timeout_ms": int(spec.timeout_s * 1000),
                "source": source,
                "destination": destination,
            }
        )
    for line in rows:
        state = closed.get(line["key"])
        if line["inner"] and state is not None:
            line["state"] = State(state + 1)
    return rows


def said_by(torch: str, form: str = "pickle") -> set[str]:
    """The fields of an operation that a format can say."""
    minor = int(torch.partition(".")[2])
    fields = {"kind", "name", "state", "retired", "input_shapes", "output_shapes", "created_ns", "frames"}
    if minor >= 3:
        fields |= {
            "op_id",
            "record_id",
            "started_ns",
            "completed_ns",
            "duration_ms",
            "source",
            "destination",
            "members",
        }
    if minor >= 4:
        fields |= {"seq", "p2p_seq", "input_dtypes", "output_dtypes", "group"}
    if minor >= 5:
        fields |= {"timeout_ms"}
    if minor >= 8:
        fields |= {"thread"}
    return fields - {"frames"} if form == "json" else fields


def of(operation: Operation, field: str) -> Any:
    if field == "group":
        return operation.group.name, operation.group.desc
    if field == "members":
        return operation.group.members
    return getattr(operation, field)


def compare(job: Simulated, fields: set[str]) -> None:
    got = read(job)
    for rank in job.dump_ranks:
        operations = [got.ops[row] for row in got.ops.rows(rank=rank)]
        wanted = expected(job, rank)
        assert len(operations) == len(wanted)
        for operation, want in zip(operations, wanted, strict=True):
            if job.spec.minor == 2:
                want["created_ns"] = want["created_ns"] // 1000 * 1000
            for field in sorted(fields):
                assert of(operation, field) == want[field], f"rank {rank} {want['name']} #{want['seq']}: {field}"


@pytest.mark.parametrize("name", sorted(JOBS))
@pytest.mark.parametrize("torch", PICKLED)
def test_a_pickle_of_every_version_reads_back(torch: str, name: str) -> None:
    """Every operation of every rank, field by field, from the pickle of each PyTorch since 2.2."""
    compare(job_of(name, torch), said_by(torch))


@pytest.mark.parametrize("name", sorted(JOBS))
@pytest.mark.parametrize("torch", ["2.5", "2.8", "2.11", "2.15"])
def test_the_json_form_reads_back(torch: str, name: str) -> None:
    """The JSON form says everything but the stacks."""
    compare(job_of(name, torch, "json"), said_by(torch, "json"))


@pytest.mark.parametrize("form", ["python3", "python4", "python5"])
@pytest.mark.parametrize("torch", ["2.2", "2.3", "2.4", "2.7", "2.8", "2.11"])
def test_dumps_pickled_again_by_python_read_back(torch: str, form: str) -> None:
    """A tool that loaded a dump and pickled it again changes the opcodes and nothing else."""
    compare(job_of("mixed", torch, form), said_by(torch))


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_compressed_dumps_read_back(form: str) -> None:
    """gzip around it changes nothing."""
    compare(job_of("mixed", "2.11", form, gzip=True), said_by("2.11", form))


@pytest.mark.parametrize("form", ["pickle", "json"])
@pytest.mark.parametrize("torch", ["2.13", "2.15"])
def test_gloo_reads_back(torch: str, form: str) -> None:
    """Gloo's "scheduled" and retired become states; members come from who took part."""
    spec = Spec(ranks=8, tp=2, fault="absent", entries=80, seed=2, backend="gloo", torch=torch, form=form)
    job = simulate(spec)
    said = {"kind", "name", "seq", "op_id", "record_id", "created_ns", "input_shapes", "output_shapes", "input_dtypes"}
    compare(job, said | (set() if form == "json" else {"frames"}))
    got = read(job)
    culprits: Any = job.truth["culprits"]
    waiting = {got.ops[row].rank for row in range(len(got.ops)) if got.ops[row].state is not State.COMPLETED}
    assert waiting == set(range(8)) - set(culprits)
    names = {(group.name, group.desc) for group in got.groups}
    assert names == {(group.name, group.desc) for group in job._run.job.groups.all}


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_torchcomms_reads_back(form: str) -> None:
    """torchcomms counts over all groups, says nothing of peers and members, and never changes a state."""
    spec = Spec(ranks=8, tp=2, fault="absent", entries=900, steps=4, backend="torchcomms", torch="2.13", form=form)
    job = simulate(spec)
    compare(job, {"kind", "name", "record_id", "created_ns", "input_shapes", "output_shapes", "input_dtypes"})
    got, groups = read(job), job._run.job.groups.all
    assert sorted(group.members or () for group in got.groups) == sorted(group.members for group in groups)
    culprits: Any = job.truth["culprits"]
    waiting = {got.ops[row].rank for row in range(len(got.ops)) if got.ops[row].state is not State.COMPLETED}
    assert waiting == set(range(8)) - set(culprits)
    operation: Any = job.truth["operation"]
    last = {got.ops[row].seq for row in range(len(got.ops)) if got.ops[row].group.name == operation["group"]}
    assert operation["seq"] in last


def test_nccl2_reads_back() -> None:
    """nccl2 never shows a start; everything else is there."""
    job = job_of("plain transfers", "2.15", backend="nccl2")
    compare(job, said_by("2.15"))
    assert not any(dump.timing for kept in read(job).dumps.values() for dump in kept)


@pytest.mark.parametrize("backend", ["rccl", "xccl", "hccl", "ncclx"])
def test_other_libraries_read_back(backend: str) -> None:
    """The library's prefix is not part of an operation's name."""
    compare(job_of("mixed", "2.11", backend=backend), said_by("2.11"))


@pytest.mark.parametrize("naming", ["shared", "hashes"])
def test_groups_are_told_apart_by_members(naming: str) -> None:
    """Groups that share a name are as many as there are member sets; a missing description comes from the entries."""
    job = job_of("mixed", "2.11", naming=naming)
    compare(job, said_by("2.11"))
    groups = job._run.job.groups.all
    assert sorted(group.members or () for group in read(job).groups) == sorted(group.members for group in groups)


@pytest.mark.parametrize("torch", ["2.5", "2.8", "2.11"])
def test_counters_of_every_group_read_back(torch: str) -> None:
    """`pg_status` is found again under the right group on every rank."""
    job = job_of("mixed", torch)
    got = read(job)
    found = {(group.name, group.members): group.index for group in got.groups}
    for rank in job.dump_ranks:
        contents = job.contents(rank)
        assert contents is not None
        for role, counters in contents.ring.status.items():
            groups = job._run.job.groups
            group = groups.all[groups.of[rank][role]]
            status = got.status[rank, found[group.name, group.members]]
            assert (status.last_enqueued, status.last_started, status.last_completed) == counters


@pytest.mark.parametrize("torch", ["2.3", "2.4", "2.11"])
def test_rings_that_wrapped_are_known_to_have_wrapped(torch: str) -> None:
    """The reader knows how many records are gone on each rank, and that nothing is gone where the ring was large."""
    for name in ("mixed", "whole history"):
        job = job_of(name, torch)
        for rank, kept in read(job).dumps.items():
            contents = job.contents(rank)
            assert contents is not None
            assert [dump.first_record for dump in kept] == [int(contents.ring.record[0])]
            assert kept[0].wrapped is (name == "mixed")
