"""Reading dumps: every version and form ends in the same columns, and damage costs only what it hit."""

from __future__ import annotations

import gzip
import json
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hangscope.errors import DamagedError
from hangscope.model import Frame, Kind, Operation, State
from hangscope.reader import archives
from hangscope.reader.dumps import dump_file
from hangscope.reader.join.assemble import NOTHING_KEPT, Assembled, assemble
from kits.small_dumps import T0, as_json, call, entry, group, job, of, operations, packed, read, top

CASES = Path(__file__).parents[2] / "cases"
ALL = sorted(path.name for path in CASES.iterdir() if path.is_dir())


def case_dumps(case: str, suffix: str = "") -> list[Path]:
    return sorted(path for path in (CASES / case).glob("*/nccl_trace_rank_*") if path.suffix == suffix)


def read_file(path: Path) -> dump_file.RawDump:
    return dump_file.read(path.read_bytes(), file=str(path.relative_to(CASES)))


# ---- the recorded cases ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ALL)
def test_every_field_of_the_recorded_dumps_is_kept(case: str) -> None:
    """Every field of every entry of every recorded dump is what a plain unpickler finds."""
    paths = case_dumps(case)
    assembled = assemble([read_file(path) for path in paths])
    assert bool(assembled.gaps) == (case == "log_only")  # its recorder was off: dumps without entries
    assert len(assembled.dumps) == len(paths)
    for path in paths:
        plain = pickle.loads(path.read_bytes())
        rank = int(path.name.rpartition("_")[2])
        (dump,) = assembled.dumps[rank]
        backend = "nccl" if plain["entries"] else ""
        assert (dump.version, dump.library_version, dump.backend) == ("2.10", plain["comm_lib_version"], backend)
        oldest = plain["entries"][0]["record_id"] if plain["entries"] else 0
        assert (dump.records, dump.first_record, dump.complete) == (len(plain["entries"]), oldest, True)
        rows = operations(assembled, rank)
        assert len(rows) == len(plain["entries"])
        for operation, raw in zip(rows, plain["entries"], strict=True):
            check_entry(operation, raw, plain)
        check_status(assembled, rank, plain)


def check_entry(operation: Operation, raw: dict[str, Any], plain: dict[str, Any]) -> None:
    name = raw["profiling_name"].removeprefix("nccl:")
    assert operation.name == name.split()[0]
    assert (operation.group.name, operation.group.desc) == raw["process_group"]
    assert str(list(operation.group.members or ())) == plain["pg_config"][operation.group.name]["ranks"]
    assert operation.seq == raw["collective_seq_id"]
    assert operation.p2p_seq == raw["p2p_seq_id"]
    assert operation.op_id == raw["op_id"]
    assert operation.record_id == raw["record_id"]
    assert operation.retired is raw["retired"]
    assert operation.created_ns == raw["time_created_ns"]
    assert operation.started_ns == raw["time_discovered_started_ns"]
    assert operation.completed_ns == raw["time_discovered_completed_ns"]
    assert operation.duration_ms == raw.get("duration_ms")
    assert operation.timeout_ms == raw["timeout_ms"]
    assert operation.thread == f"{raw['thread_name']} {raw['thread_id']}"
    assert operation.input_shapes == tuple(map(tuple, raw["input_sizes"]))
    assert operation.output_shapes == tuple(map(tuple, raw["output_sizes"]))
    assert operation.input_dtypes == tuple(raw["input_dtypes"])
    assert operation.output_dtypes == tuple(raw["output_dtypes"])
    assert operation.frames == tuple(Frame(**frame) for frame in raw.get("frames", []))
    if raw["is_p2p"]:
        numbers = name.replace("->", " ").replace("<-", " ").split()[1:]
        own, peer = (operation.group.members or ())[int(numbers[0])], (operation.group.members or ())[int(numbers[1])]
        assert own == operation.rank
        assert {operation.source, operation.destination} == {own, peer}
    elif operation.kind is Kind.COLLECTIVE:
        assert operation.state.name.lower() == raw["state"]
        sizes = {"Float": 4, "Double": 8, "BFloat16": 2, "Long": 8, "Int": 4, "Half": 2, "Byte": 1}
        total = 0
        for shape, dtype in zip(raw["input_sizes"], raw["input_dtypes"], strict=True):
            count = sizes[dtype]
            for length in shape:
                count *= length
            total += count
        assert operation.size_bytes == total


