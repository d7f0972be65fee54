"""Backends, coalesced batches and transfers: their ways of saying the same thing are undone."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hangscope.model import Kind, State
from hangscope.reader.dumps import dump_file
from kits.small_dumps import T0, as_json, call, entry, group, job, operations, read, top

# ---- backends --------------------------------------------------------------------------------------------------------


def gloo(record: int, seq: int, *, done: bool = True, name: str = "all_reduce", **changes: Any) -> dict[str, Any]:
    made = entry(record, seq, f"gloo:{name}", state="scheduled", retired=done)
    made.update(time_discovered_started_ns=None, time_discovered_completed_ns=None, **changes)
    return made


GLOO_CONFIG = {"": {"name": "", "desc": "", "ranks": "[]"}}


def test_gloo_is_done_when_it_is_retired() -> None:
    """Gloo leaves every entry scheduled: a retired one is completed, the others are under way."""
    assembled = job(read(top([gloo(0, 1), gloo(1, 2, done=False)], GLOO_CONFIG), 0))
    assert [row.state for row in assembled.ops] == [State.COMPLETED, State.SCHEDULED]
    assert assembled.dumps[0][0].backend == "gloo"
    assert assembled.dumps[0][0].timing is False


def test_gloo_members_are_the_ranks_that_recorded_the_group() -> None:
    """Gloo's table is useless: the default group is the whole job, others are who recorded them, marked as inferred."""
    pair = {"process_group": ("3", "dp"), "pg_id": 1}
    raws = [
        read(top([gloo(0, 1), *([gloo(1, 1, **pair)] if rank in (0, 2) else [])], GLOO_CONFIG), rank)
        for rank in (0, 2, 3)
    ]
    assembled = job(*raws)
    assert [(entry.label, entry.members, entry.members_seen) for entry in assembled.groups] == [
        ("default_pg", (0, 1, 2, 3), True),
        ("dp", (0, 2), True),
    ]
    assert job(*raws, expected_ranks=range(6)).groups[0].members == (0, 1, 2, 3, 4, 5)


def test_two_backends_of_a_rank_are_two_halves() -> None:
    """NCCL's and Gloo's dumps of one rank are both used; their counters stay apart, and NCCL's table serves both."""
    config = group("0", "default_pg", 0, 1)
    halves = [
        read(top([entry(0, 1), entry(1, 2)], config), 0, file="nccl_rank_0.pickle"),
        read(top([gloo(0, 1, time_created_ns=T0 + 500_000)], GLOO_CONFIG), 0, file="gloo_rank_0.json"),
    ]
    assembled = job(*halves)
    assert [(row.group.backend, row.seq) for row in assembled.ops] == [("nccl", 1), ("gloo", 1), ("nccl", 2)]
    assert [(entry.backend, entry.members, entry.members_seen) for entry in assembled.groups] == [
        ("gloo", (0, 1), False),
        ("nccl", (0, 1), False),
    ]
    assert len(assembled.dumps[0]) == 2
    assert not assembled.gaps


def test_nccl2_never_shows_a_start() -> None:
    """nccl2 goes from scheduled to completed, and its status counts op ids."""
    status = {"0": {"last_enqueued_collective": 9, "last_started_collective": 9, "last_completed_collective": 8}}
    entries = [entry(0, 1, "nccl2:all_to_all_single"), entry(1, 2, "nccl2:barrier", state="scheduled", retired=False)]
    assembled = job(read(top(entries, group("0", "default_pg", 0), pg_status=status), 0))
    assert [(row.name, row.state) for row in assembled.ops] == [
        ("all_to_all_single", State.COMPLETED),
        ("barrier", State.SCHEDULED),
    ]
    assert assembled.dumps[0][0].timing is False
    assert assembled.status[0, 0].counts_op_ids


@pytest.mark.parametrize(("library", "retired"), [("xccl", False), ("c10d", True)])
def test_an_operation_is_over_where_a_later_one_was_launched(library: str, retired: bool) -> None:
    """Backends that mark no end: all but the last operation of a group are over, whatever is retired."""
    names = [f"{library}:all_reduce", f"{library}:all_gather", f"{library}:barrier"]
    entries = [entry(n, n + 1, name, state="scheduled", retired=retired) for n, name in enumerate(names)]
    for each in entries:
        each.update(time_discovered_started_ns=None, time_discovered_completed_ns=None)
    assembled = job(read(top(entries, group("0", "default_pg", 0)), 0))
    assert [row.state for row in assembled.ops] == [State.COMPLETED, State.COMPLETED, State.SCHEDULED]


