"""Writes a dump the way PyTorch's own pickler does (protocol 2), fast enough for thousands of ranks.

PyTorch writes every string once and refers to it afterwards, shares the dictionaries of frames, and never memoises the
lists of sizes. So entries of one call in one state differ only in a few numbers: they are laid out once, and all of
them are filled in at a time as the columns of one byte matrix.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from hangscope.simulate.formats import STATES, Dumped, Fixed, Format
from hangscope.simulate.objects import config_object
from hangscope.simulate.records import UNSET, Column
from hangscope.simulate.sites import Frame, Shape

_PROTO, _STOP = b"\x80\x02", b"."
_DICT, _LIST = b"}(", b"]("
_END_DICT, _END_LIST = b"u", b"e"
_NONE, _TRUE, _FALSE, _TUPLE2 = b"N", b"\x88", b"\x89", b"\x86"

Token = bytes | str
"""Bytes that are the same in every entry of one layout, or the name of the column whose value belongs there."""

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

    def _put(self, key: object) -> bytes:
        number = self._numbers[key] = len(self._numbers)
        return b"q" + bytes((number,)) if number < 256 else b"r" + struct.pack("<I", number)

    @staticmethod
    def _get(number: int) -> bytes:
        return b"h" + bytes((number,)) if number < 256 else b"j" + struct.pack("<I", number)


def _shapes(shapes: tuple[Shape, ...]) -> bytes:
    inner = b"".join(_LIST + b"".join(map(integer, shape)) + _END_LIST for shape in shapes)
    return _LIST + inner + _END_LIST


def encode(dump: Dumped) -> bytes:
    """The whole file."""
    memo, form = _Memo(), dump.format
    if form.version is None:
        return _PROTO + _list_of_entries(dump, memo) + _STOP
    if form.version == "1.4":
        out = [_PROTO, _DICT, memo.string("entries"), _list_of_entries(dump, memo)]
        out += [memo.string("version"), memo.string(form.version), memo.string("pg_config"), _DICT]
        for number, members in dump.config_by_id.items():
            out += [integer(number), _LIST, *map(integer, members), _END_LIST]
        return b"".join([*out, _END_DICT, _END_DICT, _STOP])
    out = [_PROTO, _DICT, memo.string("version"), memo.string(form.version), memo.string("pg_config"), _DICT]
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
    if len(dump.holding):
        out += [memo.string("entries"), _list_of_entries(dump, memo)]
    return b"".join([*out, _END_DICT, _STOP])


# ---- entries ---------------------------------------------------------------------------------------------------------


def _list_of_entries(dump: Dumped, memo: _Memo) -> bytes:
    if not len(dump.holding):
        return b"]"
    return _LIST + b"".join(_entries(dump, memo)) + _END_LIST


def _columns(dump: Dumped) -> dict[str, Column]:
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
    }


def _entries(dump: Dumped, memo: _Memo) -> list[bytes]:
    held, form = dump.holding, dump.format
    columns = _columns(dump)
    counters = [name for name in _COUNTERS if name in form.keys]
    # Entries of equal layout: the same call, state, missing values and widths of the counters.
    flags = held.state.copy()
    if dump.always_scheduled:
        flags[:] = 0
    layout = held.call * 3 + flags
    for present in (held.started_ns != UNSET, held.completed_ns != UNSET, held.retired, ~np.isnan(held.duration_ms)):
        layout = layout * 2 + present
    for name in counters:
        layout = layout * 4 + _width(columns[name])
    _, first, which = np.unique(layout, return_index=True, return_inverse=True)
    order = np.argsort(which, kind="stable")
    bounds = np.searchsorted(which[order], np.arange(len(first) + 1))
    pieces = np.empty(len(layout), dtype=object)
    for number in np.argsort(first, kind="stable").tolist():
        rows = order[bounds[number] : bounds[number + 1]]
        row = int(rows[0])
        known = len(memo)
        tokens = _tokens(dump, form, memo, row)
        if len(memo) > known:
            # The first entry of its kind spells out what the later ones refer to.
            pieces[row] = _fill(tokens, columns, held.duration_ms, rows[:1])[0]
            rows = rows[1:]
            if not len(rows):
                continue
            tokens = _tokens(dump, form, memo, row)
        pieces[rows] = _fill(tokens, columns, held.duration_ms, rows)
    return pieces.tolist()  # type: ignore[no-any-return]


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


def _fill(
    tokens: list[Token], columns: dict[str, Column], duration_ms: npt.NDArray[np.float64], rows: Column
) -> list[bytes]:
    """All entries of one layout."""
    template: list[bytes] = []
    places: list[tuple[int, npt.NDArray[np.uint8]]] = []
    length = 0
    for token in tokens:
        if isinstance(token, bytes):
            data = token
        else:
            if token == "duration_ms":
                code, values = b"G", duration_ms[rows].astype(">f8")
            else:
                column = columns[token][rows]
                code, kind = _WIDTHS[int(_width(column[:1])[0])]
                values = column.astype(kind)
            size = values.dtype.itemsize
            places.append((length + len(code), values.view(np.uint8).reshape(-1, size)))
            data = code + bytes(size)
        template.append(data)
        length += len(data)
    matrix = np.empty((len(rows), length), dtype=np.uint8)
    matrix[:] = np.frombuffer(b"".join(template), dtype=np.uint8)
    for place, numbers in places:
        matrix[:, place : place + numbers.shape[1]] = numbers
    return matrix.view(f"V{length}").ravel().tolist()  # type: ignore[no-any-return]