def check_status(assembled: Assembled, rank: int, plain: dict[str, Any]) -> None:
    numbers = {raw["pg_id"]: raw["process_group"][0] for raw in plain["entries"]}
    found = {
        assembled.groups[index].name: status for (owner, index), status in assembled.status.items() if owner == rank
    }
    assert set(found) >= set(numbers.values())  # a group whose entries have left the ring still has its line
    for pg_id, name in numbers.items():
        line = plain["pg_status"][str(pg_id)]
        assert found[name].last_enqueued == line["last_enqueued_collective"]
        assert found[name].last_started == line["last_started_collective"]
        assert found[name].last_completed == line["last_completed_collective"]


def test_pickle_and_json_of_the_healthy_case_agree() -> None:
    """Both forms of one recording give the same operations, but for frames and what went on between the two writes."""
    left = assemble([read_file(path) for path in case_dumps("healthy")])
    right = assemble([read_file(path) for path in case_dumps("healthy", ".json")])
    assert len(left.ops) == len(right.ops) == 400
    assert left.groups == right.groups
    later = {"frames", "retired", "started_ns", "completed_ns", "duration_ms", "row"}
    for one, other in zip(left.ops, right.ops, strict=True):
        for name in Operation.__slots__:
            if name not in later:
                assert getattr(one, name) == getattr(other, name), name
        if one.retired:
            assert (one.started_ns, one.completed_ns) == (other.started_ns, other.completed_ns)
        assert other.frames == ()
    assert not any(dump.has_stacks for of_rank in right.dumps.values() for dump in of_rank)


def test_both_forms_side_by_side_are_one_recording() -> None:
    """A pickle and its JSON form in one folder are not a conflict; the one with stacks is used."""
    both = [*case_dumps("healthy"), *case_dumps("healthy", ".json")]
    assembled = assemble([read_file(path) for path in both])
    assert len(assembled.ops) == 400
    assert not assembled.gaps
    assert len(assembled.duplicates) == 4
    assert all(dump.has_stacks for of_rank in assembled.dumps.values() for dump in of_rank)


# ---- versions --------------------------------------------------------------------------------------------------------


def entry_2_2(seq: int, name: str = "nccl:all_reduce", pg_id: int = 0, **changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "pg_id": pg_id,
        "seq_id": seq,
        "profiling_name": name,
        "time_created_us": T0 // 1000 + seq,
        "input_sizes": [[8]],
        "output_sizes": [[8]],
        "state": "completed",
        "retired": True,
        "frames": [],
    }
    made.update(changes)
    return made


def entry_2_3(record: int, seq: int, name: str = "nccl:all_reduce", pg_id: int = 0, **changes: Any) -> dict[str, Any]:
    made = entry_2_2(seq, name, pg_id, record_id=record, op_id=record + 1, time_created_ns=T0 + record)
    made.update(time_discovered_started_ns=None, time_discovered_completed_ns=T0 + record + 5, **changes)
    del made["time_created_us"]
    return made


def test_torch_2_2_is_a_bare_list_in_microseconds() -> None:
    """torch 2.2: no version, no table, `seq_id` and microseconds; members are inferred, and that is said."""
    raws = [read([entry_2_2(1), entry_2_2(2, pg_id=1), entry_2_2(1, pg_id=1)], rank) for rank in (0, 1)]
    assembled = job(*raws)
    first = operations(assembled, 1)[0]
    assert (first.seq, first.created_ns, first.record_id) == (1, T0 + 1000, 0)
    assert (first.size_bytes, first.timeout_ms, first.started_ns) == (None, None, None)
    assert [(entry.name, entry.members, entry.members_seen) for entry in assembled.groups] == [
        ("0", (0, 1), True),
        ("1", (0, 1), True),
    ]
    assert "torch 2.2" in next(gap for gap in assembled.gaps if "group 1" in gap.what).why
    assert assembled.dumps[0][0].version == ""


