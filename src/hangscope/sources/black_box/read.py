"""The black box's file: bytes of a table of slots in, `BlackBox` out. native/blackbox_layout.h is the other side.

The same code reads the file of a running process and the one that a killed process left. A slot counts only where its
sequence lock is even and, in a running process, the same in a second copy; any other slot is torn, and counted. Nothing
in the file is trusted for size: a table ends where the file ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hangscope.errors import DamagedError
from hangscope.model import BlackBox, BlackBoxComm, BlackBoxOp, Gap, Process, ProxyLink, ProxyOp, ProxyStep, Source
from hangscope.model.statements import Statement, Trust
from hangscope.model.values import RANK_LIMIT, host_name, short_name
from hangscope.sources.black_box.schema import MAGIC, MAX_BYTES, VERSION
from hangscope.sources.report import Opened, SourceFile, SourceReport, WhoIsWho, together

_TEXT = "S16"
_SERIAL = (1 << 40) - 1

_HEADER = np.dtype(
    {
        "names": [
            "magic", "version", "header_bytes", "file_bytes", "pid", "rank", "local_rank", "world_size", "nccl", "api",
            "start_wall", "start", "host", "tables", "copied", "alive", "alive_wall", "alive_count", "events",
            "dropped", "contended",
        ],
        "formats": [
            "S8", "<u4", "<u4", "<u8", "<u4", "<i4", "<i4", "<i4", "<u4", "<u4",
            "<u8", "<u8", "S64", ("<u4", (5, 4)), "<u8", "<u8", "<u8", "<u8", "<u8",
            ("<u8", 5), "<u8",
        ],
        "offsets": [
            0, 8, 12, 16, 24, 28, 32, 36, 40, 44,
            48, 56, 64, 128, 208, 256, 264, 272, 320,
            512, 552,
        ],
        "itemsize": 576,
    }
)  # fmt: skip
_LAST = np.dtype([("func", _TEXT), ("seq", "<u8"), ("serial", "<u8"), ("at", "<u8")])
_COMM = np.dtype(
    [
        ("lock", "<u4"), ("state", "<u4"), ("serial", "<u8"), ("hash", "<u8"), ("rank", "<i4"), ("ranks", "<i4"),
        ("nodes", "<i4"), ("_", "<u4"), ("created", "<u8"), ("done", "<u8"), ("ops", "<u8", 2), ("name", "S56"),
        ("last", _LAST, 16),
    ]
)  # fmt: skip
_OP = np.dtype(
    [
        ("lock", "<u4"), ("kind", "<u4"), ("serial", "<u8"), ("group", "<u8"), ("comm", "<u8"), ("seq", "<u8"),
        ("count", "<u8"), ("peer", "<i4"), ("channels", "u1"), ("warps", "u1"), ("_", "<u2"), ("started", "<u8"),
        ("enqueued", "<u8"), ("func", _TEXT), ("datatype", _TEXT), ("algorithm", _TEXT), ("protocol", _TEXT),
        ("proxies", "<u4"), ("proxies_done", "<u4"), ("__", "<u8", 6),
    ]
)  # fmt: skip
_LINK = np.dtype(
    [
        ("lock", "<u4"), ("state", "<u4"), ("comm", "<u8"), ("peer", "<i4"), ("rank", "<i4"), ("channel", "<u2"),
        ("sends", "<u2"), ("pid", "<i4"), ("ops", "<u8"), ("ops_done", "<u8"), ("steps_done", "<u8"),
        ("changed", "<u8"),
    ]
)  # fmt: skip
_STEP = np.dtype([("step", "<i4"), ("state", "<u4"), ("bytes", "<u8"), ("started", "<u8"), ("changed", "<u8")])
_PROXY = np.dtype(
    [
        ("lock", "<u4"), ("state", "<u4"), ("serial", "<u8"), ("op", "<u8"), ("group", "<u8"), ("comm", "<u8"),
        ("seq", "<u8"), ("pid", "<i4"), ("rank", "<i4"), ("peer", "<i4"), ("channel", "<i2"), ("sends", "<i2"),
        ("steps", "<i4"), ("chunk", "<i4"), ("steps_started", "<i4"), ("steps_done", "<i4"), ("progress", "<u4"),
        ("link", "<i4"), ("ordinal", "<i8"), ("func", _TEXT), ("started", "<u8"), ("changed", "<u8"),
        ("step", _STEP, 8),
    ]
)  # fmt: skip
_EVENT = np.dtype(
    [
        ("ticket", "<u8"), ("at", "<u8"), ("type", "<u4"), ("action", "<u2"), ("state", "<u2"), ("slot", "<u4"),
        ("step", "<i4"),
    ]
)  # fmt: skip
_TABLES = (("communicators", _COMM), ("operations", _OP), ("links", _LINK), ("transfers", _PROXY), ("events", _EVENT))
assert [dtype.itemsize for _, dtype in _TABLES] == [768, 192, 64, 384, 32]

STATES = {
    8: "SendGPUWait",
    9: "SendWait",
    10: "RecvWait",
    11: "RecvFlushWait",
    12: "RecvGPUWait",
    20: "SendPeerWait",
}
_KINDS = {2: "collective", 4: "p2p", 1 << 12: "copy engine"}
_IN_PROGRESS = 19


def recognise(head: bytes) -> bool:
    return head.startswith(MAGIC)


def read_file(item: Opened) -> SourceReport:
    """A box, of a process that may still run: hence read twice where it is a file of its own."""
    try:
        if item.size > MAX_BYTES:
            raise DamagedError(f"it has {item.size >> 20} MiB, more than any black box")
        with item.open() as stream:
            data = stream.read()
            stream.seek(0)
            later = stream.read() if item.path is not None else None
        box, gaps = read_box(data, Source(item.file), later)
    except DamagedError as error:
        return SourceReport(gaps=(Gap(f"black box {item.file}", error.reason, source=Source(item.file)),))
    return SourceReport(blackboxes=(box,), gaps=tuple(gaps))


def read_box(
    data: bytes, source: Source, later: bytes | None = None, read_ns: int | None = None
) -> tuple[BlackBox, list[Gap]]:
    """The box, and what is missing from it.

    `later` is a second copy of the same file, taken after `data`, and `read_ns` the wall clock at that time: both for
    the file of a running process. Raises `DamagedError` where not even the header is whole.
    """
    header = _header(data, source)
    (comms, ops, links, transfers, events), torn, cut = _tables(data, header, later)
    clock = _Clock(header)
    rank = int(header["rank"])
    last_event = int(events["at"].max()) if len(events) else 0
    box = BlackBox(
        source,
        host_name(_text(header["host"])) or "",
        int(header["pid"]),
        rank if 0 <= rank < RANK_LIMIT else None,
        _version(int(header["nccl"])),
        int(header["start_wall"]),
        clock.wall(last_event) if last_event else None,
        int(header["alive_wall"]) or None,
        int(header["copied"]) or read_ns,
        _comms(comms, clock),
        _ops(ops, clock),
        _transfers(transfers, clock),
        tuple(_link(row, clock) for row in links if row["state"]),
        dropped=int(header["dropped"][:4].sum()) + int(header["contended"]),
        torn=torn,
    )
    return box, [Gap(f"black box {source.file}", why, box.rank, box.host or None, source) for why in cut]


def _header(data: bytes, source: Source) -> Any:
    if len(data) > MAX_BYTES:
        raise DamagedError(f"it has {len(data) >> 20} MiB, more than any black box", file=source.file)
    if len(data) < _HEADER.itemsize or not recognise(data):
        raise DamagedError("its header is not whole", file=source.file)
    header = np.frombuffer(data, _HEADER, 1)[0]
    if int(header["version"]) != VERSION:
        raise DamagedError(f"it has layout {int(header['version'])}; this hangscope reads {VERSION}", file=source.file)
    return header


def _tables(data: bytes, header: Any, later: bytes | None) -> tuple[list[Any], int, list[str]]:
    """(the slots of each table that are whole and used, how many were torn, what the file lacks)."""
    found: list[Any] = []
    torn = 0
    cut: list[str] = []
    for (name, dtype), (offset, size, slots, _) in zip(_TABLES, header["tables"].tolist(), strict=True):
        fits = min(slots, max(0, (len(data) - offset) // dtype.itemsize)) if size == dtype.itemsize else 0
        if fits < slots:
            cut.append(f"it ends before its table of {name} does: {fits} of {slots} slots are there")
        rows = np.frombuffer(data, dtype, fits, offset) if fits else np.empty(0, dtype)
        if name == "events":
            rows = rows[(rows["ticket"] != 0) & (rows["ticket"] <= header["events"])]
        else:
            bad = rows["lock"] & 1 == 1
            if later is not None and fits and len(later) >= offset + fits * dtype.itemsize:
                bad |= rows["lock"] != np.frombuffer(later, dtype, fits, offset)["lock"]
            torn += int(bad.sum())
            rows = rows[~bad & (rows["lock"] != 0)]
        found.append(rows)
    return found, torn, cut


class _Clock:
    """From the process's CLOCK_MONOTONIC to the wall, by the last heartbeat or else by the start."""

    def __init__(self, header: Any) -> None:
        wall = int(header["alive_wall"])
        mono = int(header["alive"])
        if not wall or not mono:
            wall = int(header["start_wall"])
            mono = int(header["start"])
        self._offset = wall - mono

    def wall(self, ns: Any) -> int:
        return int(ns) + self._offset