@pytest.mark.parametrize("library", ["nccl", "xccl", "hccl", "rccl", "ncclx", "somethingnew", ""])
def test_any_library_and_any_operation_keep_their_names(library: str) -> None:
    """An unknown library or operation is read like any other."""
    name = f"{library}:fused_all_reduce_v7" if library else "fused_all_reduce_v7"
    assembled = job(read(top([entry(0, 1, name)], group("0", "default_pg", 0)), 0))
    assert assembled.ops[0].name == "fused_all_reduce_v7"
    assert assembled.groups[0].backend == library


def torchcomms(record: int, name: str, comm: str, *, done: bool = True, **changes: Any) -> dict[str, Any]:
    made = entry(record, record, f"nccl:{name}", state="scheduled", retired=done, process_group=(comm, "nccl"))
    made.update(time_discovered_started_ns=None, time_discovered_completed_ns=None, **changes)
    return made


def test_torchcomms_json_is_read() -> None:
    """torchcomms counts over all communicators, writes no status and (at first) members as numbers within the group."""
    config = {
        "world": {"name": "world", "desc": "nccl", "ranks": "0,1,2,3"},
        "half": {"name": "half", "desc": "nccl", "ranks": "0,1"},
    }
    raws = []
    for rank in range(4):
        entries = [torchcomms(0, "all_reduce", "world")]
        if rank in (1, 3):
            entries += [torchcomms(1, "all_reduce", "half", pg_id=1), torchcomms(2, "send", "half", pg_id=1)]
        entries.append(torchcomms(len(entries), "all_reduce", "world", done=False))
        raws.append(read(as_json(top(entries, config)), rank))
    assembled = job(*raws)
    assert {entry.name: (entry.members, entry.members_seen) for entry in assembled.groups if entry.desc == "nccl"}[
        "world"
    ] == ((0, 1, 2, 3), True)
    last = [operations(assembled, rank)[-1] for rank in range(4)]
    assert {(row.seq, row.state) for row in last} == {(2, State.SCHEDULED)}
    assert operations(assembled, 1)[2].kind is Kind.SEND
    assert operations(assembled, 1)[0].state is State.COMPLETED


# ---- batches and transfers -------------------------------------------------------------------------------------------


def closing(record: int, p2p_seq: int, state: str, seq: int = 5, name: str = "coalesced") -> dict[str, Any]:
    empty: dict[str, Any] = {key: [] for key in ("input_sizes", "output_sizes", "input_dtypes", "output_dtypes")}
    return entry(record, seq, f"nccl:{name}", p2p_seq_id=p2p_seq, state=state, **empty)


def test_inner_entries_take_the_state_of_their_batch() -> None:
    """Entries inside a coalesced batch stay scheduled for ever; the closing entry says how far the batch got."""
    entries = [
        call(0, "send 0->1", 1),
        call(1, "recv 0<-2", 1),
        closing(2, 1, "completed"),
        call(3, "send 0->1", 2),
        call(4, "recv 0<-2", 2),
        closing(5, 2, "started"),
        call(6, "send 0->1", 3),
        call(7, "recv 0<-2", 3),
    ]
    rows = operations(job(read(top(entries, group("0", "default_pg", 0, 1, 2)), 0)), 0)
    assert [row.state for row in rows] == [
        *[State.COMPLETED] * 3,
        *[State.STARTED] * 3,
        *[State.SCHEDULED] * 2,
    ]
    assert [row.batch for row in rows] == [0, 0, 0, 1, 1, 1, 2, 2]
    assert [row.kind for row in rows[:3]] == [Kind.SEND, Kind.RECV, Kind.BATCH]
    assert rows[0].retired is False


def test_collectives_in_a_batch_are_one_launch() -> None:
    """`ALLGATHER_coalesced` closes a batch of collectives; one with tensors of its own is an ordinary collective."""
    entries = [
        entry(0, 1, "nccl:_all_gather_base", state="scheduled", retired=False),
        entry(1, 1, "nccl:_all_gather_base", state="scheduled", retired=False),
        closing(2, 0, "completed", seq=1, name="ALLGATHER_coalesced"),
        entry(3, 2, "nccl:reduce_scatter_tensor_coalesced", state="started"),
    ]
    rows = operations(job(read(top(entries, group("0", "default_pg", 0)), 0)), 0)
    assert [row.state for row in rows] == [*[State.COMPLETED] * 3, State.STARTED]
    assert [row.kind for row in rows] == [Kind.COLLECTIVE, Kind.COLLECTIVE, Kind.BATCH, Kind.COLLECTIVE]