def test_torch_2_2_rings_that_wrapped_are_told_by_their_sequence() -> None:
    """torch 2.2 numbers no records, yet a group that starts at 41 has lost forty."""
    assembled = job(read([entry_2_2(41), entry_2_2(42)], 0))
    assert assembled.dumps[0][0].first_record == 40
    assert assembled.first_kept == {(0, 0): 41}


def test_torch_2_3_groups_are_told_by_their_members() -> None:
    """Format 1.4 numbers groups per process: groups are joined by members, and by order where members are equal."""
    world = [0, 1, 2]
    pairs = {0: [0, 1], 1: [0, 1], 2: [1, 2]}
    raws = []
    for rank in world:
        config = {0: world, 1: pairs[rank], 2: world}
        entries = [entry_2_3(0, 1), entry_2_3(1, 1, pg_id=1), entry_2_3(2, 1, "nccl:broadcast", pg_id=2)]
        raws.append(read({"entries": entries, "version": "1.4", "pg_config": config}, rank))
    assembled = job(*raws)
    members = [entry.members for entry in assembled.groups]
    assert sorted(members, key=str) == [(0, 1), (0, 1, 2), (0, 1, 2), (1, 2)]
    broadcasts = {operation.group.index for operation in assembled.ops if operation.name == "broadcast"}
    assert len(broadcasts) == 1
    assert not assembled.gaps


def test_torch_2_3_counts_collectives_and_calls_apart() -> None:
    """Before 2.4 one counter serves both kinds; where the ring is whole they are numbered as later versions do."""
    entries = [
        entry_2_3(0, 1),
        entry_2_3(1, 2, "nccl:send 0->1"),
        entry_2_3(2, 3, "nccl:send 0->1", state="scheduled", retired=False),
        entry_2_3(3, 3, "nccl:recv 0<-1", state="scheduled", retired=False),
        entry_2_3(4, 3, "nccl:coalesced", input_sizes=[], output_sizes=[]),
        entry_2_3(5, 4),
    ]
    rows = operations(job(read({"entries": entries, "version": "1.4", "pg_config": {0: [0, 1]}}, 0)), 0)
    assert [(row.seq, row.p2p_seq) for row in rows] == [(1, 0), (1, 1), (1, 2), (1, 2), (1, 2), (2, 2)]
    assert [row.batch for row in rows] == [None, None, 0, 0, 0, None]
    assert all(row.state is State.COMPLETED for row in rows)


def test_torch_2_3_does_not_guess_numbers_that_the_ring_lost() -> None:
    """Where a wrapped ring mixes both kinds in one group, their numbers are unknown, and a gap says why."""
    entries = [entry_2_3(70, 41), entry_2_3(71, 42, "nccl:send 0->1"), entry_2_3(72, 43)]
    assembled = job(read({"entries": entries, "version": "1.4", "pg_config": {0: [0, 1]}}, 0))
    assert [row.seq for row in assembled.ops] == [-1, -1, -1]
    assert any("sequence numbers" in gap.what for gap in assembled.gaps)


