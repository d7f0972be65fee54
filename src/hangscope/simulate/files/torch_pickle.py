"""Writes a dump the way PyTorch's own pickler does (protocol 2), fast enough for thousands of ranks.

PyTorch writes every string once and refers to it afterwards, shares the dictionaries of frames, and never memoises the
lists of sizes. So ranks that ran the same program write the same bytes but for the numbers in them: the bytes are laid
out once, with the places of the numbers, and every further rank only fills them in.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from hangscope.simulate.files.dump_contents import CallFields, DumpContents
from hangscope.simulate.files.dump_formats import STATES
from hangscope.simulate.files.dump_objects import config_object
from hangscope.simulate.program.training_sites import Frame, Shape
from hangscope.simulate.record.recorded_rows import Column
from hangscope.simulate.record.ring_contents import UNSET

_PROTO = b"\x80\x02"
_STOP = b"."
_DICT = b"}("
_END_DICT = b"u"
_LIST = b"]("
_END_LIST = b"e"
_TUPLE2 = b"\x86"
_NONE = b"N"
_TRUE = b"\x88"
_FALSE = b"\x89"

Token = bytes | str
"""Bytes that are the same in every entry of one layout, or the name of the column whose value belongs there."""
Place = tuple[str, int, str]
"""(column, where in the entry its value belongs, the value's numpy type)"""

KEPT_LAYOUTS = 64

_COUNTERS = ("record_id", "collective_seq_id", "p2p_seq_id", "op_id", "seq_id")


def integer(value: int) -> bytes:
    """The shortest form that PyTorch uses."""
    if 0 <= value <= 0xFF:
        return b"K" + bytes((value,))
    if 0 <= value <= 0xFFFF:
        return b"M" + struct.pack("<H", value)
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    return b"\x8a\x08" + struct.pack("<q", value)


_WIDTHS: tuple[tuple[bytes, str], ...] = ((b"K", "<u1"), (b"M", "<u2"), (b"J", "<i4"), (b"\x8a\x08", "<i8"))
_FLOAT = (b"G", ">f8")
"""Codes of the forms of numbers, each with the numpy type of what follows it."""


def _width(column: Column) -> Column:
    """Which of the four forms each value takes."""
    return (column > 0xFF).astype(np.int64) + (column > 0xFFFF) + (column > 0x7FFFFFFF)


class _Memo:
    """Strings and frames that were written already, with the numbers under which they can be had again."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}

    def string(self, text: str) -> bytes:
        number = self._numbers.get(text)
        if number is not None:
            return self._get(number)
        data = text.encode()
        return b"X" + struct.pack("<I", len(data)) + data + self._put(text)

    def frame(self, frame: Frame) -> bytes:
        number = self._numbers.get(frame)
        if number is not None:
            return self._get(number)
        name, filename, line = frame
        body = [_DICT, self.string("name"), self.string(name), self.string("filename"), self.string(filename)]
        body += [self.string("line"), integer(line), _END_DICT]
        return b"".join(body) + self._put(frame)

    def __len__(self) -> int:
        return len(self._numbers)

    def copy(self) -> _Memo:
        other = _Memo()
        other._numbers = dict(self._numbers)
        return other

    def known(self, call: CallFields) -> tuple[object, ...]:
        """What decides how one call is written here, besides the call itself."""
        group = tuple(self._numbers.get(text, text) for text in call.process_group)
        return (call.pg_id, call.timeout_ms, *group)

    def _put(self, key: object) -> bytes:
        number = self._numbers[key] = len(self._numbers)
        return b"q" + bytes((number,)) if number < 256 else b"r" + struct.pack("<I", number)

    @staticmethod
    def _get(number: int) -> bytes:
        return b"h" + bytes((number,)) if number < 256 else b"j" + struct.pack("<I", number)


def _shapes(shapes: tuple[Shape, ...]) -> bytes:
    inner = b"".join(_LIST + b"".join(map(integer, shape)) + _END_LIST for shape in shapes)
    return _LIST + inner + _END_LIST


class Encoder:
    """Encodes the dumps of one job and remembers the layouts that it has seen."""

    def __init__(self) -> None:
        self._layouts: dict[object, _Layout] = {}

    def encode(self, dump: DumpContents) -> bytes:
        """The whole file."""
        memo = _Memo()
        version = dump.format.version
        if version is None:
            return _PROTO + self._list_of_entries(dump, memo) + _STOP
        if version == "1.4":
            out = [_PROTO, _DICT, memo.string("entries"), self._list_of_entries(dump, memo)]
            out += [memo.string("version"), memo.string(version), memo.string("pg_config"), _DICT]
            for number, members in dump.config_by_id.items():
                out += [integer(number), _LIST, *map(integer, members), _END_LIST]
            return b"".join([*out, _END_DICT, _END_DICT, _STOP])
        out = _head(dump, memo, version)
        if len(dump.ring):
            out += [memo.string("entries"), self._list_of_entries(dump, memo)]
        return b"".join([*out, _END_DICT, _STOP])

    def _list_of_entries(self, dump: DumpContents, memo: _Memo) -> bytes:
        if not len(dump.ring):
            return b"]"
        columns = _columns(dump)
        kinds = _kinds_of_entries(dump, columns)
        # What the bytes depend on besides the numbers: which rows are alike, and what their strings are known as.
        key = (kinds.tobytes(), len(memo), *(memo.known(dump.calls[number]) for number in dump.calls))
        layout = self._layouts.get(key)
        if layout is None:
            if len(self._layouts) >= KEPT_LAYOUTS:
                self._layouts.clear()
            layout = self._layouts[key] = _Layout(dump, kinds, memo.copy())
        return _LIST + layout.fill(dump, columns) + _END_LIST


def _head(dump: DumpContents, memo: _Memo, version: str) -> list[bytes]:
    form = dump.format
    out = [_PROTO, _DICT, memo.string("version"), memo.string(version), memo.string("pg_config"), _DICT]
    for key, values in config_object(dump).items():
        out += [memo.string(key), _DICT]
        for name, value in values.items():
            out += [memo.string(name), memo.string(value)]
        out.append(_END_DICT)
    out.append(_END_DICT)
    if form.library_key:
        out += [memo.string(form.library_key), memo.string(dump.library_version)]
    if form.has_status:
        out += [memo.string("pg_status"), _DICT]
        for key, (enqueued, started, completed) in dump.status.items():
            out += [memo.string(key), _DICT, memo.string("last_enqueued_collective"), integer(enqueued)]
            out += [memo.string("last_started_collective"), integer(started)]
            out += [memo.string("last_completed_collective"), integer(completed), _END_DICT]
        out.append(_END_DICT)
    return out


# ---- entries ---------------------------------------------------------------------------------------------------------


def _columns(dump: DumpContents) -> dict[str, npt.NDArray[np.generic]]:
    ring = dump.ring
    return {
        "record_id": ring.record,
        "collective_seq_id": ring.seq,
        "p2p_seq_id": ring.p2p_seq,
        "op_id": ring.op_id,
        "seq_id": ring.seq + ring.p2p_seq,
        "time_created_ns": ring.created_ns,
        "time_created_us": ring.created_ns // 1000,
        "time_discovered_started_ns": ring.started_ns,
        "time_discovered_completed_ns": ring.completed_ns,
        "duration_ms": ring.duration_ms,
    }


def _kinds_of_entries(dump: DumpContents, columns: Mapping[str, npt.NDArray[np.generic]]) -> Column:
    """Rows of one kind differ in numbers only: the same call, state, missing values and widths of the counters."""
    ring = dump.ring
    kinds = ring.call * 3 + (0 if dump.always_scheduled else ring.state)
    for present in (ring.started_ns != UNSET, ring.completed_ns != UNSET, ring.retired, ~np.isnan(ring.duration_ms)):
        kinds = kinds * 2 + present
    for name in _COUNTERS:
        if name in dump.format.keys:
            kinds = kinds * 4 + _width(columns[name])  # type: ignore[arg-type]  # counters are integers
    return kinds


class _Layout:
    """The bytes of all entries with nothing in the places of the numbers, and where those places are."""

    def __init__(self, dump: DumpContents, kinds: Column, memo: _Memo) -> None:
        entries, groups = _lay_out(dump, kinds, memo)
        data = b"".join(entries)
        self._bytes = np.frombuffer(data, dtype=np.uint8)
        # Every rank has its own threads; their ids are of one length and written once each.
        threads = {call.thread_id: number for number, call in dump.calls.items()}
        self._threads = [(data.find(text.encode()), number) for text, number in threads.items()]
        begins = np.cumsum([0, *map(len, entries)])[:-1]
        gathered: dict[tuple[str, str], tuple[list[Column], list[Column]]] = {}
        for rows, places in groups:
            for name, place, kind in places:
                all_rows, all_places = gathered.setdefault((name, kind), ([], []))
                all_rows.append(rows)
                all_places.append(begins[rows] + place)
        self._numbers = []
        for (name, kind), (all_rows, all_places) in gathered.items():
            where = np.concatenate(all_places)[:, None] + np.arange(np.dtype(kind).itemsize)
            self._numbers.append((name, kind, np.concatenate(all_rows), where))

    def fill(self, dump: DumpContents, columns: Mapping[str, npt.NDArray[np.generic]]) -> bytes:
        out = self._bytes.copy()
        for place, number in self._threads:
            text = dump.calls[number].thread_id.encode()
            if place >= 0:
                out[place : place + len(text)] = np.frombuffer(text, dtype=np.uint8)
        for name, kind, rows, where in self._numbers:
            out[where] = columns[name][rows].astype(kind).view(np.uint8).reshape(where.shape)
        return bytes(out)


def _lay_out(dump: DumpContents, kinds: Column, memo: _Memo) -> tuple[list[bytes], list[tuple[Column, list[Place]]]]:
    """Every entry's bytes with zeros for its numbers; and rows that are alike with the places of their numbers."""
    _, first, which = np.unique(kinds, return_index=True, return_inverse=True)
    order = np.argsort(which, kind="stable")
    bounds = np.searchsorted(which[order], np.arange(len(first) + 1))
    columns = _columns(dump)
    entries = np.empty(len(kinds), dtype=object)
    groups: list[tuple[Column, list[Place]]] = []
    for number in np.argsort(first, kind="stable").tolist():
        rows = order[bounds[number] : bounds[number + 1]]
        row = int(rows[0])
        known = len(memo)
        text, places = _spaced(_tokens(dump, memo, row), columns, row)
        if len(memo) > known:
            # The first entry of its kind spells out what the later ones refer to.
            entries[row] = text
            groups.append((rows[:1], places))
            rows = rows[1:]
            text, places = _spaced(_tokens(dump, memo, row), columns, row)
        if len(rows):
            entries[rows] = [text] * len(rows)
            groups.append((rows, places))
    texts: list[bytes] = entries.tolist()
    return texts, groups


def _spaced(tokens: list[Token], columns: Mapping[str, npt.NDArray[np.generic]], row: int) -> tuple[bytes, list[Place]]:
    """One entry with zeros for its numbers, and where each of them belongs."""
    out: list[bytes] = []
    places: list[Place] = []
    length = 0
    for token in tokens:
        if isinstance(token, bytes):
            data = token
        else:
            if token == "duration_ms":
                code, kind = _FLOAT
            else:
                code, kind = _WIDTHS[int(_width(columns[token][row : row + 1])[0])]  # type: ignore[arg-type]
            places.append((token, length + len(code), kind))
            data = code + bytes(np.dtype(kind).itemsize)
        out.append(data)
        length += len(data)
    return b"".join(out), places


def _tokens(dump: DumpContents, memo: _Memo, row: int) -> list[Token]:
    """The layout of one entry; writes new strings into the memo in the order in which PyTorch would."""
    ring = dump.ring
    call: CallFields = dump.calls[int(ring.call[row])]
    hidden = dump.always_scheduled
    state = STATES[0 if hidden else int(ring.state[row])]
    started = ring.started_ns[row] != UNSET and not hidden
    completed = ring.completed_ns[row] != UNSET and not hidden
    constant: dict[str, Callable[[], bytes]] = {
        "frames": lambda: _LIST + b"".join(map(memo.frame, call.frames or ())) + _END_LIST,
        "pg_id": lambda: integer(call.pg_id),
        "process_group": lambda: b"".join(map(memo.string, call.process_group)) + _TUPLE2,
        "thread_name": lambda: memo.string(call.thread_name),
        "thread_id": lambda: memo.string(call.thread_id),
        "profiling_name": lambda: memo.string(call.profiling_name),
        "input_sizes": lambda: _shapes(call.input_sizes),
        "output_sizes": lambda: _shapes(call.output_sizes),
        "input_dtypes": lambda: _LIST + b"".join(map(memo.string, call.input_dtypes)) + _END_LIST,
        "output_dtypes": lambda: _LIST + b"".join(map(memo.string, call.output_dtypes)) + _END_LIST,
        "state": lambda: memo.string(state),
        "retired": lambda: _TRUE if ring.retired[row] else _FALSE,
        "timeout_ms": lambda: integer(call.timeout_ms),
        "is_p2p": lambda: _TRUE if call.is_p2p else _FALSE,
    }
    missing = {"time_discovered_started_ns": not started, "time_discovered_completed_ns": not completed}
    tokens: list[Token] = [_DICT]
    for key in dump.format.keys:
        if key == "duration_ms" and np.isnan(ring.duration_ms[row]):
            continue
        if key == "frames" and call.frames is None:
            continue
        tokens.append(memo.string(key))
        if missing.get(key, False):
            tokens.append(_NONE)
        elif key in constant:
            tokens.append(constant[key]())
        else:
            tokens.append(key)
    tokens.append(_END_DICT)
    return tokens
