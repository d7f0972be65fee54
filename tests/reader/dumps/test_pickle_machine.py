"""The pickle machine: plain data in, plain data out, and nothing else whatever the bytes say."""

from __future__ import annotations

import ast
import pickle
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hangscope.reader
from hangscope.errors import DamagedError
from hangscope.reader.dumps import pickle_machine
from hangscope.safeio.limits import Limits
from kits.small_dumps import entry, group, packed, top

CASES = Path(__file__).parents[2] / "cases"
DUMPS = sorted(path for path in CASES.glob("*/*/nccl_trace_rank_*") if path.suffix != ".json")
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 200), 1 << 200)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=300),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=5)
    ),
    max_leaves=30,
)


def unicode(text: bytes) -> bytes:
    return b"X" + struct.pack("<I", len(text)) + text


@pytest.mark.parametrize("path", DUMPS, ids=lambda path: f"{path.parts[-3]}-{path.name[-1]}")
def test_recorded_dumps_hold_what_a_plain_unpickler_finds(path: Path) -> None:
    """Every recorded dump gives exactly the value that Python's own unpickler gives."""
    data = path.read_bytes()
    loaded = pickle_machine.loads(data, file=path.name)
    assert loaded.complete
    assert loaded.value == pickle.loads(data)


@given(PLAIN, st.integers(2, 5))
@settings(deadline=None, max_examples=300)
def test_plain_values_survive_every_protocol(value: Any, protocol: int) -> None:
    """Whatever plain value Python pickles, in any protocol that dumps use, comes back as it was."""
    assert pickle_machine.loads(pickle.dumps(value, protocol=protocol), file="x").value == value