@pytest.mark.parametrize("version", ["2.1", "2.2", "2.3", "2.4", "2.5", "2.8", "2.9", "2.10", "2.11", "3.0", "17.4.1"])
def test_versions_differ_by_keys_and_not_by_their_number(version: str) -> None:
    """Any version with the keys of 2.4 and later reads alike, keys still to come are passed over."""
    item = entry(0, 1, new_key={"what": ["ever"]})
    if version in ("2.1", "2.2", "2.3"):
        del item["timeout_ms"], item["thread_name"], item["thread_id"]
    value = top([item], group("0", "default_pg", 0, 1), version=version, later={"a": 1})
    assembled = job(read(value, 0))
    (row,) = operations(assembled, 0)
    assert (row.name, row.seq, row.group.members, row.size_bytes) == ("all_reduce", 1, (0, 1), 128)
    assert assembled.dumps[0][0].version == version
    assert not assembled.gaps


def test_the_library_version_has_two_names() -> None:
    """`nccl_version` (2.8) and `comm_lib_version` (2.9+) are the same thing."""
    value = top([entry(0, 1)], version="2.9", nccl_version="2.27.3")
    del value["comm_lib_version"]
    assert read(value, 0).library_version == "2.27.3"
    assert read(top([entry(0, 1)]), 0).library_version == "2.28.9"


@pytest.mark.parametrize("protocol", range(2, 6))
def test_dumps_pickled_again_by_python_read_alike(protocol: int) -> None:
    """A tool that loads a dump and saves it with another protocol changes nothing."""
    value = top([entry(0, 1), entry(1, 2, state="started", retired=False)], group("0", "default_pg", 0, 1))
    assert rows_of(job(read(packed(value, protocol), 0))) == rows_of(job(read(value, 0)))


def rows_of(assembled: Assembled) -> list[Operation]:
    return list(assembled.ops)


def test_the_json_form_says_the_same() -> None:
    """0 for None, texts for numbers and lists for tuples are undone; only frames are missing."""
    status = {"0": {"last_enqueued_collective": 2, "last_started_collective": -1, "last_completed_collective": 1}}
    running = entry(1, 2, state="scheduled", retired=False)
    running.update(time_discovered_started_ns=None, time_discovered_completed_ns=None)
    value = top([entry(0, 1), running], group("0", "default_pg", 0, 1), pg_status=status)
    left, right = job(read(value, 0)), job(read(as_json(value), 0))
    assert left.status == right.status
    for one, other in zip(left.ops, right.ops, strict=True):
        assert one.frames and not other.frames
        for name in Operation.__slots__:
            assert name == "frames" or getattr(one, name) == getattr(other, name), name
    assert right.ops[1].started_ns is None


def test_json_without_entries_is_a_dump() -> None:
    """The JSON form leaves `entries` out where there are none; the group is known all the same."""
    data = as_json(top([], group("0", "default_pg", 0, 1, 2)))
    assert dump_file.recognise(data) == "json"
    assembled = job(read(data, 1))
    assert [entry.members for entry in assembled.groups] == [(0, 1, 2)]
    assert assembled.ranks == (0, 1, 2)
    assert "no entries" in assembled.gaps[0].what


def test_a_bare_json_list_and_a_rank_in_the_content_are_accepted() -> None:
    """Tools write the entries alone, or add the rank to the table: both are understood."""
    data = json.dumps([{key: value for key, value in entry(0, 1).items() if key != "frames"}]).encode()
    assert dump_file.recognise(data) == "json"
    assert len(read(data, 0)) == 1
    assert set(job(read(top([entry(0, 1)], rank=5), file="trace")).dumps) == {5}


def test_recognising_needs_only_the_head() -> None:
    """Dumps are told from other pickles and other JSON by their first bytes."""
    data = packed(top([entry(number, number + 1) for number in range(3000)]))
    assert dump_file.recognise(data[: 1 << 16]) == "pickle"
    assert dump_file.recognise(packed([entry_2_2(1)])) == "pickle"
    for protocol in range(2, 6):
        assert dump_file.recognise(packed(top([]), protocol)) == "pickle"
        assert not dump_file.recognise(packed({"epoch": 3, "weights": [1.0]}, protocol))
    for other in (b"", b"{}", b'{"entries": []}', b'{"schema": "hangscope.node/1"}', b"plain text", b"\x1f\x8b\x08"):
        assert not dump_file.recognise(other)


