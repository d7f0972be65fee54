"""Flight recorder dumps: recognising one by its content, and reading one into columns.

One reader for every version since torch 2.2, both forms (pickle and JSON) and every backend. What differs between them
is told by the keys that a file has, hardly ever by its version, so that a version still to come reads as far as it can.
`assemble` joins the dumps of all ranks.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from hangscope.errors import DamagedError
from hangscope.model import COLUMNS, UNKNOWN
from hangscope.reader.dumps import column_memory, json_dumps, native_decoder, normalise, pickle_machine, ring_history
from hangscope.reader.dumps.entries import Entries, Taken
from hangscope.reader.dumps.header import memberships, statuses, text_of
from hangscope.reader.dumps.profiling_names import parse_version
from hangscope.reader.dumps.raw_dump import Columns, Membership, Problem, RawDump
from hangscope.reader.join.assemble import Assembled, assemble
from hangscope.safeio.limits import DEFAULT, Limits

__all__ = ["Assembled", "Membership", "RawDump", "assemble", "read", "recognise"]

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

    Only the first 64 KiB are looked at, so a head will do. A pickle of something else is not recognised:
    `pickles.is_pickle` tells those.
    """
    head = data[:_HEAD]
    if pickle_machine.is_pickle(head):
        start = 11 if head[2] == 0x95 else 2  # protocols 4 and 5 put a frame's length first
        body = head[start:]
        if body[:1] == b"}":
            # A file that was cut off within its first bytes starts as PyTorch starts it.
            known = any(key in body for key in _TOP_KEYS) or _USUAL_START.startswith(body)
            return "pickle" if known else ""
        if body[:1] == b"]":
            return "pickle" if any(key in body for key in _ENTRY_KEYS) or body == b"]." else ""
        return ""
    start_of_json = _JSON_START.match(head)
    if start_of_json is None:
        return ""
    quoted = [key for key in _TOP_KEYS if b'"' + key + b'"' in head]
    entry = any(b'"' + key in head for key in _ENTRY_KEYS)
    if start_of_json[1] == b"[":
        return "json" if entry else ""
    return "json" if entry or any(key != b"entries" for key in quoted) else ""