REFUSED = {
    "GLOBAL": b"cos\nsystem\n",
    "REDUCE": b"R",
    "BUILD": b"b",
    "INST": b"(ios\nsystem\n",
    "OBJ": b"o",
    "NEWOBJ": b"\x81",
    "NEWOBJ_EX": b"\x92",
    "STACK_GLOBAL": b"\x93",
    "EXT1": b"\x82\x01",
    "EXT2": b"\x83\x01\x00",
    "EXT4": b"\x84\x01\x00\x00\x00",
    "PERSID": b"P1\n",
    "BINPERSID": b"Q",
    "NEXT_BUFFER": b"\x97",
    "READONLY_BUFFER": b"\x98",
    "BYTEARRAY8": b"\x96" + bytes(8),
    "BINBYTES": b"B" + bytes(4),
    "FROZENSET": b"\x91",
    "DUP": b"2",
    "STRING": b"S'a'\n",
    "GET": b"g0\n",
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_opcode_that_no_dump_uses_ends_the_read(name: str) -> None:
    """Every opcode outside the short list is refused, and the error names the file and the byte."""
    start = b"\x80\x02}(" + unicode(b"version")
    offset = len(start) + (1 if name == "INST" else 0)
    with pytest.raises(DamagedError, match=rf"^evil/rank_0: pickle opcode {name}\b.* at byte {offset}$") as caught:
        pickle_machine.loads(start + REFUSED[name] + b".", file="evil/rank_0")
    assert caught.value.offset == offset
    assert caught.value.hint


class _Touch:
    """A pickle of this writes a file wherever it is loaded by something that runs it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("protocol", range(2, 6))
def test_nothing_in_a_file_is_run(tmp_path: Path, protocol: int) -> None:
    """A payload that would write a file when unpickled is refused, and writes nothing."""
    marker = tmp_path / "ran"
    value = top([entry(0, 1, name=_Touch(marker))], group("0", "default_pg", 0))  # type: ignore[arg-type]
    with pytest.raises(DamagedError, match=r"GLOBAL|STACK_GLOBAL"):
        pickle_machine.loads(packed(value, protocol), file="x")
    assert not marker.exists()


def test_the_reader_cannot_load_pickles_any_other_way() -> None:
    """No module of the reader imports pickle, marshal, shelve or torch, or calls eval or exec."""
    modules = list(Path(hangscope.reader.__file__).parent.rglob("*.py"))
    assert modules
    for path in modules:
        for node in ast.walk(ast.parse(path.read_text())):
            names = {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()
            if isinstance(node, ast.ImportFrom):
                names = {node.module or ""}
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                names = {node.func.id}
            forbidden = {"pickle", "_pickle", "marshal", "shelve", "torch", "eval", "exec", "__import__", "compile"}
            assert not names & forbidden, path


def test_every_cut_gives_up_all_whole_entries() -> None:
    """A dump cut at any byte gives a prefix of its entries, never half a one, and says where it broke."""
    entries = [entry(number, number + 1) for number in range(4)]
    data = packed(top(entries, group("0", "default_pg", 0, 1)))
    best = 0
    for cut in range(3, len(data)):
        loaded = pickle_machine.loads(data[:cut], file="x")
        assert not loaded.complete
        assert loaded.broke_at is not None and loaded.broke_at <= cut
        assert loaded.reason
        value = loaded.value if isinstance(loaded.value, dict) else {}
        whole = [item for item in value.get("entries", []) if id(item) not in loaded.partial]
        assert whole == entries[: len(whole)]
        assert len(whole) >= best
        best = len(whole)
    assert best == 4


@pytest.mark.parametrize("protocol", range(2, 6))
def test_a_cut_in_a_bare_list_keeps_its_entries(protocol: int) -> None:
    """The list that torch 2.2 wrote is as robust as the table of later versions."""
    entries = [entry(number, number + 1) for number in range(3)]
    data = packed(entries, protocol)
    loaded = pickle_machine.loads(data[:-4], file="x")
    whole = [item for item in loaded.value if id(item) not in loaded.partial]
    assert whole == entries[: len(whole)]
    assert len(whole) >= 2


def test_a_flipped_byte_keeps_what_came_before() -> None:
    """A byte that is no opcode at all is damage, not an attack: what was whole before it is kept."""
    entries = [entry(0, 1), entry(1, 2)]
    data = packed(top(entries))
    assert data.endswith(b"ueu.")
    loaded = pickle_machine.loads(data[:-4] + b"\xff" + data[-4:], file="x")
    assert loaded.reason == "byte 0xff is no pickle opcode"
    assert loaded.broke_at == len(data) - 3
    assert [item for item in loaded.value["entries"] if id(item) not in loaded.partial] == entries[:1]


def test_names_that_are_not_utf8_survive() -> None:
    """A file name in another encoding is kept byte for byte behind surrogate escapes."""
    data = b"\x80\x02](" + unicode(b"/home/m\xfcller/train.py") + b"e."
    (text,) = pickle_machine.loads(data, file="x").value
    assert text.encode("utf-8", "surrogateescape") == b"/home/m\xfcller/train.py"


BOMBS = {
    "deep nesting": b"]" + b"(]" * 100_000,
    "deep tuples": b"N" + b"\x85" * 200_000 + b".",
    "marks": b"(" * 100_000,
    "huge string": b"\x8d" + struct.pack("<Q", 1 << 62),
    "long string": b"X" + struct.pack("<I", 0xFFFFFFF0) + b"a" * 100,
    "huge integer": b"\x8b" + struct.pack("<i", (1 << 31) - 1) + b"\x01",
    "negative integer": b"\x8b" + struct.pack("<i", -5),
    "memo index": b"N" + b"".join(b"r" + struct.pack("<I", (n << 20) - 1) for n in range(1, 4000)) + b".",
    "memo of everything": b"]" * 200_000 + b"\x94" * 200_000,
    "unknown memo": b"h\x07.",
    "empty stack": b"e.",
    "stop at once": b".",
    "tuple as key": b"}(K\x01\x85K\x02u.",
    "list as key": b"}(]K\x02u.",
    "itself": b"]q\x00(h\x00h\x00h\x00e.",
    "a dict that holds itself": b"}q\x00(K\x01h\x00u.",
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_end_quickly(name: str) -> None:
    """Nesting, lengths, indices and references that no dump has end the read at once, without an exception of ours."""
    started = time.monotonic()
    pickle_machine.loads(b"\x80\x04" + BOMBS[name], file="x")
    assert time.monotonic() - started < 1.5


def test_shared_tuples_are_never_hashed() -> None:
    """Sixty tuples, each twice in the next, would take 2^60 steps as a key: such a key is refused."""
    data = (
        b"\x80\x04}("
        + b"K\x01\x85"
        + b"\x94h\x00\x86"
        + b"".join(b"\x94h" + bytes([number]) + b"\x86" for number in range(1, 60))
    )
    loaded = pickle_machine.loads(data + b"K\x01u.", file="x")
    assert not loaded.complete
    assert "keys" in (loaded.reason or "")


def test_memory_is_bounded_by_the_limit_and_not_by_the_file() -> None:
    """A few megabytes that ask for hundreds are cut off at the limit."""
    data = b"\x80\x04](" + b"}" * 8_000_000 + b"e."
    loaded = pickle_machine.loads(data, file="x", limits=Limits(memory_bytes=32 << 20))
    assert not loaded.complete
    assert "more than" in (loaded.reason or "")
    assert (loaded.broke_at or 0) < 1_000_000


def test_a_file_over_the_size_limit_is_refused() -> None:
    """The input's own size has a limit, and the error says both."""
    with pytest.raises(DamagedError, match="200 bytes, more than the limit of 100"):
        pickle_machine.loads(b"\x80\x02" + bytes(198), file="x", limits=Limits(input_bytes=100))


def test_text_is_no_pickle() -> None:
    """Content that does not start like a pickle of protocol 2 to 5 is said not to be one."""
    for data in (b"", b"\x80", b"\x80\x01}.", b"\x80\x06}.", b"{}", b"(dp0\n."):
        assert not pickle_machine.is_pickle(data)
        with pytest.raises(DamagedError, match="not a pickle"):
            pickle_machine.loads(data, file="x")


@pytest.mark.parametrize("protocol", range(2, 6))
def test_entries_are_handed_over_in_order_and_not_kept(protocol: int) -> None:
    """Entries leave the machine one by one with their index, in every protocol and in both layouts."""
    entries = [entry(number, number + 1) for number in range(2500)]
    for value in (top(entries), entries):
        taken: list[tuple[int, Any]] = []
        loaded = pickle_machine.loads(
            packed(value, protocol), file="x", on_entry=lambda *item, taken=taken: taken.append(item)
        )
        kept = loaded.value["entries"] if isinstance(loaded.value, dict) else loaded.value
        rest = [(index, item) for index, item in enumerate(kept) if item is not pickle_machine.HANDED_OVER]
        assert sorted(taken + rest, key=lambda pair: pair[0]) == list(enumerate(entries))
        assert len(taken) >= 2499
