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

from hangscope.simulate.dump_formats import STATES, Dumped, Fixed, Format
from hangscope.simulate.dump_objects import config_object
from hangscope.simulate.ring_records import UNSET, Column
from hangscope.simulate.training_sites import Frame, Shape

_PROTO, _STOP = b"\x80\x02", b"."
_DICT, _LIST = b"}(", b"]("
_END_DICT, _END_LIST = b"u", b"e"
_NONE, _TRUE, _FALSE, _TUPLE2 = b"N", b"\x88", b"\x89", b"\x86"

Token = bytes | str
"""Bytes that are the same in every entry of one layout, or the name of the column whose value belongs there."""

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

    def known(self, fixed: Fixed) -> tuple[object, ...]:
        """What decides how one call is written here, besides the call itself."""
        group = tuple(self._numbers.get(text, text) for text in fixed.process_group)
        return (fixed.pg_id, fixed.timeout_ms, *group)

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

    def encode(self, dump: Dumped) -> bytes:
        """The whole file."""
        memo, version = _Memo(), dump.format.version
        if version is None:
            return _PROTO + self._list_of_entries(dump, memo) + _STOP
        if version == "1.4":
            out = [_PROTO, _DICT, memo.string("entries"), self._list_of_entries(dump, memo)]
            out += [memo.string("version"), memo.string(version), memo.string("pg_config"), _DICT]
            for number, members in dump.config_by_id.items():
                out += [integer(number), _LIST, *map(integer, members), _END_LIST]
            return b"".join([*out, _END_DICT, _END_DICT, _STOP])
        out = _head(dump, memo, version)
        if len(dump.holding):
            out += [memo.string("entries"), self._list_of_entries(dump, memo)]
        return b"".join([*out, _END_DICT, _STOP])

    def _list_of_entries(self, dump: Dumped, memo: _Memo) -> bytes:
        if not len(dump.holding):
            return b"]"
        columns = _columns(dump)
        kinds = _kinds_of_rows(dump, columns)
        # What the bytes depend on besides the numbers: which rows are alike, and what their strings are known as.
        key = (kinds.tobytes(), len(memo), *(memo.known(dump.fixed[number]) for number in dump.fixed))
        layout = self._layouts.get(key)
        if layout is None:
            if len(self._layouts) >= KEPT_LAYOUTS:
                self._layouts.clear()
            layout = self._layouts[key] = _Layout(dump, kinds, memo.copy())
        return _LIST + layout.fill(dump, columns) + _END_LIST


def _head(dump: Dumped, memo: _Memo, version: str) -> list[bytes]:
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


def _columns(dump: Dumped) -> dict[str, npt.NDArray[np.generic]]:
    held = dump.holding
    return {
        "record_id": held.record,
        "collective_seq_id": held.seq,
        "p2p_seq_id": held.p2p_seq,
        "op_id": held.op_id,
        "seq_id": held.seq + held.p2p_seq,
        "time_created_ns": held.created_ns,
        "time_created_us": held.created_ns // 1000,
        "time_discovered_started_ns": held.started_ns,
        "time_discovered_completed_ns": held.completed_ns,
        "duration_ms": held.duration_ms,
    }


def _kinds_of_rows(dump: Dumped, columns: Mapping[str, npt.NDArray[np.generic]]) -> Column:
    """Rows of one kind differ in numbers only: the same call, state, missing values and widths of the counters."""
    held = dump.holding
    kinds = held.call * 3 + (0 if dump.always_scheduled else held.state)
    for present in (held.started_ns != UNSET, held.completed_ns != UNSET, held.retired, ~np.isnan(held.duration_ms)):
        kinds = kinds * 2 + present
    for name in _COUNTERS:
        if name in dump.format.keys:
            kinds = kinds * 4 + _width(columns[name])  # type: ignore[arg-type]  # counters are integers
    return kinds


