"""Flight recorder dumps: recognising one by its content, and reading one into columns.

One reader for every version since torch 2.2, both forms (pickle and JSON) and every backend. What differs between them
is seen by the keys that a file has, hardly ever by its version, so that a version still to come reads as far as it can.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hangscope.errors import DamagedError
from hangscope.model import COLUMNS, UNKNOWN
from hangscope.model.profiling_names import parse_version
from hangscope.reader.dumps import column_memory, json_dumps, native_decoder, normalise, pickle_machine, ring_history
from hangscope.reader.dumps.entries import Entries, EntryColumns
from hangscope.reader.dumps.header import Header, read_header
from hangscope.reader.dumps.raw_dump import Columns, Problem, RawDump
from hangscope.safeio.limits import DEFAULT, Limits
from hangscope.safeio.pickle_opcodes import FRAME, is_pickle

__all__ = ["RawDump", "decode_ahead", "read", "recognise"]

_HEAD = 1 << 16
_ENDS = 1 << 13
_TOP_KEYS = (b"pg_config", b"pg_status", b"entries", b"nccl_comm_state", b"comm_lib_version", b"nccl_version")
_ENTRY_KEYS = (b"profiling_name", b"collective_seq_id", b"time_created_")
_TOP_NAMES = frozenset(key.decode() for key in _TOP_KEYS)
_BACKENDS = frozenset(("nccl", "nccl2", "ncclx", "rccl", "rcclx", "xccl", "hccl", "mccl", "gloo", "ucc", "mpi"))
_USUAL_START = b"}(X\x07\x00\x00\x00version"
_JSON_START = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]*([{\[])")


def recognise(data: bytes) -> str:
    """``pickle`` or ``json`` where the head of a file looks like a dump in that form, otherwise nothing.

    Only the first 64 KiB are looked at, so a head will do. A pickle of something else is not recognised.
    """
    head = data[:_HEAD]
    if is_pickle(head):
        return "pickle" if _is_pickled_dump(head) else ""
    return "json" if _is_json_dump(head) else ""


def _is_pickled_dump(head: bytes) -> bool:
    start = 11 if head[2] == FRAME else 2  # protocols 4 and 5 put a frame's length first
    body = head[start:]
    if body[:1] == b"}":
        # A file that was cut off within its first bytes starts as PyTorch starts it.
        return any(key in body for key in _TOP_KEYS) or _USUAL_START.startswith(body)
    if body[:1] == b"]":
        return any(key in body for key in _ENTRY_KEYS) or body == b"]."
    return False


def _is_json_dump(head: bytes) -> bool:
    start = _JSON_START.match(head)
    if start is None:
        return False
    if any(b'"' + key in head for key in _ENTRY_KEYS):
        return True
    # Without entries it is a table; and `entries` may be anybody's key.
    return start[1] == b"{" and any(b'"' + key + b'"' in head for key in _TOP_KEYS if key != b"entries")


def decode_ahead(data: bytes, file: str, limits: Limits = DEFAULT) -> Any:
    """The part of `read` that needs no GIL, for `found`."""
    return native_decoder.decoded(data, file=file, limits=limits) if is_pickle(data) else native_decoder.UNREAD


def read(
    data: bytes,
    *,
    file: str,
    hint_rank: int | None = None,
    node: str | None = None,
    role: str = "dump",
    limits: Limits = DEFAULT,
    keep: int | None = None,
    found: Any = native_decoder.UNREAD,
) -> RawDump:
    """One dump from the bytes of its file. Raises DamagedError where nothing in it can be used.

    `file` is the name that people see in messages, `hint_rank` the rank that a manifest gives it. Bad entries are left
    out and listed in `problems`; a file that breaks off keeps everything before that point. With `keep`, of a ring
    with more entries only what `ring_history` wants is kept. `found` is what `decode_ahead` gave for the same bytes.
    """
    form, loaded, entries = _load(data, file, limits, found)
    top = _top(loaded, file)
    _check_is_dump(top, loaded, entries, file)
    header = read_header(top, loaded.partial)
    ring = _ring(entries, header, keep)
    return RawDump(
        file=file,
        digest=_digest(data),
        form=form,
        version=header.version,
        backend=ring.backend,
        library_version=header.library_version,
        columns=_narrow(ring.columns),
        names=entries.names,
        threads=entries.threads,
        shapes=entries.shapes,
        dtypes=entries.dtypes,
        stacks=entries.stacks,
        groups=entries.groups,
        memberships=header.memberships,
        status=header.status,
        records=ring.records,
        first_record=ring.first_record,
        timing=ring.timing,
        has_stacks=entries.has_stacks,
        hint_rank=hint_rank,
        own_rank=header.own_rank,
        node=node,
        role=role,
        complete=loaded.complete,
        broke_at=loaded.broke_at,
        reason=loaded.reason,
        problems=(*entries.problems, *header.problems, *_unreported(entries)),
        notes=ring.notes,
    )


def _digest(data: bytes) -> str:
    """Tells two copies of one dump from two dumps. The start and the end do: there the newest entries are."""
    ends = data if len(data) <= 2 * _ENDS else data[:_ENDS] + data[-_ENDS:]
    return hashlib.blake2b(ends, digest_size=16, salt=len(data).to_bytes(16, "little")).hexdigest()


def _load(data: bytes, file: str, limits: Limits, found: Any) -> tuple[str, pickle_machine.Loaded, EntryColumns]:
    """The form of a file, what it holds beside its entries, and the entries."""
    if is_pickle(data):
        by_c = native_decoder.loads(data, file=file, limits=limits, found=found)
        return ("pickle", *(by_c or _load_in_python(pickle_machine.loads, data, file, limits)))
    if _JSON_START.match(data):
        return ("json", *_load_in_python(json_dumps.loads, data, file, limits))
    raise DamagedError("neither a pickle nor JSON, so not a flight recorder dump", file=file, offset=0)


def _load_in_python(
    loads: Callable[..., pickle_machine.Loaded], data: bytes, file: str, limits: Limits
) -> tuple[pickle_machine.Loaded, EntryColumns]:
    """The entries as the Python reader finds them: each as it comes, and those that were left in their list."""
    entries = Entries(limits, len(data), file)
    loaded = loads(data, file=file, limits=limits, on_entry=entries.add)
    rest = _top(loaded, file).get("entries", [])
    for index, entry in enumerate(rest if type(rest) is list else ()):
        if entry is not pickle_machine.HANDED_OVER and id(entry) not in loaded.partial:
            entries.add(index, entry)
            if entries.hopeless:
                entries.unreported += len(rest) - index - 1
                break
    return loaded, entries.in_columns()


def _top(loaded: pickle_machine.Loaded, file: str) -> dict[Any, Any]:
    """The table at the top; torch 2.2 wrote a bare list of entries instead."""
    if type(loaded.value) is dict:
        return loaded.value
    if type(loaded.value) is list:
        return {"entries": loaded.value}
    if not loaded.complete:
        raise DamagedError(loaded.reason or "is broken", file=file, offset=loaded.broke_at)
    raise DamagedError("not a flight recorder dump: it holds neither a table nor a list of entries", file=file)


def _check_is_dump(top: dict[Any, Any], loaded: pickle_machine.Loaded, entries: EntryColumns, file: str) -> None:
    """Raises DamagedError where there is neither an entry nor a key that a dump has; an empty list is a dump too."""
    if len(entries.columns["seq"]) or entries.left_out or _TOP_NAMES.intersection(top):
        return
    if not loaded.complete:
        raise DamagedError(loaded.reason or "is broken", file=file, offset=loaded.broke_at)
    if top is loaded.value:
        raise DamagedError("not a flight recorder dump: it has none of a dump's keys", file=file)


def _unreported(entries: EntryColumns) -> list[Problem]:
    if not entries.unreported:
        return []
    return [Problem("entries", f"{entries.unreported} more problems like these")]


class _Ring(NamedTuple):
    """The entries with the one meaning that the model has, and what is known about all of them."""

    columns: Columns
    backend: str
    records: int
    first_record: int
    timing: bool
    notes: tuple[str, ...]


def _ring(entries: EntryColumns, header: Header, keep: int | None) -> _Ring:
    columns = entries.columns
    backend = _backend(entries)
    notes = _normalise(entries, backend, torchcomms=_is_torchcomms(entries, header))
    records = len(columns["seq"])
    first_record = _first_record(entries)
    timing = _timing(columns, backend)
    rows = ring_history.rows_to_keep(columns, keep) if keep is not None else None
    if rows is not None:
        columns = {name: column[rows] for name, column in columns.items()}
        first_record += records - len(rows)
    return _Ring(columns, backend, records, first_record, timing, notes)


def _backend(entries: EntryColumns) -> str:
    """The library that most entries name."""
    if len({name.library for name in entries.names}) == 1:
        return entries.names[0].library
    counts = Counter(dict(enumerate(np.bincount(entries.columns["name"], minlength=1).tolist())))
    libraries: Counter[str] = Counter()
    for index, name in enumerate(entries.names):
        libraries[name.library] += counts[index]
    return min(libraries, key=lambda library: (-libraries[library], library), default="")


def _is_torchcomms(entries: EntryColumns, header: Header) -> bool:
    """Whether torchcomms wrote this: it describes a group by its backend and never fills `pg_status`."""
    return (
        parse_version(header.version) >= (2, 10)
        and not header.status
        and bool(entries.groups)
        and all(group.desc in _BACKENDS for group in entries.groups)
    )


def _normalise(entries: EntryColumns, backend: str, *, torchcomms: bool) -> tuple[str, ...]:
    """Brings the columns to the one meaning that the model has. Returns what the format cannot say."""
    columns = entries.columns
    notes = []
    if not entries.numbered:
        columns["record_id"] = columns["index"].copy()
    normalise.add_kinds(columns, entries.names)
    without_states = normalise.shows_no_progress(columns) and (torchcomms or backend not in _BACKENDS)
    if backend in normalise.NEVER_MARKED_DONE and normalise.shows_no_completion(columns):
        normalise.complete_the_overtaken(columns)
    elif backend in normalise.RETIRED_MEANS_DONE or without_states:
        normalise.complete_the_retired(columns)
    normalise.add_batches(columns, old_sequence=entries.old_sequence)
    whole = _first_record(entries) == 0
    if entries.old_sequence and normalise.split_counters(columns, whole=whole):
        notes.append("this version counts collectives and point-to-point calls together, and the ring lost the start")
    if torchcomms and normalise.count_per_group(columns, whole=whole):
        notes.append("torchcomms counts over all groups together, and the ring lost the start")
    return tuple(notes)


def _first_record(entries: EntryColumns) -> int:
    """How many records came before the oldest kept one: more than 0 where the ring wrapped."""
    columns = entries.columns
    if not len(columns["seq"]):
        return 0
    if entries.numbered:
        # Entries that were left out as bad are not lost history.
        return max(0, int(columns["record_id"][0] - columns["index"][0]))
    # torch 2.2 numbers no records, but each group's sequence starts at 1.
    first = np.full(len(entries.groups), np.iinfo("i8").max)
    np.minimum.at(first, columns["group"], columns["seq"])
    return int(np.maximum(first[np.unique(columns["group"])] - 1, 0).sum())


_KINDS = {name: np.dtype(kind) for name, kind in COLUMNS.items()}
_OTHER = np.dtype("i4")


def _narrow(columns: Columns) -> Columns:
    """The types of the model, because thousands of dumps wait in memory to be joined."""
    unneeded = ("index", "pg_id")
    return column_memory.move_into_block(
        columns, {name: _KINDS.get(name, _OTHER) for name in columns if name not in unneeded}
    )


def _timing(columns: Columns, backend: str) -> bool:
    if backend in normalise.NEVER_STARTED:
        return False
    return bool((columns["started_ns"] != UNKNOWN).any() or (columns["state"] == normalise.STARTED).any())
