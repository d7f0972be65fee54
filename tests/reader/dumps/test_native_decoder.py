"""The C decoder says what the Python reader says, of every file, in every field, or leaves the file to it."""

from __future__ import annotations

import dataclasses
import pickle
import random
import struct
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hangscope.errors import DamagedError
from hangscope.reader.dumps import decoder, dump_file, native_decoder, pickle_machine
from hangscope.safeio.limits import DEFAULT, Limits
from hostile.inputs import files as hostile_files
from kits.small_dumps import FRAMES, T0, TorchPickler, call, entry, group, packed, top

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(not decoder.built(), reason="the C decoder was not built here"),
]

CASES = Path(__file__).parents[2] / "cases"
DUMPS = sorted(path for path in CASES.glob("*/*/nccl_trace_rank_*") if path.suffix != ".json")


def outcome(data: bytes, limits: Limits) -> Any:
    try:
        return dump_file.read(data, file="host/rank_0", limits=limits)
    except DamagedError as error:
        return str(error), error.offset, error.hint


def compare(data: bytes, limits: Limits = DEFAULT) -> None:
    """Both readers, field by field."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(decoder.VARIABLE, raising=False)
        fast = outcome(data, limits)
        patch.setenv(decoder.VARIABLE, "python")
        slow = outcome(data, limits)
    if isinstance(slow, tuple) or isinstance(fast, tuple):
        assert fast == slow
        return
    for field in dataclasses.fields(slow):
        one, other = getattr(fast, field.name), getattr(slow, field.name)
        if field.name != "columns":
            assert one == other, field.name
            continue
        assert sorted(one) == sorted(other)
        for name, column in other.items():
            assert one[name].dtype == column.dtype, name
            np.testing.assert_array_equal(one[name], column, err_msg=name)


def is_native(data: bytes, limits: Limits = DEFAULT) -> bool:
    """Whether the C decoder reads this file itself."""
    return native_decoder.loads(data, file="x", limits=limits) is not None


@pytest.mark.parametrize("path", DUMPS, ids=lambda path: f"{path.parts[-3]}-{path.name[-1]}")
def test_recorded_dumps_are_read_by_it_and_alike(path: Path) -> None:
    """Every recorded dump is read by the C decoder itself, and comes out as the Python reader reads it."""
    data = path.read_bytes()
    assert is_native(data)
    compare(data)


@pytest.mark.parametrize("protocol", range(2, 6))
def test_every_cut_gives_the_same(protocol: int) -> None:
    """A dump that breaks off at any byte gives up the same entries, with the same words and offset, without Python."""
    entries = [entry(number, number + 1) for number in range(3)] + [call(3, "send 0->1", 1)]
    data = packed(
        top(entries, group("0", "default_pg", 0, 1), pg_status={"0": {"last_enqueued_collective": 3}}), protocol
    )
    by_python = 0
    for cut in range(3, len(data)):
        compare(data[:cut])
        try:
            by_python += not is_native(data[:cut])
        except DamagedError:
            pass
    assert by_python == 0


def test_a_cut_of_a_large_dump_needs_no_python() -> None:
    """A ring that was cut off while it was written is read as fast as a whole one."""
    path = max(DUMPS, key=lambda path: path.stat().st_size)
    data = path.read_bytes()
    for part in (0.3, 0.6, 0.99):
        cut = data[: int(len(data) * part)]
        assert is_native(cut)
        compare(cut)


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(width=32),
    st.sampled_from(["", "7", "completed", "started", "é", " "]),
    st.just([]),
    st.just(()),
    st.just([[4, 4], [2]]),
    st.just(([1], (2, 3))),
    st.just(["Float"]),
    st.just(("0", "default_pg")),
    st.just([dict(FRAMES[0], line=3), {}]),
    st.just([{"name": 3}]),
    st.just({}),
)
KEYS = sorted([*entry(0, 1), "seq_id", "time_created_us", "duration_ms", "unheard_of"])
USUAL: dict[str, st.SearchStrategy[Any]] = {
    "input_sizes": st.lists(st.lists(st.integers(-1, 5), max_size=2), max_size=2),
    "output_dtypes": st.lists(st.sampled_from(["Float", "Long", "Odd"]), max_size=2),
    "process_group": st.sampled_from([("0", "default_pg"), ("1", "tp"), ("1", "")]),
    "state": st.sampled_from(["scheduled", "started", "completed", "lost"]),
    "duration_ms": st.none() | st.floats(0, 1e6) | st.integers(0, 9),
    "thread_name": st.sampled_from(["", "python3", "pt_autograd_0"]),
    "thread_id": st.sampled_from(["", "7", 7, None]),
    "frames": st.sampled_from([[], FRAMES, FRAMES * 2, None]),
    "retired": st.booleans() | st.integers(0, 1),
    "time_discovered_started_ns": st.sampled_from([None, 0, T0]),
}


@given(
    count=st.sampled_from([0, 1, 2, 7, 1023, 1024, 1025, 1500, 2049]),
    lacks=st.sets(st.sampled_from(KEYS), max_size=4),
    lacks_after=st.sampled_from([0, 0, 3, 700, 1024, 2000]),
    usual=st.lists(st.tuples(st.integers(0, 2048), st.sampled_from(sorted(USUAL)), st.data()), max_size=6),
    odd=st.lists(st.tuples(st.integers(0, 2048), st.sampled_from(KEYS), ODD), max_size=2),
    protocol=st.integers(2, 5),
    bare=st.booleans(),
    cut=st.none() | st.floats(0, 1),
)
@settings(deadline=None, max_examples=120)
def test_whatever_entries_hold_both_readers_agree(
    count: int,
    lacks: set[str],
    lacks_after: int,
    usual: list[tuple[int, str, Any]],
    odd: list[tuple[int, str, Any]],
    protocol: int,
    bare: bool,
    cut: float | None,
) -> None:
    """Fields that are missing, from some entry on, of other types or out of range, in any protocol, whole or cut."""
    entries = [entry(number, number + 1) for number in range(count)]
    for line in entries[lacks_after:]:
        for key in lacks:
            line.pop(key, None)
    for number, key, data in usual if count else ():
        value = data.draw(USUAL[key])
        for line in entries[number % count :: 3]:
            line[key] = value
    for number, key, value in odd if count else ():
        entries[number % count][key] = value
    data_ = packed(entries if bare else top(entries, group("0", "default_pg", 0, 1)), protocol)
    compare(data_ if cut is None else data_[: max(3, int(len(data_) * cut))])


PIECES = (
    *(bytes([op]) for op in b"}](ue)\x85\x86\x87t.asN\x88\x89\x94"),
    *(b"q" + bytes([n]) for n in range(4)),
    *(b"h" + bytes([n]) for n in range(4)),
    b"r\x00\x01\x00\x00",
    b"j\x00\x01\x00\x00",
    b"K\x07",
    b"J\xff\xff\xff\xff",
    b"M\x01\x02",
    b"\x8a\x08" + struct.pack("<q", T0),
    b"\x8a\x09" + bytes(8) + b"\x01",
    b"\x8a\x00",
    b"\x8b\x02\x00\x00\x00\x01\x02",
    b"G" + struct.pack(">d", 1.5),
    b"\x95" + bytes(8),
    b"\x80\x03",
    b"\x80\x09",
    b"\xff",
    *(b"\x8c" + bytes([len(word)]) + word.encode() for word in ("entries", "frames", "name", "line", "seq_id", "x")),
)
ENTRY = packed(entry(0, 1), 2)[2:-1]


@given(st.lists(st.sampled_from((*PIECES, ENTRY, b"}(" + ENTRY[2:])), max_size=40), st.integers(0, 3))
@settings(deadline=None, max_examples=600)
def test_any_program_ends_alike(pieces: list[bytes], start: int) -> None:
    """Opcodes in any order, with values shared, changed after they were shared and taken from nowhere, end alike."""
    heads = (b"\x80\x02", b"\x80\x02](", b"\x80\x04}(\x8c\x07entries](", b"\x80\x04}(\x8c\x07entries](" + ENTRY)
    compare(heads[start] + b"".join(pieces) + b".")


@pytest.mark.parametrize("seed", range(3))
def test_hostile_files_end_alike(seed: int) -> None:
    """Mutated, cut and crafted files give the same entries, gaps, errors and offsets in both readers."""
    seen = 0
    for number in range(150):
        _, data = hostile_files.make(7000 + seed, number)
        if pickle_machine.is_pickle(data) and len(data) < 300_000:
            seen += 1
            compare(data)
    assert seen > 50


@pytest.mark.parametrize(
    "limits",
    [
        Limits(memory_bytes=9 << 20),
        Limits(memory_bytes=1),
        Limits(growth=1, memory_bytes=1 << 20),
        Limits(nesting=2),
        Limits(nesting=3),
        Limits(memo=10),
        Limits(string_bytes=12),
        Limits(integer_bytes=4),
        Limits(visits=-200_000),
        Limits(input_bytes=1000),
    ],
    ids=str,
)
def test_the_limits_are_the_same(limits: Limits) -> None:
    """Each limit ends the read at the same byte with the same words, whoever reads."""
    entries = [entry(number, number + 1, state=f"state {number}") for number in range(3000)]
    for protocol in (2, 4):
        compare(packed(top(entries, group("0", "default_pg", 0, 1)), protocol), limits)


def test_entries_that_change_after_they_were_read_are_seen_as_they_end_up() -> None:
    """An entry, a frame or a list that is changed through the memo later on is left to the Python reader."""
    frame = b"}\x94(\x8c\x04name\x8c\x01fu"
    head = b"\x80\x04}(\x8c\x07entries]("
    body = pickle.dumps({**entry(0, 1), "frames": []}, 2)[2:-2]
    shared = body.replace(b"]", b"](h\x00e", 1)
    for change in (b"h\x00(\x8c\x04line K\x05u0", b"h\x00(\x8c\x04lineK\x05u"):
        compare(head + frame + shared + b"u" + change + b"eu.")


def _usual_ring(count: int, rng: random.Random) -> list[dict[str, Any]]:
    """A training loop of a few calls, as rings are full of: the same but for their numbers."""
    calls = [
        {"profiling_name": "nccl:all_reduce", "input_sizes": [[8, 4]], "process_group": ("0", "default_pg")},
        {"profiling_name": "nccl:_all_gather_base", "input_sizes": [[70_000]], "process_group": ("1", "mesh_tp")},
        {"profiling_name": "nccl:send 0->1", "frames": FRAMES * 2, "p2p_seq_id": 3, "input_dtypes": ["Long"]},
        {"profiling_name": "nccl:barrier", "input_sizes": [], "duration_ms": 1.5, "timeout_ms": 1000},
    ]
    made = [entry(number, number // 4 + 1, **calls[number % 4]) for number in range(count)]
    for line in made[-3:]:
        line.update(state="scheduled", time_discovered_completed_ns=None, retired=False)
    for line in rng.sample(made, min(count, 5)):
        line["time_discovered_started_ns"] = rng.choice([None, 0, 1, T0])
    return made


def _torch_form(entries: list[dict[str, Any]]) -> bytes:
    return TorchPickler().pickled(top(entries, group("0", "default_pg", 0, 1), group("1", "mesh_tp", 0, 1)))


@pytest.mark.parametrize("count", [1, 4, 300, 1024, 1500, 3000])
def test_rings_as_torch_writes_them_are_read_alike(count: int) -> None:
    """Entries that are like earlier ones but for their numbers come out as the Python reader reads each of them."""
    data = _torch_form(_usual_ring(count, random.Random(count)))
    assert is_native(data)
    compare(data)


@given(st.integers(0, 1 << 30), st.sampled_from(["bytes", "numbers", "pieces", "cut", "fields"]))
@settings(deadline=None, max_examples=150)
def test_rings_that_break_their_own_habit_are_read_alike(seed: int, how: str) -> None:
    """Among entries that repeat, any other byte, number, opcode or field has the effect that it has alone."""
    rng = random.Random(seed)
    entries = _usual_ring(rng.choice([40, 300, 1100]), rng)
    if how == "numbers":
        for _ in range(8):
            name = rng.choice(
                ["collective_seq_id", "record_id", "op_id", "p2p_seq_id", "time_created_ns", "duration_ms"]
            )
            odd = [-1, -2, 0, 256, 65536, 1 << 31, (1 << 63) - 1, -(1 << 63), 2.5, float("inf"), float("nan"), 1e300]
            rng.choice(entries)[name] = rng.choice(odd)
    if how == "fields":
        for line in rng.sample(entries, 4):
            line.pop(rng.choice(sorted(line)), None)
            line[rng.choice(["seq_id", "time_created_us", "unheard_of"])] = rng.choice([1, "text", (1, 2, 3), [], T0])
    data = bytearray(_torch_form(entries))
    if how == "bytes":
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(2, len(data))] = rng.randrange(256)
    if how == "pieces":
        # between two entries, or anywhere: a value put under a number of the memo that others use, taken, or left open
        at = rng.choice([data.rfind(b"u}(", 0, rng.randrange(3, len(data))) + 1, rng.randrange(2, len(data))])
        data[at:at] = rng.choice([b"", b"}(", b"K\x07", b"h\x05"]) + rng.choice(PIECES) + rng.choice(PIECES)
    compare(bytes(data) if how != "cut" else bytes(data[: rng.randrange(3, len(data))]))


def test_several_threads_read_at_once() -> None:
    """The decoder keeps nothing between files: threads that read different dumps get what one thread gets."""
    paths = random.Random(5).sample(DUMPS, 8)
    alone = {path: dump_file.read(path.read_bytes(), file="x") for path in paths}
    wrong: list[Path] = []

    def work(path: Path) -> None:
        for _ in range(20):
            found = dump_file.read(path.read_bytes(), file="x")
            if any(
                (found.columns[name] != column).any()
                for name, column in alone[path].columns.items()
                if name != "duration_ms"
            ):
                wrong.append(path)

    threads = [threading.Thread(target=work, args=(path,)) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_variable_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """HANGSCOPE_DECODER=python reads everything with the Python reader."""
    data = DUMPS[0].read_bytes()
    assert is_native(data)
    monkeypatch.setenv(decoder.VARIABLE, "python")
    assert not is_native(data)
