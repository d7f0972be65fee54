"""The job as a Perfetto trace: nodes are processes, ranks and their groups are tracks, operations are slices.

Open it in ui.perfetto.dev. Arrows (flows) join the parts of one operation on different ranks, and the verdict is a
slice of its own from the moment of the hang. The file is gzipped protobuf (TrackEvent), which Perfetto opens as it is.
An operation that has not ended has no end in the trace either.

Field numbers are those of perfetto_trace.proto.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np

from hangscope.diagnosis.align.alignment import Alignment
from hangscope.diagnosis.align.column_tools import Ints, ids, runs
from hangscope.diagnosis.align.p2p_matching import matched_transfers
from hangscope.diagnosis.evidence.code_lines import user_frame
from hangscope.diagnosis.verdict import Diagnosis
from hangscope.model import Job, Kind, Operations, State
from hangscope.report.op_times import OpTimes, op_times
from hangscope.report.page.moments import moments
from hangscope.report.page.page_text import LINE, LONG, SHORT, code_line, shown
from hangscope.report.page.timeline import group_labels
from hangscope.report.protobuf import Template, fixed64_slot, message, number, text, varint_slot
from hangscope.report.verdict_text import brief

_MOST = 4_000_000
"""More slices than this no browser opens: of a larger job the last of every rank are kept."""
_CHUNK = 100_000
_LEAD_NS = 1_000_000_000
"""The trace begins a second before the first operation."""

# Fields of a trace, and of a packet.
_PACKET = 1
_CLOCKS = 6
_TIMESTAMP = 8
_SEQUENCE = 10
_EVENT = 11
_INTERNED = 12
_FLAGS = 13
_DESCRIPTOR = 60
# Fields of an event, and its types.
_ANNOTATION = 4
_TYPE = 9
_NAME_IID = 10
_TRACK = 11
_NAME = 23
_FLOW = 47
_BEGIN = 1
_END = 2
_INSTANT = 3
_ARGUMENTS = ("group", "seq", "size_bytes", "state", "dtype", "called at", "duration_ms")
"""The names of a slice's arguments; their place here, from 1, is their id in the trace."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The file's bytes, with what is in it."""

    data: bytes
    slices: int
    flows: int
    left_out: int


def render_perfetto(diagnosis: Diagnosis, job: Job, times: OpTimes | None = None) -> Trace:
    """The whole trace. What is drawn is the job as the engine judged it, which `times` holds."""
    d = brief(diagnosis)
    times = op_times(job) if times is None else times
    job = times.job
    rows = _kept(times)
    base = int(times.begin_ns[rows].min()) - _LEAD_NS if len(rows) else 0
    flow = _flows(times.alignment, rows)
    tracks = _Tracks(times, rows)
    names = _Names(job, rows)
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=4, mtime=0) as file:
        file.write(_clocks(base))
        file.write(names.packet())
        for packet in tracks.packets():
            file.write(packet)
        file.write(_verdict(d, times, base, tracks, int(times.known.sum()) - len(rows)))
        for start in range(0, len(rows), _CHUNK):
            file.write(_slices(times, rows[start : start + _CHUNK], base, flow, tracks, names))
    parts = np.bincount(flow[rows]) if len(rows) else np.zeros(1, dtype=np.int64)
    arrows = int(np.maximum(parts[1:] - 1, 0).sum())
    return Trace(out.getvalue(), len(rows), arrows, int(times.known.sum()) - len(rows))


def _kept(times: OpTimes) -> Ints:
    """The rows that become slices, track by track, each track in time."""
    job = times.job
    order = times.by_track[times.known[times.by_track]]
    if len(order) > _MOST:
        room = max(_MOST // max(len(job.ranks), 1), 1)
        keep = np.zeros(len(job.ops), dtype=bool)
        for rank in job.ranks:
            part = job.ops.span(rank)
            keep[max(part.stop - room, part.start) : part.stop] = True
        order = order[keep[order]]
    return order


def _flows(alignment: Alignment, rows: Ints) -> Ints:
    """Per row of the job the number of the operation that it is a part of, from 1; 0 where no other drawn row is."""
    ops = alignment.job.ops
    flow = np.zeros(len(ops), dtype=np.int64)
    collectives = alignment.collectives
    starts = runs(ops.column("group")[collectives], ops.column("seq")[collectives])
    flow[collectives] = np.repeat(np.arange(1, len(starts)), np.diff(starts))
    sends, receives = matched_transfers(alignment)
    flow[sends] = flow[receives] = len(starts) + np.arange(len(sends))
    drawn = np.zeros(len(ops), dtype=bool)
    drawn[rows] = True
    flow[~drawn] = 0
    flow[np.bincount(flow)[flow] < 2] = 0
    return flow


def _packet(*parts: bytes) -> bytes:
    return message(_PACKET, *parts, number(_SEQUENCE, 1))


def _clocks(base: int) -> bytes:
    """What the trace's own clock (from 0) is in the time of day, so that Perfetto can show that."""

    def clock(identity: int, at: int) -> bytes:
        return message(1, number(1, identity), number(2, at))

    return _packet(message(_CLOCKS, clock(6, 0), clock(1, max(base, 0)), number(2, 6)))


