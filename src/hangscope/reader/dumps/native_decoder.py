"""Pickled dumps through the C decoder (native/dump_decoder.c), where it was built: the same answer, many times faster.

The C code reads files in which every entry is as it should be, whole or cut off, and hands all others back: then the
Python reader (`pickle_machine`, `entries`) reads them from their start and says what is wrong with them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np

from hangscope.model import COLUMNS, Frame
from hangscope.model.profiling_names import parse, size_bytes
from hangscope.reader.dumps import decoder, pickle_machine
from hangscope.reader.dumps.entries import EntryColumns
from hangscope.reader.dumps.raw_dump import Columns, LocalGroup
from hangscope.safeio.limits import MOST_GROUPS, Limits

_ENDS = (
    "",
    pickle_machine.CUT,
    pickle_machine.TOO_LARGE,
    pickle_machine.NO_LIST,
    pickle_machine.TOO_DEEP,
    pickle_machine.LONG_INTEGER,
    pickle_machine.BAD_KEYS,
    pickle_machine.LONG_STRING,
    pickle_machine.OTHER_PROTOCOL,
    pickle_machine.UNFINISHED,
    "",
    pickle_machine.NO_OPCODE,
    pickle_machine.LARGE_MEMO,
    pickle_machine.NEVER_STORED,
    pickle_machine.EMPTY_STACK,
)
"""What `enum hs_status` says, in the words of the Python reader."""
_COMPLETE = 0
_FOREIGN_OPCODE = 10
_LARGE_MEMO = 12
_parse = lru_cache(maxsize=4096)(parse)


UNREAD: Final = object()
"""In the place of what the C code found, before anybody asked it."""


def decoded(data: bytes, *, file: str, limits: Limits) -> Any:
    """What the C code finds in a pickle; None where the Python reader has to read it. Holds the GIL hardly ever."""
    pickle_machine.check(data, file, limits)
    bounds = (
        limits.memory_bytes,
        limits.growth,
        limits.nesting,
        limits.memo,
        limits.string_bytes,
        limits.integer_bytes,
        limits.visits,
        MOST_GROUPS,
    )
    return decoder.decode(data, bounds, pickle_machine.HANDED_OVER)


def loads(
    data: bytes, *, file: str, limits: Limits, found: Any = UNREAD
) -> tuple[pickle_machine.Loaded, EntryColumns] | None:
    """The machine's last state and all entries; None where the Python reader has to read this file."""
    found = decoded(data, file=file, limits=limits) if found is UNREAD else found
    if found is None:
        return None
    status, at, detail, levels, count, columns, tables, flags = found
    if status == _FOREIGN_OPCODE:
        raise pickle_machine.refusal(detail, file, at)
    if status == _COMPLETE:
        loaded = pickle_machine.Loaded(levels[0][0])
    else:
        number = limits.memo if status == _LARGE_MEMO else detail
        reason = _ENDS[status].format(number, left=len(data) - at)
        loaded = pickle_machine.salvage(levels[:-1], levels[-1], at, reason)
    if not _all_handed_over(loaded):
        return None
    return loaded, _entry_columns(count, columns, tables, *map(bool, flags))


def _all_handed_over(loaded: pickle_machine.Loaded) -> bool:
    """Whether no whole entry is left in the list: one that is written in an unusual way goes with its neighbours."""
    value = loaded.value
    rest = value.get("entries") if type(value) is dict else value
    if type(rest) is not list or rest.count(pickle_machine.HANDED_OVER) == len(rest):
        return True
    return all(entry is pickle_machine.HANDED_OVER or id(entry) in loaded.partial for entry in rest)


def _entry_columns(
    count: int, raw: dict[str, bytearray], tables: dict[str, Any], has_stacks: bool, old_sequence: bool, numbered: bool
) -> EntryColumns:
    shapes = tuple(tables["shapes"])
    dtypes = tuple(tables["dtypes"])
    sizes = np.array([size_bytes(shapes[shape], dtypes[dtype]) for shape, dtype in tables["sizes"]], dtype="i8")
    columns: Columns = {}
    for name, data in raw.items():
        kind = "i4" if name == "size_bytes" else COLUMNS.get(name, "i8")
        columns[name] = np.frombuffer(data, dtype=kind, count=count)
    columns["size_bytes"] = sizes[columns["size_bytes"]] if count else np.empty(0, "i8")
    frames = tables["frames"]
    return EntryColumns(
        columns=columns,
        names=tuple(_parse(name) if len(name) <= _USUAL_TEXT else parse(name) for name in tables["names"]),
        threads=("", *(f"{name} {number}".strip() for name, number in tables["threads"])),
        shapes=shapes,
        dtypes=dtypes,
        stacks=tuple(_stack(tuple([frames[frame] for frame in stack])) for stack in tables["stacks"]),
        groups=tuple(LocalGroup(*group) for group in tables["groups"]),
        has_stacks=has_stacks,
        old_sequence=old_sequence,
        numbered=numbered,
    )


# What is remembered between dumps is bounded, whatever they hold.
_MOST_STACKS = 10_000
_MOST_FRAMES = 200
_USUAL_TEXT = 500
_stacks: dict[tuple[tuple[str, str, int], ...], tuple[Frame, ...]] = {}


def _stack(frames: tuple[tuple[str, str, int], ...]) -> tuple[Frame, ...]:
    """Every rank of a job writes the same few stacks: each exists once."""
    known = _stacks.get(frames)
    if known is None:
        if len(_stacks) > _MOST_STACKS:
            _stacks.clear()
        known = tuple(Frame(*frame) for frame in frames)
        if len(frames) <= _MOST_FRAMES and all(len(name) + len(file) <= _USUAL_TEXT for name, file, _ in frames):
            known = _stacks.setdefault(frames, known)
    return known