# ---- rings, damage, order --------------------------------------------------------------------------------------------


def test_wrapped_rings_know_what_they_lost() -> None:
    """Per rank and group, the smallest collective number still there; a group that is wholly lost says so."""
    config = {**group("0", "default_pg", 0, 1), **group("1", "tp", 0, 1), **group("2", "dp", 0, 1)}
    entries = [
        of("0", "default_pg", 0, 500, 120),
        {**call(501, "send 0->1", 7, seq=44), "process_group": ("1", "tp"), "pg_id": 1},
        of("0", "default_pg", 0, 502, 121),
    ]
    assembled = job(read(top(entries, config), 0))
    (dump,) = assembled.dumps[0]
    assert (dump.first_record, dump.wrapped, dump.records) == (500, True, 3)
    labels = {assembled.groups[index].label: first for (_, index), first in assembled.first_kept.items()}
    assert labels == {"default_pg": 120, "tp": 45, "dp": NOTHING_KEPT}


def test_a_whole_ring_lost_nothing() -> None:
    """A ring that never wrapped has nothing to say about lost entries."""
    assert job(read(top([entry(0, 1), entry(1, 2)]), 0)).first_kept == {}


BROKEN: dict[str, tuple[str, dict[str, Any], str]] = {
    "missing sequence": ("collective_seq_id", {}, "no `collective_seq_id`"),
    "text as sequence": ("", {"collective_seq_id": "x"}, "`collective_seq_id` is text, not a whole number"),
    "huge sequence": ("", {"collective_seq_id": 1 << 70}, "`collective_seq_id` is a number out of range"),
    "missing name": ("profiling_name", {}, "no `profiling_name`"),
    "name of no text": ("", {"profiling_name": ["a"]}, "`profiling_name` is a list, not text"),
    "missing state": ("state", {}, "no `state`"),
    "missing group": ("process_group", {}, "no `process_group`"),
    "half a group": ("", {"process_group": ("0",)}, "`process_group` is a tuple, not a name and a description"),
}
DENTED: dict[str, tuple[str, dict[str, Any], str]] = {
    "sizes of text": ("", {"input_sizes": [["a"]]}, "`input_sizes` is a list"),
    "sizes of nothing": ("", {"input_sizes": None}, "`input_sizes` is None"),
    "no times": ("time_created_ns", {}, "no `time_created_ns`"),
    "retired of text": ("", {"retired": "yes"}, "`retired` is text, not true or false"),
    "frames of numbers": ("", {"frames": [1, 2]}, "`frames` holds something that is no frame"),
    "frames of text": ("", {"frames": "a"}, "`frames` is text"),
    "duration of text": ("", {"duration_ms": "1"}, "`duration_ms` is text"),
    "no record": ("record_id", {}, "no `record_id`"),
    "dtypes of numbers": ("", {"input_dtypes": [7]}, "`input_dtypes` is a list"),
}


@pytest.mark.parametrize("what", [*BROKEN, *DENTED])
def test_a_bad_entry_is_named_and_the_rest_is_kept(what: str) -> None:
    """A missing or mistyped field is reported with rank, index and field; an entry is left out only if it must be."""
    missing, changes, text = {**BROKEN, **DENTED}[what]
    entries = [entry(number, number + 1) for number in range(30)]
    entries[17].update(changes)
    entries[17].pop(missing, None)
    assembled = job(read(top(entries, group("0", "default_pg", 0, 3)), 3))
    gap = next(gap for gap in assembled.gaps if gap.what.startswith(f"rank 3 entries[17]: {text}"))
    assert gap.source is not None and gap.source.place == "entries[17]"
    assert len(assembled.ops) == (29 if what in BROKEN else 30)
    assert assembled.dumps[3][0].first_record == 0
    assert [row.record_id for row in assembled.ops] == [n for n in range(30) if n != 17 or what in DENTED]
    if what in DENTED:
        assert assembled.ops[17].seq == 18