# ---- tracks ----------------------------------------------------------------------------------------------------------


class _Tracks:
    """One process a node, one thread a rank, below it what the rank did with each group and peer."""

    VERDICT = 1

    def __init__(self, times: OpTimes, rows: Ints) -> None:
        job = self.job = times.job
        homes: dict[str, list[int]] = {}
        for rank in job.ranks:
            homes.setdefault(job.nodes.get(rank, ""), []).append(rank)
        self.nodes = list(homes.items())
        first = self.VERDICT + 1 + len(self.nodes)
        self.rank_track = {rank: first + i for i, rank in enumerate(r for _, ranks in self.nodes for r in ranks)}
        self.base = first + len(self.rank_track)
        self._drawn, index = np.unique(times.track[rows], return_index=True)
        self.heads = rows[index]

    def of(self, track: Ints) -> Ints:
        found: Ints = self.base + np.searchsorted(self._drawn, track)
        return found

    def packets(self) -> Iterable[bytes]:
        yield _packet(message(_DESCRIPTOR, number(1, self.VERDICT), text(2, "hangscope: the verdict")))
        for i, (node, ranks) in enumerate(self.nodes):
            track = self.VERDICT + 1 + i
            pid = i + 1
            name = shown(node, LINE) if node else "unknown node"
            process = message(3, number(1, pid), text(6, name))
            yield _packet(message(_DESCRIPTOR, number(1, track), process))
            for rank in ranks:
                thread = message(4, number(1, pid), number(2, rank + 1), text(5, f"rank {rank}"))
                yield _packet(message(_DESCRIPTOR, number(1, self.rank_track[rank]), number(5, track), thread))
        labels = group_labels(self.job)
        ops = self.job.ops
        for i, row in enumerate(self.heads.tolist()):
            parent = self.rank_track[int(ops.column("rank")[row])]
            name = labels[int(ops.column("group")[row])]
            kind = int(ops.column("kind")[row])
            if kind == Kind.SEND:
                name += f": send to {_peer(ops.column('destination')[row])}"
            elif kind == Kind.RECV:
                name += f": recv from {_peer(ops.column('source')[row])}"
            yield _packet(message(_DESCRIPTOR, number(1, self.base + i), number(5, parent), text(2, name)))


def _peer(rank: int) -> str:
    return "?" if rank < 0 else str(int(rank))


# ---- names -----------------------------------------------------------------------------------------------------------