def decode_ahead(data: bytes, file: str, limits: Limits = DEFAULT) -> Any:
    """The part of `read` that needs no GIL, for `found`."""
    return (
        native_decoder.decoded(data, file=file, limits=limits)
        if pickle_machine.is_pickle(data)
        else native_decoder.UNREAD
    )


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
    with more entries only what `history` wants is kept. `found` is what `decode_ahead` gave for the same bytes.
    """
    if pickle_machine.is_pickle(data):
        form = "pickle"
        loaded, taken = native_decoder.loads(data, file=file, limits=limits, found=found) or _taken(
            pickle_machine.loads, data, file, limits
        )
    elif _JSON_START.match(data):
        form = "json"
        loaded, taken = _taken(json_dumps.loads, data, file, limits)
    else:
        raise DamagedError("neither a pickle nor JSON, so not a flight recorder dump", file=file, offset=0)
    top = _top(loaded, file)
    columns = taken.columns
    problems: list[Problem] = []
    if type(top.get("entries", [])) is not list:
        problems.append(Problem("entries", "is no list"))
    if not len(columns["seq"]) and not taken.left_out and not _TOP_NAMES.intersection(top):
        if not loaded.complete:
            raise DamagedError(loaded.reason or "is broken", file=file, offset=loaded.broke_at)
        if top is loaded.value:
            raise DamagedError("not a flight recorder dump: it has none of a dump's keys", file=file)
    version = text_of(top.get("version"))
    tables = memberships(top.get("pg_config"), problems, loaded.partial)
    status = statuses(top.get("pg_status"), problems, loaded.partial)
    backend = _backend(columns, taken)
    notes = _settle(columns, taken, backend, torchcomms=_is_torchcomms(taken, version, status))
    if taken.unreported:
        problems.append(Problem("entries", f"{taken.unreported} more problems like these"))
    own = top.get("rank")
    records, first_record, timing = len(columns["seq"]), _first_record(columns, taken), _timing(columns, backend)
    rows = ring_history.kept(columns, keep) if keep is not None else None
    if rows is not None:
        columns = {name: column[rows] for name, column in columns.items()}
        first_record += records - len(rows)
    return RawDump(
        file=file,
        digest=_digest(data),
        form=form,
        version=version,
        backend=backend,
        library_version=text_of(top.get("comm_lib_version", top.get("nccl_version"))),
        columns=_narrow(columns),
        names=taken.names,
        threads=taken.threads,
        shapes=taken.shapes,
        dtypes=taken.dtypes,
        stacks=taken.stacks,
        groups=taken.groups,
        memberships=tables,
        status=status,
        records=records,
        first_record=first_record,
        timing=timing,
        has_stacks=taken.has_stacks,
        hint_rank=hint_rank,
        own_rank=own if type(own) is int and 0 <= own < 1_000_000_000 else None,
        node=node,
        role=role,
        complete=loaded.complete,
        broke_at=loaded.broke_at,
        reason=loaded.reason,
        problems=(*taken.problems, *problems),
        notes=notes,
    )


def _digest(data: bytes) -> str:
    """Tells two copies of one dump from two dumps. The start and the end do: there the newest entries are."""
    ends = data if len(data) <= 2 * _ENDS else data[:_ENDS] + data[-_ENDS:]
    return hashlib.blake2b(ends, digest_size=16, salt=len(data).to_bytes(16, "little")).hexdigest()


def _taken(
    loads: Callable[..., pickle_machine.Loaded], data: bytes, file: str, limits: Limits
) -> tuple[pickle_machine.Loaded, Taken]:
    """The entries as the Python reader finds them: each as it comes, and those that were left in their list."""
    entries = Entries(limits, len(data), file)
    loaded = loads(data, file=file, limits=limits, drain=entries.add)
    rest = _top(loaded, file).get("entries", [])
    for index, entry in enumerate(rest if type(rest) is list else ()):
        if entry is not pickle_machine.DRAINED and id(entry) not in loaded.partial:
            entries.add(index, entry)
            if entries.hopeless:
                entries.unreported += len(rest) - index - 1
                break
    return loaded, entries.taken()


def _top(loaded: pickle_machine.Loaded, file: str) -> dict[Any, Any]:
    """The table at the top; torch 2.2 wrote a bare list of entries instead."""
    if type(loaded.value) is dict:
        return loaded.value
    if type(loaded.value) is list:
        return {"entries": loaded.value}
    if not loaded.complete:
        raise DamagedError(loaded.reason or "is broken", file=file, offset=loaded.broke_at)
    raise DamagedError("not a flight recorder dump: it holds neither a table nor a list of entries", file=file)


def _backend(columns: Columns, taken: Taken) -> str:
    """The library that most entries name."""
    if len({name.library for name in taken.names}) == 1:
        return taken.names[0].library
    counts = Counter(dict(enumerate(np.bincount(columns["name"], minlength=1).tolist())))
    libraries: Counter[str] = Counter()
    for index, name in enumerate(taken.names):
        libraries[name.library] += counts[index]
    return min(libraries, key=lambda library: (-libraries[library], library), default="")


def _is_torchcomms(taken: Taken, version: str, status: dict[int, Any]) -> bool:
    """Whether torchcomms wrote this: it describes a group by its backend and never fills `pg_status`."""
    return (
        parse_version(version) >= (2, 10)
        and not status
        and bool(taken.groups)
        and all(group.desc in _BACKENDS for group in taken.groups)
    )


def _settle(columns: Columns, taken: Taken, backend: str, *, torchcomms: bool) -> tuple[str, ...]:
    """Brings the columns to the one meaning that the model has. Returns what the format cannot say."""
    notes = []
    if not taken.numbered:
        columns["record_id"] = columns["index"].copy()
    normalise.kinds(columns, taken.names)
    silent = normalise.no_states(columns) and (torchcomms or backend not in _BACKENDS)
    if backend in normalise.RETIRED_MEANS_DONE or silent:
        normalise.retired_is_done(columns)
    normalise.batches(columns, old_sequence=taken.old_sequence)
    whole = _first_record(columns, taken) == 0
    if taken.old_sequence and normalise.split_counters(columns, whole=whole):
        notes.append("this version counts collectives and point-to-point calls together, and the ring lost the start")
    if torchcomms and normalise.count_per_group(columns, whole=whole):
        notes.append("torchcomms counts over all groups together, and the ring lost the start")
    return tuple(notes)


def _first_record(columns: Columns, taken: Taken) -> int:
    """How many records came before the oldest kept one: more than 0 where the ring wrapped."""
    if not len(columns["seq"]):
        return 0
    if taken.numbered:
        # Entries that were left out as bad are not lost history.
        return max(0, int(columns["record_id"][0] - columns["index"][0]))
    # torch 2.2 numbers no records, but each group's sequence starts at 1.
    first = np.full(len(taken.groups), np.iinfo("i8").max)
    np.minimum.at(first, columns["group"], columns["seq"])
    return int(np.maximum(first[np.unique(columns["group"])] - 1, 0).sum())


_KINDS = {name: np.dtype(kind) for name, kind in COLUMNS.items()}
_OTHER = np.dtype("i4")


def _narrow(columns: Columns) -> Columns:
    """The types of the model, because thousands of dumps wait in memory to be joined."""
    unneeded = ("index", "pg_id")
    return column_memory.moved(columns, {name: _KINDS.get(name, _OTHER) for name in columns if name not in unneeded})


def _timing(columns: Columns, backend: str) -> bool:
    if backend in normalise.NEVER_STARTED:
        return False
    return bool((columns["started_ns"] != UNKNOWN).any() or (columns["state"] == normalise.STARTED).any())