def test_entries_that_are_no_entries_are_named() -> None:
    """Numbers, texts and lists among the entries are reported one by one."""
    assembled = job(read(top([entry(0, 1), 7, "x", entry(1, 2), None]), 3))
    assert len(assembled.ops) == 2
    assert [gap.what for gap in assembled.gaps] == [
        "rank 3 entries[1]: is a whole number, not an entry",
        "rank 3 entries[2]: is text, not an entry",
        "rank 3 entries[4]: is None, not an entry",
    ]


def test_thousands_of_bad_entries_do_not_make_thousands_of_gaps() -> None:
    """After fifty problems the rest is counted."""
    assembled = job(read(top([entry(0, 1), *({"x": 1, "y": number} for number in range(5000))]), 3))
    assert len(assembled.gaps) < 60
    assert any("more problems like these" in gap.what for gap in assembled.gaps)


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_a_dump_cut_at_any_byte_keeps_a_prefix(form: str) -> None:
    """Cut anywhere, a dump gives the operations before the cut and a gap, or an error of ours; never anything else."""
    value = top([entry(number, number + 1) for number in range(3)], group("0", "default_pg", 0, 1))
    data = packed(value) if form == "pickle" else as_json(value)
    whole = [(row.seq, row.name, row.created_ns) for row in job(read(data, 1)).ops]
    best = 0
    for cut in range(len(data)):
        try:
            raw = read(data[:cut], 1)
        except DamagedError as error:
            assert "nccl_trace_rank_1" in str(error)
            continue
        assembled = job(raw)
        found = [(row.seq, row.name, row.created_ns) for row in assembled.ops]
        assert found == whole[: len(found)]
        assert len(found) >= best
        best = len(found)
        if cut < len(data.rstrip(b".")):
            assert any("truncated" in gap.what for gap in assembled.gaps)
    assert best == 3