class _Names:
    """Every distinct text once, by a number: names of slices, and texts in arguments."""

    def __init__(self, job: Job, rows: Ints) -> None:
        ops = job.ops
        self._strings: dict[str, int] = {}
        title = _title_ids(ops, rows)
        self.title = np.zeros(len(ops), dtype=np.int64)
        self.titles: list[str] = []
        if len(rows):
            _, first = np.unique(title, return_index=True)
            self.titles = [shown(ops[row].title, SHORT * 2) for row in rows[first].tolist()]
            self.title[rows] = title + 1
        labels = group_labels(job)
        self.group = np.array([self._id(label) for label in labels] or [0], dtype=np.int64)
        tables = ops.tables
        used = np.unique(ops.column("stack")[rows]).tolist()
        self.line = np.zeros(len(tables.stacks), dtype=np.int64)
        for stack in used:
            frames = tables.stack(int(stack))
            frame = user_frame(frames) or (frames[0] if frames else None)
            said = "not recorded" if frame is None else f"{code_line(frame)} in {shown(frame.name, SHORT)}"
            self.line[int(stack)] = self._id(said)
        dtypes = np.unique(ops.column("in_dtypes")[rows]).tolist()
        self.dtype = np.zeros(int(max(dtypes, default=0)) + 1, dtype=np.int64)
        for dtype in dtypes:
            self.dtype[int(dtype)] = self._id(shown("/".join(tables.dtypes(int(dtype))[:4]) or "not recorded", LINE))
        self.state = np.array([self._id(state.name.lower()) for state in State], dtype=np.int64)

    def _id(self, said: str) -> int:
        """The number of a text."""
        return self._strings.setdefault(said, len(self._strings) + 1)

    def packet(self) -> bytes:
        parts = [message(2, number(1, i), text(2, name)) for i, name in enumerate(self.titles, 1)]
        parts += [message(3, number(1, i), text(2, name)) for i, name in enumerate(_ARGUMENTS, 1)]
        parts += [message(29, number(1, i), text(2, said)) for said, i in self._strings.items()]
        return _packet(number(_FLAGS, 3), number(87, 1), message(_INTERNED, *parts))


def _title_ids(ops: Operations, rows: Ints) -> Ints:
    """Per row an id of what its slice is called: sends and receives by their ends, all else by name and number."""
    kind = ops.column("kind")[rows]
    pair = (kind == Kind.SEND) | (kind == Kind.RECV)
    what = np.where(pair, kind, ops.column("name")[rows])
    which = np.where(pair, ops.column("source")[rows], ops.column("seq")[rows])
    return ids(pair, what, which, np.where(pair, ops.column("destination")[rows], 0))


# ---- slices ----------------------------------------------------------------------------------------------------------


@cache
def _template(sized: bool, timed: bool, flowing: bool, ended: bool) -> Template:
    """One operation: the packet that begins its slice, and where it has ended the one that ends it."""

    def argument(name: str, value: Template) -> Template:
        return (Template(number(1, _ARGUMENTS.index(name) + 1)) + value).within(_ANNOTATION)

    event = Template(number(_TYPE, _BEGIN)) + varint_slot(_TRACK, "track", 5) + varint_slot(_NAME_IID, "title", 4)
    if flowing:
        event += fixed64_slot(_FLOW, "flow")
    event += argument("group", varint_slot(17, "group", 4)) + argument("state", varint_slot(17, "state", 4))
    event += argument("called at", varint_slot(17, "line", 4)) + argument("dtype", varint_slot(17, "dtype", 4))
    event += argument("seq", varint_slot(3, "seq", 9))
    if sized:
        event += argument("size_bytes", varint_slot(3, "size", 9))
    if timed:
        event += argument("duration_ms", fixed64_slot(5, "duration"))
    tail = Template(number(_SEQUENCE, 1) + number(_FLAGS, 2))
    whole = (varint_slot(_TIMESTAMP, "begin", 9) + event.within(_EVENT) + tail).within(_PACKET)
    if ended:
        event = Template(number(_TYPE, _END)) + varint_slot(_TRACK, "track", 5)
        whole += (varint_slot(_TIMESTAMP, "end", 9) + event.within(_EVENT) + tail).within(_PACKET)
    return whole