def test_a_closing_entry_alone_is_a_batch() -> None:
    """Up to torch 2.7 collectives inside a batch leave only the closing entry."""
    assembled = job(read(top([closing(0, 0, "completed", seq=1)], version="2.4"), 0))
    assert (assembled.ops[0].kind, assembled.ops[0].batch) == (Kind.BATCH, 0)


def test_peers_become_global_ranks() -> None:
    """`send 0->1` counts within the group; the model knows global ranks only."""
    pair = {"process_group": ("4", "pp"), "pg_id": 1}
    entries = [
        {**call(0, "send 1->0", 1), **pair},
        {**call(1, "recv 1<-0", 2), **pair},
        {**call(2, "recv 1<-?", 3), **pair},
    ]
    rows = operations(job(read(top(entries, group("4", "pp", 3, 7)), 7)), 7)
    assert [(row.source, row.destination) for row in rows] == [(7, 3), (3, 7), (None, 7)]
    assert [row.title for row in rows] == ["send 7->3", "recv 7<-3", "recv 7<-?"]


def test_peers_of_an_unknown_group_are_unknown() -> None:
    """Without a table nobody knows who number 0 is: the own side stands, the other is unknown, one gap says so."""
    entries = [call(0, "send 1->0", 1), call(1, "send 1->0", 2)]
    for item in entries:
        item["process_group"] = ("9", "pp")
    assembled = job(read(top(entries), 7))
    assert [(row.source, row.destination) for row in assembled.ops] == [(7, None), (7, None)]
    assert len([gap for gap in assembled.gaps if "point-to-point" in gap.what]) == 1


# ---- a real job ------------------------------------------------------------------------------------------------------

GLOO_JOB = """
import os, sys, time, torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
pair = dist.new_group([0, 1], group_desc="pair")
other = dist.new_group([1, 2], group_desc="other")
value = torch.ones(4)
dist.all_reduce(value)
if rank < 2:
    dist.all_reduce(value, group=pair)
if rank > 0:
    dist.all_gather([torch.ones(4), torch.ones(4)], value, group=other)
dist.barrier()
if rank != 2:
    waiting = dist.all_reduce(value, async_op=True)
time.sleep(0.5)  # the barrier's entry is retired by another thread, a moment after the call returned
with open(f"{sys.argv[1]}/gloo_rank_{rank}.pickle", "wb") as file:
    file.write(_dump_fr_trace())
with open(f"{sys.argv[1]}/gloo_rank_{rank}.json", "wb") as file:
    text = _dump_fr_trace_json()
    file.write(text if isinstance(text, bytes) else text.encode())
store = dist.distributed_c10d._get_default_store()
# Nobody leaves before all have written, because a closed connection ends the others' operations; rank 0 has the store.
store.add("written", 1)
while store.add("written", 0) < 3:
    time.sleep(0.05)
store.add("left", 1)
while rank == 0 and store.add("left", 0) < 3:
    time.sleep(0.05)
os._exit(0)
"""


@pytest.mark.torch
def test_a_real_gloo_job_is_read(tmp_path: Path) -> None:
    """Three processes under this PyTorch's own Gloo recorder: groups, states and the rank that stays away."""
    pytest.importorskip("torch")
    (tmp_path / "job.py").write_text(GLOO_JOB)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    base = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "3"}
    base |= {"TORCH_FR_BUFFER_SIZE": "200", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(tmp_path / "job.py"), str(tmp_path)]
    processes = [subprocess.Popen(command, env={**base, "RANK": str(rank)}) for rank in range(3)]
    try:
        assert [process.wait(timeout=120) for process in processes] == [0, 0, 0]
    finally:
        for process in processes:
            process.kill()
    for form in ("pickle", "json"):
        raws = [dump_file.read(path.read_bytes(), file=path.name) for path in sorted(tmp_path.glob(f"*.{form}"))]
        assembled = job(*raws)
        assert {entry.label: entry.members for entry in assembled.groups} == {
            "default_pg": (0, 1, 2),
            "pair": (0, 1),
            "other": (1, 2),
        }
        last = {rank: operations(assembled, rank)[-1] for rank in range(3)}
        assert [(last[rank].title, last[rank].state) for rank in range(3)] == [
            ("all_reduce #3", State.SCHEDULED),
            ("all_reduce #3", State.SCHEDULED),
            ("barrier #2", State.COMPLETED),
        ]
        assert all(row.frames for row in assembled.ops) == (form == "pickle")
        assert len(assembled.status) == 7