def _text(value: Any) -> str:
    return "".join(c for c in bytes(value).decode("ascii", "replace") if c.isprintable())


def _version(number: int) -> str:
    if not 2000 <= number < 1_000_000:
        return ""
    major, rest = (number // 10000, number % 10000) if number >= 10000 else (number // 1000, number % 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def _comms(rows: Any, clock: _Clock) -> tuple[BlackBoxComm, ...]:
    """The communicators in the order in which they were made."""
    found = (_comm(row, clock) for row in rows if row["state"])
    return tuple(sorted(found, key=lambda comm: (comm.created_ns, comm.serial)))


def _comm(row: Any, clock: _Clock) -> BlackBoxComm:
    last = {
        name: (int(entry["seq"]), clock.wall(entry["at"])) for entry in row["last"] if (name := _text(entry["func"]))
    }
    return BlackBoxComm(
        int(row["serial"]),
        f"{int(row['hash']):#x}",
        int(row["rank"]),
        int(row["ranks"]),
        int(row["nodes"]),
        _text(row["name"]),
        int(row["state"]) == 1,
        clock.wall(row["created"]),
        int(row["ops"].sum()),
        last,
    )


def _ops(rows: Any, clock: _Clock) -> tuple[BlackBoxOp, ...]:
    """The operations in the order in which they were started."""
    found = (_op(row, clock) for row in rows if row["serial"] and row["func"])
    return tuple(sorted(found, key=lambda op: (op.started_ns, op.serial)))


def _op(row: Any, clock: _Clock) -> BlackBoxOp:
    return BlackBoxOp(
        int(row["serial"]),
        int(row["group"]),
        int(row["comm"]),
        _KINDS.get(int(row["kind"]), "other"),
        _text(row["func"]),
        int(row["seq"]),
        int(row["count"]),
        _text(row["datatype"]).removeprefix("nccl"),
        _text(row["algorithm"]),
        _text(row["protocol"]),
        int(row["channels"]),
        int(row["peer"]),
        clock.wall(row["started"]),
        clock.wall(row["enqueued"]) if row["enqueued"] else None,
        int(row["proxies"]),
        int(row["proxies_done"]),
    )


def _link(row: Any, clock: _Clock) -> ProxyLink:
    return ProxyLink(
        int(row["comm"]),
        int(row["rank"]),
        int(row["peer"]),
        int(row["channel"]),
        bool(row["sends"]),
        int(row["pid"]),
        int(row["ops"]),
        int(row["ops_done"]),
        int(row["steps_done"]),
        clock.wall(row["changed"]),
    )


def _transfers(rows: Any, clock: _Clock) -> tuple[ProxyOp, ...]:
    """The transfers in the order in which they were started."""
    found = (_transfer(row, clock) for row in rows if row["state"])
    return tuple(sorted(found, key=lambda transfer: (transfer.started_ns, transfer.serial)))


def _transfer(row: Any, clock: _Clock) -> ProxyOp:
    steps = row["step"][row["step"]["step"] >= 0]
    live = [
        ProxyStep(int(step["step"]), _state(int(step["state"])), int(step["bytes"]), clock.wall(step["changed"]))
        for step in steps[np.argsort(steps["step"])]
    ]
    return ProxyOp(
        int(row["serial"]),
        int(row["comm"]),
        int(row["op"]) & _SERIAL,
        int(row["group"]),
        _text(row["func"]),
        int(row["seq"]),
        int(row["pid"]),
        int(row["rank"]),
        int(row["peer"]),
        int(row["channel"]),
        bool(row["sends"]),
        int(row["steps"]),
        int(row["steps_started"]),
        int(row["steps_done"]),
        int(row["progress"]) == _IN_PROGRESS,
        ordinal if (ordinal := int(row["ordinal"])) >= 0 else None,
        {1: "live", 2: "done", 3: "cut off"}.get(int(row["state"]), "done"),
        clock.wall(row["started"]),
        clock.wall(row["changed"]),
        tuple(live),
    )


def _state(number: int) -> str:
    return STATES.get(number, f"state {number}" if number else "")


# ---- whose it is -----------------------------------------------------------------------------------------------------


def statements(files: Sequence[SourceFile]) -> list[Statement]:
    """Rank, node and pid as the boxes have them."""
    return [
        Statement(Trust.NETWORK, Process(rank=box.rank, node=box.host, pid=box.pid, source=box.source))
        for box in together(each.report for each in files).blackboxes
        if box.rank is not None and box.host
    ]


def join(files: Sequence[SourceFile], who: WhoIsWho) -> SourceReport:
    """Each rank's newest box, with the rank that its host and pid tell where it does not say one itself."""
    boxes = together(each.report for each in files).blackboxes
    newest: dict[int, BlackBox] = {}
    unknown: list[BlackBox] = []
    gaps: list[Gap] = []
    stated = {(short_name(p.node or ""), p.pid): p.rank for p in (s.process for s in who.statements if _of_agent(s))}
    for box in sorted(boxes, key=lambda b: (b.started_ns, b.source.file)):
        # Programs that each count from 0 are numbered one after the other by the agent: its word comes first.
        rank = stated.get((short_name(box.host or ""), box.pid), box.rank)
        if rank is None:
            rank = who.rank_of(box.host, box.pid)
        if rank is None:
            unknown.append(box)
            continue
        older = newest.get(rank)
        if older is not None and older.pid != box.pid:
            gaps.append(
                Gap(f"black box {older.source.file}", f"rank {rank} has a newer one", rank, older.host, older.source)
            )
        newest[rank] = replace(box, rank=rank)
    return SourceReport(blackboxes=(*(newest[rank] for rank in sorted(newest)), *unknown), gaps=tuple(gaps))


def _of_agent(said: Statement) -> bool:
    return said.trust is Trust.NODE and said.process.pid is not None