def _slices(times: OpTimes, rows: Ints, base: int, flow: Ints, tracks: _Tracks, names: _Names) -> bytes:
    """The packets of some rows, in their order."""
    ops = times.job.ops
    duration = ops.columns["duration_ms"][rows].astype(np.float64)
    size = ops.column("size_bytes")[rows]
    columns = {
        "begin": times.begin_ns[rows] - base,
        "end": times.end_ns[rows] - base,
        "track": tracks.of(times.track[rows]),
        "title": names.title[rows],
        "flow": flow[rows],
        "group": names.group[ops.column("group")[rows]],
        "state": names.state[np.clip(ops.column("state")[rows], 0, 3)],
        "line": names.line[ops.column("stack")[rows]],
        "dtype": names.dtype[ops.column("in_dtypes")[rows]],
        "seq": np.maximum(ops.column("seq")[rows], 0),
        "size": np.maximum(size, 0),
        "duration": np.nan_to_num(duration).view(np.int64),
    }
    sort = (size >= 0) * 1 + np.isfinite(duration) * 2 + (flow[rows] > 0) * 4 + ~times.unfinished[rows] * 8
    lengths = np.zeros(16, dtype=np.int64)
    for kind in np.unique(sort).tolist():
        lengths[kind] = len(_template(bool(kind & 1), bool(kind & 2), bool(kind & 4), bool(kind & 8)).data)
    places = np.cumsum(lengths[sort]) - lengths[sort]
    out = np.empty(int(lengths[sort].sum()), dtype=np.uint8)
    for kind in np.unique(sort).tolist():
        mine = np.flatnonzero(sort == kind)
        template = _template(bool(kind & 1), bool(kind & 2), bool(kind & 4), bool(kind & 8))
        filled = template.fill({name: column[mine] for name, column in columns.items()})
        out[places[mine][:, None] + np.arange(filled.shape[1])[None, :]] = filled
    return out.tobytes()


# ---- the verdict -----------------------------------------------------------------------------------------------------


def _verdict(d: Diagnosis, times: OpTimes, base: int, tracks: _Tracks, left_out: int) -> bytes:
    """A slice from the hang to the end of the evidence, and a mark on the track of every culprit."""
    when = moments(d, times)
    at = max((when.zero_ns or base) - base, 0)
    end = max((when.end_ns or base) - base, at)
    word = "HANG" if d.hang else d.kind.upper()
    said = {
        "summary": d.summary,
        "confidence": f"{d.confidence} ({d.confidence_rule})" if d.confidence_rule else d.confidence,
        "kind": d.kind,
        "next": "; ".join(d.next_steps),
    }
    if left_out:
        said["left out"] = f"{left_out:,} older operations: only the last ones of every rank are drawn"
    arguments = b"".join(message(_ANNOTATION, text(10, k), text(6, shown(v, LONG))) for k, v in said.items() if v)
    name = text(_NAME, shown(f"{word}: {d.headline or d.summary}", LINE))

    def event(moment: int, kind: int, track: int, *parts: bytes) -> bytes:
        body = message(_EVENT, number(_TYPE, kind), number(_TRACK, track), *parts)
        return _packet(number(_TIMESTAMP, moment), body, number(_FLAGS, 2))

    out = event(at, _BEGIN, tracks.VERDICT, name, arguments)
    if end > at:
        out += event(end, _END, tracks.VERDICT)
    for culprit in d.culprits:
        if culprit.rank in tracks.rank_track:
            mark = text(_NAME, shown(f"culprit: {culprit.why}" if culprit.why else "culprit", LINE))
            out += event(at, _INSTANT, tracks.rank_track[culprit.rank], mark)
    return out