class _Layout:
    """The bytes of all entries with nothing in the places of the numbers, and where those places are."""

    def __init__(self, dump: Dumped, kinds: Column, memo: _Memo) -> None:
        _, first, which = np.unique(kinds, return_index=True, return_inverse=True)
        order = np.argsort(which, kind="stable")
        bounds = np.searchsorted(which[order], np.arange(len(first) + 1))
        columns = _columns(dump)
        pieces = np.empty(len(kinds), dtype=object)
        groups: list[tuple[Column, list[tuple[str, int, str]]]] = []
        for number in np.argsort(first, kind="stable").tolist():
            rows = order[bounds[number] : bounds[number + 1]]
            row, known = int(rows[0]), len(memo)
            text, places = _spaced(_tokens(dump, dump.format, memo, row), columns, row)
            if len(memo) > known:
                # The first entry of its kind spells out what the later ones refer to.
                pieces[row] = text
                groups.append((rows[:1], places))
                rows = rows[1:]
                text, places = _spaced(_tokens(dump, dump.format, memo, row), columns, row)
            if len(rows):
                pieces[rows] = [text] * len(rows)
                groups.append((rows, places))
        parts: list[bytes] = pieces.tolist()
        data = b"".join(parts)
        self._bytes = np.frombuffer(data, dtype=np.uint8)
        # Every rank has its own threads; their ids are of one length and written once each.
        threads = {fixed.thread_id: number for number, fixed in dump.fixed.items()}
        self._threads = [(data.find(text.encode()), number) for text, number in threads.items()]
        begins = np.cumsum([0, *map(len, parts)])[:-1]
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

    def fill(self, dump: Dumped, columns: Mapping[str, npt.NDArray[np.generic]]) -> bytes:
        out = self._bytes.copy()
        for place, number in self._threads:
            text = dump.fixed[number].thread_id.encode()
            if place >= 0:
                out[place : place + len(text)] = np.frombuffer(text, dtype=np.uint8)
        for name, kind, rows, where in self._numbers:
            out[where] = columns[name][rows].astype(kind).view(np.uint8).reshape(where.shape)
        return bytes(out)


def _spaced(
    tokens: list[Token], columns: Mapping[str, npt.NDArray[np.generic]], row: int
) -> tuple[bytes, list[tuple[str, int, str]]]:
    """One entry with zeros for its numbers, and (column, place, type) of each of them."""
    out: list[bytes] = []
    places: list[tuple[str, int, str]] = []
    length = 0
    for token in tokens:
        if isinstance(token, bytes):
            data = token
        else:
            code, kind = b"G", ">f8"
            if token != "duration_ms":
                code, kind = _WIDTHS[int(_width(columns[token][row : row + 1])[0])]  # type: ignore[arg-type]
            places.append((token, length + len(code), kind))
            data = code + bytes(np.dtype(kind).itemsize)
        out.append(data)
        length += len(data)
    return b"".join(out), places


def _tokens(dump: Dumped, form: Format, memo: _Memo, row: int) -> list[Token]:
    """The layout of one entry; writes new strings into the memo in the order in which PyTorch would."""
    held = dump.holding
    fixed: Fixed = dump.fixed[int(held.call[row])]
    hidden = dump.always_scheduled
    state = STATES[0 if hidden else int(held.state[row])]
    started = held.started_ns[row] != UNSET and not hidden
    completed = held.completed_ns[row] != UNSET and not hidden
    constant: dict[str, Callable[[], bytes]] = {
        "frames": lambda: _LIST + b"".join(map(memo.frame, fixed.frames or ())) + _END_LIST,
        "pg_id": lambda: integer(fixed.pg_id),
        "process_group": lambda: b"".join(map(memo.string, fixed.process_group)) + _TUPLE2,
        "thread_name": lambda: memo.string(fixed.thread_name),
        "thread_id": lambda: memo.string(fixed.thread_id),
        "profiling_name": lambda: memo.string(fixed.profiling_name),
        "input_sizes": lambda: _shapes(fixed.input_sizes),
        "output_sizes": lambda: _shapes(fixed.output_sizes),
        "input_dtypes": lambda: _LIST + b"".join(map(memo.string, fixed.input_dtypes)) + _END_LIST,
        "output_dtypes": lambda: _LIST + b"".join(map(memo.string, fixed.output_dtypes)) + _END_LIST,
        "state": lambda: memo.string(state),
        "retired": lambda: _TRUE if held.retired[row] else _FALSE,
        "timeout_ms": lambda: integer(fixed.timeout_ms),
        "is_p2p": lambda: _TRUE if fixed.is_p2p else _FALSE,
    }
    missing = {"time_discovered_started_ns": not started, "time_discovered_completed_ns": not completed}
    tokens: list[Token] = [_DICT]
    for key in form.keys:
        if key == "duration_ms" and np.isnan(held.duration_ms[row]):
            continue
        if key == "frames" and fixed.frames is None:
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