def test_a_damaged_recorded_dump_says_where_it_broke() -> None:
    """Half of a real dump gives its header, its whole entries and the byte where it ends."""
    path = case_dumps("healthy")[0]
    data = path.read_bytes()
    assembled = job(dump_file.read(data[: len(data) // 2], file="h/nccl_trace_rank_0"))
    assert 30 < len(assembled.ops) < 60
    gap = next(gap for gap in assembled.gaps if "truncated" in gap.what)
    assert str(gap.source) == f"h/nccl_trace_rank_0 byte {len(data) // 2}"
    assert assembled.dumps[0][0].complete is False
    assert assembled.groups[0].members == (0, 1, 2, 3)
    assert assembled.status


def test_names_that_are_not_utf8_survive_to_the_frames() -> None:
    """A source file with a name in Latin-1 is shown by its bytes and breaks nothing."""
    data = packed(top([entry(0, 1)])).replace(b"/workspace/train.py", b"/workspace/tr\xe4in.py")
    (row,) = job(read(data, 0)).ops
    assert row.frames[0].filename.encode("utf-8", "surrogateescape") == b"/workspace/tr\xe4in.py"


def test_other_files_are_refused_with_a_reason() -> None:
    """Text, other JSON and other pickles are not dumps, and the error says so."""
    for data in (b"hello", b'{"a": 1}', packed({"a": 1}), packed(7), packed("x")):
        with pytest.raises(DamagedError, match="not a flight recorder dump"):
            dump_file.read(data, file="x")


@st.composite
def jobs(draw: st.DrawFn) -> list[dump_file.RawDump]:
    """Dumps of a few ranks, some twice, some nameless, of several groups, backends and attempts."""
    made = []
    for number in range(draw(st.integers(1, 6))):
        rank = draw(st.integers(0, 4))
        members = draw(st.sampled_from([(0, 1, 2, 3, 4), (0, 1), (2, 3), (1, 3)]))
        config = {**group("0", "default_pg", 0, 1, 2, 3, 4), **group("1", draw(st.sampled_from(["tp", "x"])), *members)}
        config = draw(st.sampled_from([config, {}]))
        library = draw(st.sampled_from(["nccl", "gloo"]))
        start = draw(st.integers(0, 3))
        entries = [
            entry(
                start + index,
                start + index + 1,
                f"{library}:{draw(st.sampled_from(['all_reduce', 'send 0->1', 'broadcast']))}",
                process_group=draw(st.sampled_from([("0", "default_pg"), ("1", "tp")])),
                pg_id=draw(st.integers(0, 1)),
                state=draw(st.sampled_from(["scheduled", "completed"])),
                time_created_ns=T0 + draw(st.sampled_from([0, 10**12])) + index,
            )
            for index in range(draw(st.integers(0, 4)))
        ]
        status = {"0": {"last_enqueued_collective": number}}
        file = draw(st.sampled_from([f"h{number}/trace_rank_{rank}", f"h{number}/trace"]))
        made.append(read(top(entries, config, pg_status=status), file=file))
    return made


@given(jobs(), st.randoms())
@settings(deadline=None, max_examples=150)
def test_the_job_does_not_depend_on_the_order_of_files(raws: list[dump_file.RawDump], shuffler: random.Random) -> None:
    """Operations, groups, tables, gaps and everything else come out the same, whatever order the files are read in."""
    shuffled = list(raws)
    shuffler.shuffle(shuffled)
    one, other = assemble(raws), assemble(shuffled)
    assert one.groups == other.groups
    assert one.gaps == other.gaps
    assert one.dumps == other.dumps
    assert one.status == other.status
    assert one.first_kept == other.first_kept
    assert one.ranks == other.ranks
    assert one.ops.tables.names == other.ops.tables.names
    for name, column in one.ops.columns.items():
        assert column.tobytes() == other.ops.columns[name].tobytes(), name


@pytest.mark.parametrize("case", ["multi_pg", "coalesced", "exception"])
def test_recorded_cases_do_not_depend_on_the_order_of_files(case: str) -> None:
    """Recorded jobs come out the same forwards, backwards and shuffled."""
    raws = [read_file(path) for path in case_dumps(case)]
    expected = list(assemble(raws).ops)
    for seed in range(5):
        random.Random(seed).shuffle(raws)
        assert list(assemble(raws).ops) == expected


def test_a_large_ring_does_not_lie_in_memory() -> None:
    """Entries become columns as they are read: sixty thousand of them cost a fraction of what their dicts would."""
    program = """
import pickletools, sys
from hangscope.reader.dumps import dump_file as dumps
data = open(sys.argv[1], "rb").read()
last = [at for op, _, at in pickletools.genops(data) if op.name == "EMPTY_DICT"][-1]
end = data.rindex(b"eu")
data = data[:end] + data[last:end] * 60_000 + data[end:]
peak = lambda: next(int(line.split()[1]) for line in open('/proc/self/status') if line.startswith('VmHWM'))
before = peak()
raw = dumps.read(data, file="rank_0")
print(len(raw), (peak() - before) // 1024)
"""
    command = [sys.executable, "-c", program, str(case_dumps("healthy")[0])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    entries, megabytes = map(int, done.stdout.split())
    assert entries == 60_100
    assert megabytes < 100


def test_a_compressed_dump_reads_like_a_plain_one() -> None:
    """gzip around a dump changes nothing."""
    path = case_dumps("p2p")[0]
    ((name, data),) = archives.members(gzip.compress(path.read_bytes()), file="x.gz")
    assert name == ""
    assert data == path.read_bytes()


def test_the_example_in_the_documentation_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program in docs/reading-dumps.md prints every group of the recorded case."""
    root = Path(__file__).parents[3]
    monkeypatch.chdir(root)
    program = (root / "docs" / "reading-dumps.md").read_text().split("```python\n")[1].split("```")[0]
    exec(program, {})
    assert "tp (2, 3) " in capsys.readouterr().out
